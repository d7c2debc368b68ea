"""Accuracy on images that are never learnt, before and after each change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from acil.images import Samples
from acil.images.snapshot import Snapshot


@dataclass(frozen=True)
class Measured:
    """How one state of the model does.

    Attributes
    ----------
    names : ndarray of shape (n,), str
        True class of each image.
    known, right : ndarray of shape (n,), bool
        Whether the model has learnt that class, and whether it is the likeliest.
    """

    names: npt.NDArray[np.str_]
    known: npt.NDArray[np.bool_]
    right: npt.NDArray[np.bool_]

    def to_dict(self) -> dict[str, Any]:
        """Return accuracy in percent over the classes learnt, the number of images, and each class."""
        classes = sorted(set(self.names[self.known].tolist()))
        return {
            "accuracy": _percent(self.right, self.known),
            "images": int(self.known.sum()),
            "per_class": {name: _percent(self.right, self.names == name) for name in classes},
        }


class HeldOut:
    """Features of held-out images, ready to be measured with any state of the model.

    Parameters
    ----------
    samples : Samples
    """

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def measure(self, snapshot: Snapshot | None) -> Measured:
        """Return how a state does; None is a model that knows nothing yet."""
        names = self._samples.labels
        if snapshot is None:
            nothing = np.zeros(len(names), dtype=np.bool_)
            return Measured(names, nothing, nothing)
        found = snapshot.head.predict(self._samples.features)
        return Measured(names, np.isin(names, snapshot.head.classes_), names == found)


def compared(before: Measured, after: Measured) -> dict[str, Any]:
    """Return accuracies before and after a change, and what became of the classes known before it.

    Parameters
    ----------
    before, after : Measured
        On the same images.

    Returns
    -------
    dict
        ``before`` and ``after`` over the classes known at each time; ``kept`` over those known at both:
        ``accuracy_before``, ``accuracy_after``, ``images``, and ``lost``, the number of images that were
        right before and are not now.
    """
    kept = before.known & after.known
    return {
        "before": before.to_dict(),
        "after": after.to_dict(),
        "kept": {
            "accuracy_before": _percent(before.right, kept),
            "accuracy_after": _percent(after.right, kept),
            "images": int(kept.sum()),
            "lost": int((kept & before.right & ~after.right).sum()),
        },
    }


def _percent(right: npt.NDArray[np.bool_], among: npt.NDArray[np.bool_]) -> float | None:
    return None if not among.any() else 100.0 * float((right & among).sum()) / float(among.sum())
