"""What comes out of an image classifier: reports, predictions, evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from acil.encoders.samples import counted
from acil.errors import InputError


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
            counted(name for name, found in learnt if found.unknown),
            counted(name for name, _ in others),
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
