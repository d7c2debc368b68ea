"""`RiverClassifier`: an `ACILClassifier` for streams of dicts, as the package river has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone

from acil.classifier import ACILClassifier
from acil.errors import InputError, MissingExtraError
from acil.extras import install

try:
    from river.base import Classifier
except ImportError:  # told when it is used
    Classifier = None


class RiverClassifier(Classifier or object):  # type: ignore[misc]
    """A classifier of river that learns one sample after another and equals learning all at once.

    Parameters
    ----------
    model : ACILClassifier
        Learns what this one is given. New classes may come at any time.

    Notes
    -----
    The first sample decides which features there are. One that is missing later counts as 0; one that is
    new is an error, because the sums have no column for it.
    """

    def __init__(self, model: ACILClassifier) -> None:
        if Classifier is None:
            raise MissingExtraError(
                f"RiverClassifier needs the package river. Install it with: {install('river')}"
            )
        if model.__sklearn_is_fitted__():
            raise InputError("Give a model that has learnt nothing: it does not know names of features.")
        self.model = model
        self._features: list[Any] | None = None

    @property
    def _multiclass(self) -> bool:
        return True

    def clone(self, new_params: dict[str, Any] | None = None, **options: Any) -> RiverClassifier:
        """Return one with the same settings that has learnt nothing; river's options are ignored."""
        return type(self)((new_params or {}).get("model") or clone(self.model))

    def learn_one(self, x: dict[Any, float], y: Any) -> None:
        """Learn one sample: the number of each feature, and the label."""
        row = self._row(x)
        self.model.partial_fit(row, np.array([y]))
        self._features = self._features or list(x)

    def predict_proba_one(self, x: dict[Any, float], **options: Any) -> dict[Any, float]:
        """Return the probability of each class; nothing before the first sample. Options are ignored."""
        if self._features is None:
            return {}
        probabilities = self.model.predict_proba(self._row(x))[0].tolist()
        return dict(zip(self.model.classes_.tolist(), probabilities, strict=True))

    def _row(self, x: dict[Any, float]) -> npt.NDArray[np.float64]:
        names = self._features or list(x)
        if new := x.keys() - names:
            raise InputError(f"The feature {new.pop()!r} was not in the first sample. Leave it out.")
        return np.array([[float(x.get(name, 0.0)) for name in names]])
