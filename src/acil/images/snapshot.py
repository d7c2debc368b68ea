"""One state of an image classifier: complete, and never changed once it is made."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from acil.analytic import Frozen
from acil.classifier import ACILClassifier
from acil.errors import ModelFileError, UnsupportedError
from acil.images.tracking import Tracker
from acil.storage import save
from acil.vision.listing import UNKNOWN

#: Relative novelty beyond which an image is unknown. Chosen by cross-validation on 300 training
#: photographs of 1 to 9 classes, the other classes being foreign.
UNKNOWN_ABOVE = 1.7


@dataclass(frozen=True)
class Facts:
    """What a model keeps of how it was made, beside what its head keeps.

    Attributes
    ----------
    source : str or None
        How the network was named.
    """

    source: str | None

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Facts:
        """Return the facts of a model file, or say that the file is damaged."""
        source = stored.get("source")
        if source is not None and not isinstance(source, str):
            raise ModelFileError(f"The network of this model is named by {source!r}, not by text.")
        return cls(source)


@dataclass(frozen=True)
class Snapshot:
    """What predictions need, ready to be used by any number of threads.

    Attributes
    ----------
    head : ACILClassifier
        Nothing may call a method of it that changes it. Weights are solved when first needed.
    tracker : Tracker
    """

    head: ACILClassifier
    tracker: Tracker
    _solving: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    _solved: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)

    @classmethod
    def of(cls, head: ACILClassifier, tracker: Tracker, facts: Facts) -> Snapshot:
        """Make a snapshot of a head that belongs to nobody else from now on."""
        head.images_ = {**asdict(facts), "tracked": tracker.to_list()}
        return cls(head, tracker)

    @property
    def judges(self) -> bool:
        """Whether it can tell what is unknown; a head that can only predict cannot."""
        return not isinstance(self.head._require_state().model.head, Frozen)

    @property
    def facts(self) -> Facts:
        """How the model was made."""
        return Facts.read(self.head.images_)

    def twin(self) -> ACILClassifier:
        """Return a copy of the head, for changing; raise if it can only predict."""
        if not self.judges:
            raise UnsupportedError(
                "This model can only predict: it was saved or loaded for inference, without the sums "
                "that learning, forgetting and merging need. Use the full model file."
            )
        return self.head.copy()

    def save(self, path: str | os.PathLike[str], inference: bool) -> None:
        """Write the model to a file; for prediction alone it has no hashes of images."""
        head = self.head
        if inference:
            head = ACILClassifier.__new__(ACILClassifier)
            # What was learnt is shared: neither of the two is ever changed.
            head.__dict__.update(self.head.__dict__)
            head.images_ = {**self.head.images_, "tracked": []}
        with self._solving:
            save(head, path, inference=inference)

    def solved(self) -> ACILClassifier:
        """Return the head after computing what is derived from the sums; one thread does it, once."""
        with self._solving:
            if not self._solved.is_set():
                self.head.temperature_  # noqa: B018
                if self.judges:
                    # It needs the factor, which novelties are then computed with.
                    self.head._require_state().model.expected_leverage()
                self._solved.set()
        return self.head

    @property
    def totals(self) -> dict[str, int]:
        """Number of images of each class."""
        return dict(zip(self.head.classes_.tolist(), self.head.class_count_.tolist(), strict=True))

    def judge(
        self, features: npt.NDArray[np.float32], top: int, unknown_above: float | None
    ) -> list[tuple[str, bool, tuple[tuple[str, float], ...], float | None]]:
        """Return label, whether it is unknown, the likeliest classes and novelty of each row."""
        if not len(features):
            return []
        head = self.solved()
        probabilities = head.predict_proba(features)
        best = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
        novelties: list[float | None] = [None] * len(features)
        if self.judges:
            novelties = head.relative_novelty(features).tolist()
        classes = head.classes_
        judged = []
        for row, columns, novelty in zip(probabilities, best, novelties, strict=True):
            likeliest = tuple((str(classes[c]), float(row[c])) for c in columns)
            unknown = novelty is not None and unknown_above is not None and novelty > unknown_above
            judged.append((UNKNOWN if unknown else likeliest[0][0], unknown, likeliest, novelty))
        return judged
