"""What goes into an image classifier and what comes out of it: images, samples, reports, predictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from acil.core.classifier import ACILClassifier
from acil.core.files.header import in_order
from acil.core.inputs import Rows
from acil.errors import InputError


@dataclass(frozen=True)
class Samples:
    """Images as a model learns or forgets them."""

    features: npt.NDArray[np.float32]
    """Of shape (n, features)."""
    labels: npt.NDArray[np.str_]
    """Class of each image, "" without labels."""
    digests: tuple[str, ...]
    """Hash of the pixels of each image."""
    images: tuple[str, ...]
    """What each image is called."""
    skipped: tuple[str, ...]
    """Messages about files that could not be read."""
    identity: dict[str, Any] | None
    """Of the network that the features come from; None if that is not known."""
    source: str | None
    """The name that the network was opened by."""
    seconds: float
    """Spent on decoding and features."""
    columns: tuple[str, ...] | None = None
    """Names of the features; None if they have none."""

    @property
    def counts(self) -> dict[str, int]:
        """Number of images of each class, by name."""
        return _counted(self.labels.tolist())

    @property
    def names(self) -> list[str]:
        """Class of each of the digests."""
        found: list[str] = self.labels.tolist()
        return found

    def require_labels(self) -> Samples:
        """Return these samples, or raise if they have no labels."""
        if "" in self.names:
            raise InputError(
                "These features have no labels. Call the column of labels 'label' (in npz files the "
                "array 'labels'), or give one class for all (--class NAME)."
            )
        return self

    def rows_for(self, head: ACILClassifier) -> Rows:
        """Return the features as a head takes them: if both have names of columns, in its order."""
        names = getattr(head, "feature_names_in_", None)
        if names is None or self.columns is None:
            return Rows(self.features)
        learnt, place = set(names), {name: number for number, name in enumerate(self.columns)}
        lacking = [name for name in names if name not in place]
        strange = [name for name in self.columns if name not in learnt]
        if lacking or strange or len(names) != len(self.columns):
            said = [f"{name!r} is missing" for name in lacking[:1]]
            said += [f"{name!r} is not one of its columns" for name in strange[:1]]
            raise InputError(
                f"This model was learnt from {len(names)} columns, and these {len(self.columns)} are "
                f"others: {' and '.join(said)}. Give a file with the same columns, in any order."
            )
        return Rows(self.features[:, [place[name] for name in names]])

    def labels_for(self, head: ACILClassifier) -> npt.NDArray[Any]:
        """Return the labels as a head takes them: as numbers if those that it has learnt are."""
        known = getattr(head, "classes_", self.labels)
        try:
            return self.labels.astype(known.dtype) if known.dtype.kind in "if" else self.labels
        except ValueError:
            return self.labels  # which the head refuses in words

    def without(self, places: Sequence[int]) -> Samples:
        """Return the other samples."""
        left_out = set(places)
        kept = [i for i in range(len(self.digests)) if i not in left_out]
        return replace(
            self,
            features=self.features[kept],
            labels=self.labels[kept],
            digests=tuple(self.digests[i] for i in kept),
            images=tuple(self.images[i] for i in kept),
        )


@dataclass(frozen=True)
class Report:
    """What learning or forgetting did."""

    counts: dict[str, int]
    """Images of each class in this call."""
    totals: dict[str, int]
    """Images of each class in the model afterwards."""
    skipped: tuple[str, ...]
    """Messages about files that could not be read."""
    repeated: tuple[str, ...]
    """Images left out, because they were learnt before. Without others, the model is unchanged."""
    misplaced: tuple[str, ...]
    """Those of them that were learnt as another class. Forget them there, then learn them again."""
    feature_seconds: float
    """Spent on decoding and features."""
    head_seconds: float
    """Spent on the head."""
    twins: tuple[tuple[str, str], ...] = ()
    """Images left out because others of this call are the same, and these others."""

    def to_dict(self) -> dict[str, Any]:
        """Return the values as JSON has them."""
        return asdict(self)


@dataclass(frozen=True)
class Prediction:
    """What a model says of one image."""

    image: str
    """Path of the image, or its number for images given otherwise."""
    label: str
    """The likeliest class, or ``"unknown"``."""
    unknown: bool
    """Whether the image is unlike everything learnt."""
    top: tuple[tuple[str, float], ...]
    """The likeliest classes and their probabilities, best first."""
    novelty: float | None
    """Above 1 for 5 % of images of the classes learnt, and for others; None if the model cannot tell."""
    error: str | None = None
    """Why the image cannot be read; then it has no label."""

    def to_dict(self) -> dict[str, Any]:
        """Return the values as JSON has them."""
        top = [{"label": label, "probability": probability} for label, probability in self.top]
        return {**asdict(self), "top": top}


@dataclass(frozen=True)
class Evaluation:
    """How a model does on images whose classes are known."""

    classes: tuple[str, ...]
    """Of the model, in the order of the confusion matrix."""
    confusion: npt.NDArray[np.int64]
    """Images by their class (rows) and the likeliest class (columns)."""
    unknown: dict[str, int]
    """Images of each class that were called unknown; they count by their likeliest class above."""
    not_learnt: dict[str, int]
    """Images of classes that the model has not learnt. They count nowhere else."""
    not_learnt_unknown: int
    """How many of these were called unknown."""
    wrong: tuple[tuple[str, Prediction], ...]
    """True class and prediction of the images whose likeliest class is another, the surest first."""
    right: tuple[tuple[str, Prediction], ...]
    """The same of the other images of classes that the model has learnt, the most doubtful first."""
    skipped: tuple[str, ...]
    """Messages about files that could not be read."""

    @classmethod
    def of(
        cls, classes: Sequence[str], names: Sequence[str], predictions: Sequence[Prediction]
    ) -> Evaluation:
        """Count the predictions of a model of these classes, given the true name of each image."""
        readable = [pair for pair in zip(names, predictions, strict=True) if pair[1].error is None]
        place = {name: column for column, name in enumerate(classes)}
        learnt = [(name, found) for name, found in readable if name in place]
        others = [(name, found) for name, found in readable if name not in place]
        if not learnt:
            raise InputError("No image of a class that was learnt can be read. Give other images.")
        confusion = np.zeros((len(classes), len(classes)), dtype=np.int64)
        for name, found in learnt:
            confusion[place[name], place[found.top[0][0]]] += 1
        doubtful = sorted(learnt, key=lambda pair: pair[1].top[0][1])
        surest = sorted(learnt, key=lambda pair: -pair[1].top[0][1])
        return cls(
            tuple(classes),
            confusion,
            _counted(name for name, found in learnt if found.unknown),
            _counted(name for name, _ in others),
            sum(found.unknown for _, found in others),
            tuple((name, found) for name, found in surest if name != found.top[0][0]),
            tuple((name, found) for name, found in doubtful if name == found.top[0][0]),
            tuple(found.error for found in predictions if found.error is not None),
        )

    @property
    def images(self) -> int:
        """Number of images of classes that the model has learnt."""
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """Right images, in percent of those whose class the model has learnt."""
        return 100.0 * float(np.trace(self.confusion)) / self.images

    @property
    def per_class(self) -> dict[str, float]:
        """Right images of each class, in percent; classes without images are left out."""
        totals = self.confusion.sum(axis=1)
        return {
            name: 100.0 * float(self.confusion[i, i]) / float(totals[i])
            for i, name in enumerate(self.classes)
            if totals[i]
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the values as JSON has them."""
        return {
            "accuracy": self.accuracy,
            "images": self.images,
            "per_class": self.per_class,
            **vars(self),
            "confusion": self.confusion.tolist(),
            "wrong": [{"class": name, **found.to_dict()} for name, found in self.wrong],
            "right": [{"class": name, **found.to_dict()} for name, found in self.right],
        }


def _counted(names: Iterable[str]) -> dict[str, int]:
    counts = Counter(names)
    return {name: counts[name] for name in in_order(counts)}
