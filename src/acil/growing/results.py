"""What comes out of a classifier of images or texts: reports, predictions, evaluations."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from acil.encoders.samples import counted
from acil.errors import InputError

#: What a report shows of a sample, by what it is called: a small JPEG, or a text, or nothing (None).
Shown = Callable[[str], bytes | str | None]


@dataclass(frozen=True)
class Report:
    """What learning or forgetting did."""

    counts: dict[str, int]
    """Images of each class in this call."""
    totals: dict[str, int]
    """Images of each class in the model afterwards."""
    skipped: tuple[str, ...] = ()
    """Messages about files that could not be read."""
    repeated: tuple[str, ...] = ()
    """Images left out, because they were learnt before. Without others, the model is unchanged."""
    misplaced: tuple[str, ...] = ()
    """Those of them that were learnt as another class. Forget them there, then learn them again."""
    feature_seconds: float = 0.0
    """Spent on decoding and features."""
    head_seconds: float = 0.0
    """Spent on the head."""
    twins: tuple[tuple[str, str], ...] = ()
    """Images left out because others of this call are the same, and these others."""
    duplicates: tuple[str, ...] = ()
    """Texts that come more than once in this call. All of them count."""
    contradictions: tuple[str, ...] = ()
    """Texts that come under several classes in this call. They count for each of these."""

    def to_dict(self) -> dict[str, Any]:
        """Return the values as JSON has them."""
        return asdict(self)


@dataclass(frozen=True)
class Prediction:
    """What a model says of one image or text."""

    image: str
    """Path of the image, or its number for images given otherwise; or the text."""
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
    given: float | None = None
    """Probability of the class that was given as the true one; None if none was, or it is not learnt."""
    thing: str = "image"
    """What the sample is: "image" or "text"."""

    @property
    def contradiction(self) -> float:
        """How much likelier the likeliest class is than the one that was given, as a logarithm."""
        if self.given is None:
            return 0.0
        return math.log(self.top[0][1] / max(self.given, 1e-300))

    @property
    def closeness(self) -> float:
        """How close the second class comes to the first, from 0 to 1: what a label would decide."""
        return self.top[1][1] / self.top[0][1] if len(self.top) > 1 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the values as JSON has them."""
        top = [{"label": label, "probability": probability} for label, probability in self.top]
        values = {**asdict(self), "top": top}
        if self.given is None:
            del values["given"]
        return {values.pop("thing"): values.pop("image"), **values}


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
    """True class and prediction of the images whose likeliest class is another; those first of which the
    model is surest that it is not the one given, which often have a wrong label."""
    right: tuple[tuple[str, Prediction], ...]
    """The same of the other images of classes that the model has learnt, the most doubtful first."""
    skipped: tuple[str, ...]
    """Messages about files that could not be read."""
    strange: tuple[tuple[str, Prediction], ...] = ()
    """True class and prediction of the images of classes that the model has not learnt."""
    unknown_above: float | None = None
    """Novelty beyond which images were called unknown; None if none was."""
    shown: Shown | None = field(default=None, repr=False)
    """What a report shows of a sample of this name; None shows the name alone."""

    @classmethod
    def of(
        cls,
        classes: Sequence[str],
        names: Sequence[str],
        predictions: Sequence[Prediction],
        unknown_above: float | None = None,
        shown: Shown | None = None,
        skipped: Sequence[str] = (),
    ) -> Evaluation:
        """Count the predictions of a model of these classes, given the true name of each image.

        ``skipped`` are messages about samples that were left out before.
        """
        readable = [pair for pair in zip(names, predictions, strict=True) if pair[1].error is None]
        place = {name: column for column, name in enumerate(classes)}
        learnt = [(name, prediction) for name, prediction in readable if name in place]
        others = [(name, prediction) for name, prediction in readable if name not in place]
        if not learnt:
            raise InputError("No image of a class that was learnt can be read. Give other images.")
        confusion = np.zeros((len(classes), len(classes)), dtype=np.int64)
        for name, prediction in learnt:
            confusion[place[name], place[prediction.top[0][0]]] += 1
        doubtful = sorted(learnt, key=lambda pair: pair[1].top[0][1])
        mislabelled = sorted(learnt, key=lambda pair: -pair[1].contradiction)
        return cls(
            tuple(classes),
            confusion,
            counted(name for name, prediction in learnt if prediction.unknown),
            counted(name for name, _ in others),
            sum(prediction.unknown for _, prediction in others),
            tuple(
                (name, prediction) for name, prediction in mislabelled if name != prediction.top[0][0]
            ),
            tuple((name, prediction) for name, prediction in doubtful if name == prediction.top[0][0]),
            (
                *skipped,
                *(prediction.error for prediction in predictions if prediction.error is not None),
            ),
            tuple(others),
            unknown_above,
            shown,
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
    def interval(self) -> tuple[float, float]:
        """Where the accuracy of such images lies with a probability of 95 % (Wilson), in percent."""
        from scipy.stats import binomtest

        bounds = binomtest(int(np.trace(self.confusion)), self.images).proportion_ci(method="wilson")
        return 100.0 * float(bounds.low), 100.0 * float(bounds.high)

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
        values = {name: value for name, value in vars(self).items() if name not in ("strange", "shown")}
        thing = (*self.wrong, *self.right)[0][1].thing
        return {
            "accuracy": self.accuracy,
            "interval": self.interval,
            f"{thing}s": self.images,
            "per_class": self.per_class,
            **values,
            "confusion": self.confusion.tolist(),
            "wrong": [{"class": name, **prediction.to_dict()} for name, prediction in self.wrong],
            "right": [{"class": name, **prediction.to_dict()} for name, prediction in self.right],
        }

    def to_html(self, path: str | os.PathLike[str], name: str = "") -> None:
        """Write a page about it, in one file that only its owner may read: it has samples in it.

        ``name`` says which model it is about. A file that is there is replaced.
        """
        from acil.growing.report import write_report

        write_report(self, path, name)
