"""Labels and columns: the one place that turns one into the other."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.utils.validation import column_or_1d
from torch import Tensor

from acil.errors import InputError, InputTypeError
from acil.validation import input_errors

Labels = npt.NDArray[Any]

#: Longest label in characters: arrays of strings are as wide as the longest. A file takes no longer one.
MAX_LENGTH = 1024
#: What no text file can hold, and NumPy drops at the end of a string.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_KINDS = {"b": "bool", "i": "int", "u": "int", "f": "float", "U": "str"}


def check_labels(y: Any) -> Labels:
    """Return labels as an array of bool, int, float or str, of shape (n,)."""
    if y is None:
        raise InputError(
            "This ACILClassifier estimator requires y to be passed, but the target y is None."
        )
    with input_errors():
        if isinstance(y, Tensor):
            y = y.detach().cpu()
            y = (y.double() if y.is_floating_point() else y).numpy()
        elif hasattr(y, "to_numpy"):
            # Nullable integers and booleans would become floats on the way through scikit-learn.
            y = y.to_numpy()
        elif isinstance(y, list | tuple) and any(isinstance(label, str) for label in y):
            # NumPy would turn the numbers of a mixed list into text.
            y = np.array(y, dtype=object)
        plain = type(y) is np.ndarray and y.ndim == 1
        labels = _typed(y if plain else column_or_1d(y, warn=True))
        if labels.dtype.kind not in _KINDS:
            raise InputTypeError(
                f"Labels must be int, float, bool or str, got an array of dtype {labels.dtype}. "
                "Convert them, for example with y.astype(str)."
            )
        if labels.dtype.kind == "f" and not np.isfinite(labels).all():
            bad = "NaN" if np.isnan(labels).any() else "infinity"
            raise InputError(f"Input y contains {bad}. Remove these samples or name their class.")
        if labels.dtype.kind == "u":
            if labels.size and labels.max() > np.iinfo(np.int64).max:
                raise InputError(f"Labels must fit into int64, got {labels.max()}.")
            labels = labels.astype(np.int64)
        if labels.dtype.kind == "f" and (labels != np.round(labels)).any():
            # Not check_classification_targets: it warns of many classes, which are normal here.
            raise InputError(
                "Unknown label type: continuous. Float labels must be whole numbers; convert others, "
                "for example with y.astype(str)."
            )
    return labels


def label_kind(labels: Labels) -> str:
    """Return ``"int"``, ``"float"``, ``"bool"`` or ``"str"``."""
    return _KINDS[labels.dtype.kind]


def check_same_kind(labels: Labels, known: Labels) -> None:
    """Raise unless labels are of the type of those already known."""
    if label_kind(labels) != label_kind(known):
        raise InputError(
            f"Labels are of type {label_kind(labels)}, but this model has learnt labels of type "
            f"{label_kind(known)}. Convert them to the same type."
        )


def check_declared(classes: Any, labels: Labels) -> Labels:
    """Return the sorted classes that a call names, by ``classes`` or else by its labels."""
    seen = np.unique(labels)
    if classes is None:
        return _storable(seen)
    declared = _storable(np.unique(check_labels(classes)))
    check_same_kind(declared, labels)
    outside = np.setdiff1d(seen, declared)
    if outside.size:
        raise InputError(f"y has labels that are not in classes: {listed(outside)}.")
    return declared


def union(left: Labels, right: Labels) -> Labels:
    """Return all classes of both, sorted, of which the left ones are sorted already."""
    if len(left) and _found(left, np.searchsorted(left, right), right):
        return left
    # Concatenating widens fixed-width strings; assigning would cut them.
    return np.unique(np.concatenate([left, right]))


def columns_of(labels: Labels, classes: Labels) -> Tensor:
    """Return the column of each label, or raise if one is not among the (sorted) classes."""
    columns = np.searchsorted(classes, labels)
    if not len(labels) or (len(classes) and _found(classes, columns, labels)):
        return torch.from_numpy(columns)
    unknown = np.setdiff1d(labels, classes)
    raise InputError(f"Labels that were never learnt: {listed(unknown)}. Known: {listed(classes)}.")


def _found(classes: Labels, columns: npt.NDArray[np.int64], labels: Labels) -> bool:
    """Say whether the label of each column is the one that was looked for."""
    return bool((classes[np.minimum(columns, len(classes) - 1)] == labels).all())


def listed(labels: Labels, most: int = 8) -> str:
    """Return labels as text, the first few of them."""
    shown = ", ".join(repr(label) for label in labels[:most].tolist())
    return shown + (f" and {len(labels) - most} more" if len(labels) > most else "")


def _storable(labels: Labels) -> Labels:
    """Return labels; raise if they are text that no file could keep."""
    for label in labels.tolist() if labels.dtype.kind in "UO" else ():
        if len(label) > MAX_LENGTH or _UNSTORABLE.search(label):
            raise InputError(
                f"The label {label[:40]!r} cannot be stored: labels have at most {MAX_LENGTH} "
                "characters, and neither NUL nor lone surrogates. Rename the class."
            )
    return labels


def _typed(y: Labels) -> Labels:
    """Give labels of dtype object the type that all of them share."""
    if y.dtype.kind == "T":
        y = y.astype(object)
    if y.dtype.kind != "O":
        return y
    if all(isinstance(label, str) for label in y):
        return _storable(y).astype(str)
    accepted = {np.bool_: bool | np.bool_, np.int64: int | np.integer, np.float64: float | np.floating}
    for dtype, kinds in accepted.items():
        if all(isinstance(label, kinds) for label in y):
            return y.astype(dtype)
    found = sorted({type(label).__name__ for label in y})
    raise InputTypeError(
        f"Labels must be all int, all float, all bool or all str, got {', '.join(found)}."
    )
