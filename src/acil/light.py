"""Prediction with NumPy alone: from the file of a classifier, without torch and scikit-learn.

For small machines, which only predict. The scores are those of `acil.load` of the same file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from acil.core.files.header import check_tensor, opened
from acil.errors import InputError

Array = npt.NDArray[Any]
#: Those of `acil.core.expansion`.
_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda rows: np.maximum(rows, 0.0),
    "tanh": np.tanh,
    "gelu": lambda rows: rows * (0.5 + 0.5 * _erf(rows / math.sqrt(2))),
    "identity": lambda rows: rows,
}
#: Numbers of expanded rows that are in memory at a time.
_BLOCK = 2**22


class LightClassifier:
    """What a file of a classifier says of features; made by `load`.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, sorted.
    n_features_in_ : int
        Number of features of X.
    backbone_ : dict or None
        The network whose features the classifier has learnt.
    """

    classes_: Array
    n_features_in_: int
    backbone_: dict[str, Any] | None

    def __init__(self, header: dict[str, Any], tensors: dict[str, Array]) -> None:
        self.classes_ = np.array(header["classes"], dtype=header["classes_dtype"])
        self.n_features_in_, self.backbone_ = header["n_features"], header["backbone"]
        self._names, self._temperature = header["feature_names"], header["temperature"]
        self._hotter = (header["calibration"] or {"hotter": 0.0})["hotter"]
        self._activation = _ACTIVATIONS[header["activation"]]
        self._clip_norm, self._empty = header["clip_norm"], np.array(header["counts"]) == 0
        self._scaling, self._bias = tensors.get("scaling"), tensors.get("bias", np.zeros(1))
        self._projection, self._linear = tensors.get("projection"), header["linear"]
        self._coef, self._intercept, self._mixing = tensors["coef"].T, tensors["intercept"], None
        if "mixing" in tensors:
            self._mixing, self._intercept = tensors["mixing"][:-1], tensors["mixing"][-1]
        elif header["class_balance"] is True and header["weights"] is not None:
            # The rule of format 5: targets of the height 1 / weight
            weights = np.array(header["weights"])
            heights = np.where(weights > 0, weights[weights > 0].mean() / np.maximum(weights, 1e-300), 1)
            self._coef, self._intercept = self._coef * heights, self._intercept * heights

    def decision_function(self, X: Any) -> Array:
        """Return the scores of each class, as `ACILClassifier.decision_function` does.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of shape (n, n_classes), or (n,) for two classes
        """
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict(self, X: Any) -> Array:
        """Return the label with the highest score of each row."""
        labels: Array = self.classes_[self._scores(X).argmax(axis=1)]
        return labels

    def predict_proba(self, X: Any) -> Array:
        """Return class probabilities, of shape (n, n_classes)."""
        scores = self._scores(X)
        # As `acil.core.scores.heat` says
        heat = 1 + self._hotter * scores.max(axis=1, keepdims=True).clip(min=0)
        heated = scores / (self._temperature * heat)
        shares = np.exp(heated - heated.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        return np.asarray(shares)

    def _scores(self, X: Any) -> Array:
        rows = self._checked(X)
        step = max(1, _BLOCK // max(self._coef.shape))
        blocks = [self._expanded(rows[i : i + step]) @ self._coef for i in range(0, len(rows), step)]
        scores: Array = np.concatenate(blocks)
        scores = (scores if self._mixing is None else scores @ self._mixing) + self._intercept
        if not np.isfinite(scores).all():
            raise InputError("The scores of these rows overflow: their features are too large.")
        scores[:, self._empty] = -np.inf
        return scores

    def _expanded(self, rows: Array) -> Array:
        if self._scaling is not None:
            rows = (rows - self._scaling[0]) / self._scaling[1]
        if self._projection is not None:
            units = self._activation(rows @ self._projection + self._bias)
            rows = np.hstack([self._linear * rows, units]) if self._linear else units
        if self._clip_norm is not None:
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
            rows = rows * (self._clip_norm / np.maximum(lengths, self._clip_norm))
        return rows

    def _checked(self, X: Any) -> Array:
        names = [str(name) for name in getattr(X, "columns", self._names or ())]
        rows = np.asarray(X, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.n_features_in_ or not len(rows):
            raise InputError(
                f"X must be rows of {self.n_features_in_} features, at least one. Got an array of shape "
                f"{rows.shape}."
            )
        if self._names is not None and names != self._names:
            raise InputError(
                "The features of X have other names than those that were learnt, or another order. Give "
                "the same ones."
            )
        if not np.isfinite(rows).all():
            raise InputError("X has values that are NaN or infinite. Remove these rows.")
        return rows


def load(path: str | os.PathLike[str]) -> LightClassifier:
    """Read a model file, full or for inference, for prediction with NumPy alone.

    A file that is missing, damaged, hostile or written by another version is a `ModelFileError`. Of a
    model of images or texts, what is given later are the features of its network.

    Parameters
    ----------
    path : str or path-like

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from acil import ACILClassifier, light, save
    >>> X, y = np.eye(4), np.array(["cat", "dog", "cat", "dog"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.acil")
    ...     save(ACILClassifier(expansion_size=8, gamma=1.0).fit(X, y), path, inference=True)
    ...     light.load(path).predict(X[:2])
    array(['cat', 'dog'], dtype='<U3')
    """
    with opened(path) as (file, header):
        tensors = {}
        for name in file.layouts.keys() - {"gram", "moment", "total", "rfaum"}:
            stored = file.array(name)
            check_tensor(stored, name, header)
            tensors[name] = stored.astype(np.float64)
        return LightClassifier(header, tensors)


def _erf(values: Array) -> Array:
    # NumPy has none.
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(values), dtype=np.float64)
