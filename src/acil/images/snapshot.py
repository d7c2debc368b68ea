"""One state of an image classifier: complete, solved, and never changed once it is made."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from acil.classifier import ACILClassifier
from acil.errors import UnsupportedError
from acil.images.tracking import Tracker
from acil.storage import pack, unpack
from acil.vision.listing import UNKNOWN

#: An image is unknown beyond this many times the novelty expected of images like those learnt. Chosen by
#: cross-validation on 300 training photographs: some 99 % of those held out lie below, some 90 % of
#: photographs of classes left out above.
UNKNOWN_ABOVE = 1.5


@dataclass(frozen=True)
class Snapshot:
    """What predictions need, ready to be used by any number of threads.

    Attributes
    ----------
    head : ACILClassifier
        Solved. Nothing may call a method of it that changes it.
    tracker : Tracker
    expected_novelty : float or None
        None for a head that can only predict.
    """

    head: ACILClassifier
    tracker: Tracker
    expected_novelty: float | None

    @classmethod
    def of(cls, head: ACILClassifier, tracker: Tracker, source: str | None) -> Snapshot:
        """Make a snapshot of a head that belongs to nobody else from now on."""
        head.images_ = {"source": source, "tracked": tracker.to_list()}
        # Everything that is computed when first needed is computed now.
        head.temperature_  # noqa: B018
        try:
            expected = head.expected_novelty()
            head.novelty(np.zeros((1, head.n_features_in_)))
        except UnsupportedError:
            expected = None
        return cls(head, tracker, expected)

    @property
    def source(self) -> str | None:
        """How the network was named when the model was made."""
        source: str | None = self.head.images_["source"]
        return source

    def twin(self) -> ACILClassifier:
        """Return a copy of the head, for changing."""
        return unpack(pack(self.head))

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
        probabilities = self.head.predict_proba(features)
        best = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
        novelties: list[float | None] = [None] * len(features)
        if self.expected_novelty is not None:
            novelties = (self.head.novelty(features) / self.expected_novelty).tolist()
        classes = self.head.classes_
        judged = []
        for row, columns, novelty in zip(probabilities, best, novelties, strict=True):
            likeliest = tuple((str(classes[c]), float(row[c])) for c in columns)
            unknown = novelty is not None and unknown_above is not None and novelty > unknown_above
            judged.append((UNKNOWN if unknown else likeliest[0][0], unknown, likeliest, novelty))
        return judged
