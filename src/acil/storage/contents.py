"""A model as a file holds it: the text of its header, and tensors."""

from __future__ import annotations

import json
import math
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch
from torch import Tensor

import acil
from acil.analytic import AnalyticModel, Frozen, Recursion, Ridge
from acil.classifier import ACILClassifier, State
from acil.errors import InputError, UnsupportedError
from acil.header import FORMAT_VERSION, InvalidFileError, parse_header
from acil.labels import Labels
from acil.modelfile import MAX_HEADER_BYTES, check_layouts, checksum
from acil.storage.tensors import layouts, pack_lower, require_finite
from acil.validation import check_parameters


def content_of(
    clf: ACILClassifier, inference: bool, packed: bool = False
) -> tuple[str, dict[str, Tensor]]:
    """Return header and tensors of a model, solved and checked.

    Parameters
    ----------
    clf : ACILClassifier
        Fitted.
    inference : bool
        Only what prediction needs.
    packed : bool
        For keeping it inside something else: what takes as long to measure as to solve is left out.
    """
    if not isinstance(clf, ACILClassifier):
        raise InputError(f"save needs an ACILClassifier, got {type(clf).__name__}.")
    check_parameters(clf)
    with clf._locked() as state:
        if isinstance(state.model.head, Frozen) and not inference:
            raise UnsupportedError(
                "This model was loaded for inference and has no sums to save. Save it with "
                "inference=True."
            )
        state.model.solve_again()
        tensors = _tensors(state.model, inference)
        checksums = {} if packed else {name: checksum(t.numpy()) for name, t in tensors.items()}
        text = _header_text(clf, state, inference, packed, checksums)
    try:
        header = parse_header(text, packed)
        check_layouts(header, layouts(tensors))
        for name, tensor in tensors.items():
            require_finite(name, tensor)
    except InvalidFileError as error:
        # A file that could not be loaded again must not replace one that can.
        raise InputError(
            f"This model cannot be saved, because it could not be loaded: {error}"
        ) from None
    return text, tensors


def _header_text(
    clf: ACILClassifier, state: State, inference: bool, packed: bool, checksums: dict[str, int]
) -> str:
    model, head = state.model, state.model.head
    names = getattr(clf, "feature_names_in_", None)
    classes, classes_dtype = _storable(state.classes)
    gamma, unit = model.gamma(), None
    if isinstance(head, Ridge):
        unit = float(head.sums.gram.diagonal().mean())
    header = {
        "format_version": FORMAT_VERSION,
        "kind": "inference" if inference else "full",
        "parameters": _parameters(clf, state.seed),
        "random_state": state.seed,
        "n_features": model.expansion.in_features,
        "feature_names": None if names is None else [str(name) for name in names],
        "size": model.expansion.size,
        "activation": model.expansion.activation,
        "solver": clf.solver if isinstance(head, Frozen) else head.solver,
        "dtype": model.precision.name,
        "fit_intercept": getattr(head, "intercept", False)
        if isinstance(head, Ridge)
        else bool(clf.fit_intercept),
        "class_balance": model.balanced,
        "classes": classes,
        "classes_dtype": classes_dtype,
        "counts": head.counts.tolist(),
        "weights": None if inference or isinstance(head, Frozen) else head.weights.tolist(),
        "gamma": gamma,
        "gamma_chosen": isinstance(head, Ridge) and head.gamma is None,
        "gamma_relative": None if unit is None else _finite(gamma, unit),
        "condition": None if packed or not isinstance(head, Ridge) else _finite(head.condition()),
        "temperature": None if packed else model.temperature(),
        "n_samples": int(head.counts.sum()),
        "backbone": getattr(clf, "backbone_", None),
        "images": getattr(clf, "images_", None),
        "fingerprint": model.expansion.fingerprint(),
        "checksums": checksums,
        "versions": _versions(),
    }
    try:
        text = json.dumps(header, allow_nan=False)
        same = json.loads(text)["backbone"] == header["backbone"]
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"This model cannot be saved: its header is not JSON ({error}).") from error
    if not same:
        raise InputError(
            "backbone_ would not be the same after loading: it must be a dict of strings, numbers, "
            f"booleans, None, lists and dicts with string keys. Got {header['backbone']!r}."
        )
    if len(json.dumps(text)) + 10_000 > MAX_HEADER_BYTES:
        raise InputError(
            f"The names of classes, features and backbone take {len(text)} bytes, but a file can hold "
            f"{MAX_HEADER_BYTES}. Use shorter names."
        )
    return text


def _finite(value: float, unit: float = 1.0) -> float | None:
    """Return value / unit, or None where that is not a number for JSON."""
    ratio = value / unit if unit else math.inf
    return ratio if math.isfinite(ratio) else None


def _parameters(clf: ACILClassifier, seed: int) -> dict[str, Any]:
    """Return the constructor arguments as JSON has them; all are valid, but some may be NumPy's."""
    size, gamma, device = clf.expansion_size, clf.gamma, clf.device
    return {
        "expansion_size": None if size is None else int(size),
        "gamma": "auto" if isinstance(gamma, str) else float(gamma),
        "activation": str(clf.activation),
        "solver": str(clf.solver),
        "dtype": str(clf.dtype),
        "random_state": seed,
        "device": "auto" if device == "auto" else str(torch.device(device)),
        "fit_intercept": bool(clf.fit_intercept),
        "class_balance": bool(clf.class_balance),
    }


def _storable(classes: Labels) -> tuple[list[Any], str]:
    """Return classes as JSON has them and the name of their NumPy type."""
    labels: list[Any] = classes.tolist()
    if classes.dtype.kind == "U":
        # The width may be that of a class that has been forgotten.
        return labels, f"<U{max(1, max(map(len, labels)))}"
    if classes.dtype.itemsize > 8:
        return classes.astype(np.float64).tolist(), "float64"
    return labels, classes.dtype.name


def _versions() -> dict[str, str]:
    versions = {"acil": acil.__version__}
    for package in ("torch", "numpy", "scikit-learn"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "unknown"
    return versions


def _tensors(model: AnalyticModel, inference: bool) -> dict[str, Tensor]:
    head, tensors = model.head, {}
    if inference or isinstance(head, Frozen):
        # With class balancing, as used for scoring
        W, intercept, _ = model.weights()
    else:
        W, intercept = head.coefficients()
        if isinstance(head, Recursion):
            tensors = {"rfaum": pack_lower(head.R)}
        else:
            tensors = {"gram": pack_lower(head.sums.gram), "moment": head.sums.moment}
    tensors |= {"coef": W.mT, "intercept": intercept}
    if model.expansion.projection is not None:
        tensors["projection"] = model.expansion.projection
    return {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
