"""Saving and loading models: one safetensors file, no pickle, bit-equal sums."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import sklearn
import torch
from torch import Tensor

import acil
from acil.analytic import PRECISIONS, AnalyticModel, Expansion, Frozen, Recursion, Ridge, Sums
from acil.analytic.linalg import mirror_, panels
from acil.analytic.ridge import Solution
from acil.analytic.sums import Matrix
from acil.calibration import Calibration
from acil.classifier import ACILClassifier
from acil.errors import InputError, ModelFileError, UnsupportedError
from acil.modelfile.header import (
    CHECKSUM_KEY,
    MAX_HEADER_BYTES,
    METADATA_KEY,
    check_header,
    check_layouts,
    checksum,
    opened,
    parse_header,
)
from acil.modelfile.schema import FORMAT_VERSION, InvalidFileError
from acil.modelfile.writing import write_tensors
from acil.scores import MIXERS, balance_factors
from acil.state import State
from acil.validation import Labels, check_parameters, resolve_device

logger = logging.getLogger(__name__)

_HEADER = "header"
#: Whose versions a file names.
_PACKAGES = {"acil": acil, "torch": torch, "numpy": np, "scikit-learn": sklearn}
#: Returns a tensor as a NumPy array, by its name.
Get = Callable[[str], Any]
_TYPE_NAMES = {torch.float32: "F32", torch.float64: "F64"}


def save(clf: ACILClassifier, path: str | os.PathLike[str], *, inference: bool = False) -> None:
    """Write a model to one file, completely or not at all.

    The model is solved first, so that the weights in the file belong to the sums in it.

    Parameters
    ----------
    clf : ACILClassifier
        Fitted.
    path : str or path-like
        A file there is replaced.
    inference : bool, default=False
        Store only what prediction needs. Such a model cannot learn, forget or merge. γ and what it
        follows from are left out, because with them the weights give back single samples.

    Raises
    ------
    ModelFileError
        If the file cannot be written; a file that was there is unchanged.

    Examples
    --------
    >>> import tempfile, os
    >>> import numpy as np
    >>> from acil import ACILClassifier, load, save
    >>> X, y = np.eye(4), np.array(["cat", "dog", "cat", "dog"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.acil")
    ...     save(ACILClassifier(expansion_size=8, gamma=1.0).fit(X, y), path)
    ...     load(path).predict(X[:2])
    array(['cat', 'dog'], dtype='<U3')
    """
    text, tensors = _content(clf, inference)
    write_tensors(path, tensors, {METADATA_KEY: text, CHECKSUM_KEY: str(checksum(text.encode()))})
    _advise(clf)


def load(
    path: str | os.PathLike[str], *, inference: bool = False, device: str | None = None
) -> ACILClassifier:
    """Read a model from a file.

    Parameters
    ----------
    path : str or path-like
    inference : bool, default=False
        Read only what prediction needs, which is a small part of a full model.
    device : str, optional
        Where to put the model, instead of the ``device`` it was made with.

    Returns
    -------
    ACILClassifier
        Its sums are bit-equal to those saved; it goes on learning as if it had never been saved.

    Raises
    ------
    ModelFileError
        If the file is missing, damaged, hostile or written by another version.
    """
    with opened(path) as (file, header, found):
        return _assembled(file.get_tensor, header, found, inference, device)


def _advise(clf: ACILClassifier) -> None:
    """Warn if few samples lie between two saved states: whoever has both files can recover them."""
    with clf._locked() as state:
        between, d = state.changes or 0, state.model.expansion.size
        private = state.release is not None and state.release["private"]
        clf._state = replace(state, changes=0)
    if 0 < between < d and not private:
        logger.warning(
            "Samples between this state and the one saved or loaded before: %d, less than the width %d. "
            "Whoever has both files can recover them: see docs/privacy.md.",
            between,
            d,
        )


def pack(clf: ACILClassifier) -> dict[str, Any]:
    """Return what a full model file of a model would hold: tensors, and its header as text.

    For keeping a model inside something else; `unpack` makes the model again. Condition number and
    temperature, which take long to measure, are left out.
    """
    text, tensors = _content(clf, inference=False, packed=True)
    return {**tensors, _HEADER: text}


def unpack(content: Mapping[str, Any], device: str | None = None) -> ACILClassifier:
    """Make the model again that `pack` described, on its device or another."""
    tensors = {name: value for name, value in content.items() if isinstance(value, Tensor)}
    try:
        header = parse_header(content[_HEADER], packed=True)
        layouts = {n: (_TYPE_NAMES.get(t.dtype, "?"), tuple(t.shape)) for n, t in tensors.items()}
        check_layouts(header, layouts)
        get = lambda name: tensors[name].cpu().numpy()  # noqa: E731
        return _assembled(get, header, tensors, False, device)
    except (InvalidFileError, KeyError) as error:
        raise ModelFileError(f"This is not the content of a model: {error}.") from None


def pack_lower(matrix: Tensor) -> Tensor:
    """Return the lower triangle of a matrix row by row, of shape (d (d + 1) / 2,), on the CPU.

    >>> pack_lower(torch.tensor([[1.0, torch.nan], [2.0, 3.0]]))
    tensor([1., 2., 3.])
    """
    d = matrix.shape[0]
    packed = torch.empty(d * (d + 1) // 2, dtype=matrix.dtype)
    for start, stop in panels(d):
        panel = matrix[start:stop, :stop].cpu()
        for row in range(start, stop):
            packed[_place(row)] = panel[row - start, : row + 1]
    return packed


def unpack_lower_(packed: Tensor, matrix: Tensor) -> Tensor:
    """Fill the lower triangle of a matrix with what `pack_lower` has returned, in place."""
    for start, stop in panels(matrix.shape[0]):
        panel = torch.zeros(stop - start, stop, dtype=packed.dtype)
        for row in range(start, stop):
            panel[row - start, : row + 1] = packed[_place(row)]
        matrix[start:stop, :stop] = panel.to(matrix.device)
    return matrix


def _place(row: int) -> slice:
    first = row * (row + 1) // 2
    return slice(first, first + row + 1)


def _content(
    clf: ACILClassifier, inference: bool, packed: bool = False
) -> tuple[str, dict[str, Tensor]]:
    """Return the header as text and the tensors of a model, solved and checked."""
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
        tensors = _tensors(state, inference, packed)
        checksums = {} if packed else {name: checksum(t.numpy()) for name, t in tensors.items()}
        header = _header(clf, state, inference, packed, checksums)
    try:
        # A file that could not be loaded again must not replace one that can.
        for name, tensor in tensors.items():
            _require_finite(name, tensor)
        check_header(header, packed)
        text = json.dumps(header, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"This model cannot be saved, for it could not be loaded: {error}") from None
    if len(json.dumps(text)) + 10_000 > MAX_HEADER_BYTES:
        raise InputError(
            f"The header of this model, with the names of classes and the hashes of images, has "
            f"{len(text)} bytes, but a file can hold {MAX_HEADER_BYTES}. Use shorter names."
        )
    return text, tensors


def _header(
    clf: ACILClassifier, state: State, inference: bool, packed: bool, checksums: dict[str, int]
) -> dict[str, Any]:
    model, head = state.model, state.model.head
    ridge = head if isinstance(head, Ridge) and not inference else None
    names = getattr(clf, "feature_names_in_", None)
    classes, classes_dtype = _storable(state.classes)
    gamma = None if inference else float(model.gamma())
    relative = math.inf
    if ridge is not None and gamma is not None:
        relative = gamma / (float(ridge.sums.gram.diagonal().mean()) or math.nan)
    temperature = None if packed else float(state.temperature())
    if inference and temperature is not None:
        # γ follows from all its digits, the weights and the counts.
        temperature = float(f"{temperature:.1e}")
    return {
        "format_version": FORMAT_VERSION,
        "kind": "inference" if inference else "full",
        "parameters": _parameters(clf, state.seed, inference),
        "n_features": model.expansion.in_features,
        "feature_names": None if names is None else [str(name) for name in names],
        "size": model.expansion.size,
        "activation": model.expansion.activation,
        "solver": str(clf.solver) if isinstance(head, Frozen) else head.solver,
        "dtype": model.precision.name,
        "fit_intercept": head.intercept if isinstance(head, Ridge) else bool(clf.fit_intercept),
        "class_balance": model.mixer is MIXERS["balanced"],
        "clip_norm": model.expansion.clip_norm,
        "scores": "discriminant" if model.mixer is MIXERS["discriminant"] else "ridge",
        "standardize": state.scaling is not None,
        "classes": classes,
        "classes_dtype": classes_dtype,
        "counts": head.counts.tolist(),
        "weights": None if inference else model.learner.weights.tolist(),
        "gamma": gamma,
        "gamma_chosen": ridge is not None and ridge.gamma is None,
        "gamma_relative": _finite(relative),
        "condition": None if packed or ridge is None else _finite(ridge.condition()),
        "temperature": temperature,
        "calibration": state.calibration and state.calibration.to_dict(inference),
        "backbone": getattr(clf, "backbone_", None),
        "images": getattr(clf, "images_", None),
        "release": state.release,
        "fingerprint": model.expansion.fingerprint(),
        "checksums": checksums,
        "versions": {name: str(module.__version__) for name, module in _PACKAGES.items()},
    }


def _finite(value: float) -> float | None:
    """Return a number, or None for one that JSON does not have."""
    return value if math.isfinite(value) else None


def _parameters(clf: ACILClassifier, seed: int, inference: bool) -> dict[str, Any]:
    """Return the constructor arguments as JSON has them; all are valid, but some may be NumPy's."""
    found = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in clf.get_params().items()
    }
    gamma = found["gamma"] if isinstance(found["gamma"], str) else float(found["gamma"])
    # The recursion takes no "auto".
    hidden = {"gamma": "auto", "solver": "gram"} if inference else {}
    return found | {"gamma": gamma, "random_state": seed, "device": str(clf.device)} | hidden


def _storable(classes: Labels) -> tuple[list[Any], str]:
    """Return classes as JSON has them and the name of their NumPy type."""
    labels: list[Any] = classes.tolist()
    if classes.dtype.kind == "U":
        # The width may be that of a class that has been forgotten.
        return labels, f"<U{max(1, max(map(len, labels)))}"
    if classes.dtype.itemsize > 8:
        return classes.astype(np.float64).tolist(), "float64"
    return labels, classes.dtype.name


def _tensors(state: State, inference: bool, packed: bool) -> dict[str, Tensor]:
    model, head, tensors = state.model, state.model.head, {}
    if inference or isinstance(head, Frozen):
        # As used for scoring
        W, intercept, _ = model.weights()
    else:
        W, intercept = head.coefficients()
        if isinstance(head, Recursion):
            tensors = {"rfaum": pack_lower(head.R)}
        else:
            tensors = {"gram": pack_lower(head.sums.gram), "moment": head.sums.moment}
        if model.mixer is MIXERS["discriminant"] and not packed:
            # Else whoever reads the file had to factorize before the first prediction.
            mixing, intercepts = cast(tuple[Tensor, Tensor], model.mixing())
            tensors["mixing"] = torch.cat([mixing, intercepts.unsqueeze(0)])
    if state.scaling is not None:
        tensors["scaling"] = state.scaling
    tensors |= {"coef": W.mT, "intercept": intercept}
    if model.expansion.projection is not None:
        tensors["projection"] = model.expansion.projection
    return {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}


def _assembled(
    get: Get,
    header: dict[str, Any],
    names: Collection[str],
    inference: bool,
    device: str | None,
) -> ACILClassifier:
    """Return the model of a checked header and of tensors with these names."""
    clf = ACILClassifier(**header["parameters"])
    if device is not None:
        clf.device = device
    where = resolve_device(clf.device, header["dtype"])
    projection = _read(get, "projection", header).clone() if "projection" in names else None
    clip_norm = None if header["clip_norm"] is None else float(header["clip_norm"])
    expansion = Expansion(projection, header["activation"], header["n_features"], clip_norm)
    if expansion.fingerprint() != header["fingerprint"]:
        raise InvalidFileError(
            f"its projection has the fingerprint {expansion.fingerprint()}, not the stored one"
        )
    frozen = inference or header["kind"] == "inference"
    head = _frozen_head(get, header, where) if frozen else _learning_head(get, header, where)
    scoring = "balanced" if header["class_balance"] else header["scores"]
    model = AnalyticModel(expansion, head, where, MIXERS[scoring])
    if "mixing" in names and not frozen:
        mixing = _read(get, "mixing", header).clone()
        model.known_mixing = mixing[:-1], mixing[-1]
    if header["temperature"] is not None:
        # Measuring it anew would cost a factorization.
        model.known_temperature = float(header["temperature"])
    classes = np.array(header["classes"], dtype=header["classes_dtype"])
    scaling = _read(get, "scaling", header).clone() if "scaling" in names else None
    if scaling is not None and not bool((scaling[1] > 0).all()):
        raise InvalidFileError("'scaling' must divide by positive numbers")
    calibration = header["calibration"] and Calibration.from_dict(header["calibration"], frozen)
    if header["calibration"] is not None and calibration is None:
        raise InvalidFileError("'calibration' does not have the numbers that it must have")
    seed = header["parameters"]["random_state"]
    clf._state = State(classes, model, seed, scaling, calibration, header["release"], changes=0)
    clf.n_features_in_ = header["n_features"]
    if header["feature_names"] is not None:
        clf.feature_names_in_ = np.array(header["feature_names"], dtype=object)
    if header["backbone"] is not None:
        clf.backbone_ = header["backbone"]
    if header["images"] is not None:
        clf.images_ = header["images"]
    return clf


def _frozen_head(get: Get, header: dict[str, Any], device: torch.device) -> Frozen:
    coef, intercept = _weights(get, header)
    if header["kind"] == "full" and header["scores"] == "discriminant":
        mixing = _read(get, "mixing", header).to(coef)
        coef, intercept = coef @ mixing[:-1], mixing[-1].clone()
    if header["kind"] == "full" and header["class_balance"]:
        scale = balance_factors(torch.tensor(header["weights"], dtype=torch.float64)).to(coef)
        coef, intercept = coef * scale, intercept * scale
    counts = torch.tensor(header["counts"], dtype=torch.int64)
    weights, temperature = (coef.to(device), intercept.to(device)), float(header["temperature"])
    return Frozen(weights, counts, PRECISIONS[header["dtype"]], header["gamma"], temperature)


def _learning_head(get: Get, header: dict[str, Any], device: torch.device) -> Ridge | Recursion:
    precision, d, gamma = PRECISIONS[header["dtype"]], header["size"], float(header["gamma"])
    coef, intercept = (part.to(device) for part in _weights(get, header))
    counts = torch.tensor(header["counts"], dtype=torch.int64)
    weights = torch.tensor(header["weights"], dtype=torch.float64)
    if header["solver"] == "recursive":
        recursion = Recursion(d, precision, device, gamma)
        matrix = torch.empty(d, d, dtype=precision.sums, device=device)
        recursion.matrix = Matrix(mirror_(unpack_lower_(_read(get, "rfaum", header), matrix)))
        recursion.coef, recursion.counts, recursion.weights = coef, counts, weights
        return recursion
    sums = Sums(d, len(counts), precision.sums, device)
    unpack_lower_(_read(get, "gram", header), sums.gram)
    sums.moment = _read(get, "moment", header).clone().to(device)
    sums.counts, sums.weights = counts, weights
    ridge = Ridge(sums, precision, None if header["gamma_chosen"] else gamma, header["fit_intercept"])
    if ridge.intercept:
        coef = torch.cat([intercept.unsqueeze(0), coef])
    ridge.solution = Solution(gamma, coef, sums.n_samples)
    return ridge


def _weights(get: Get, header: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Read W of shape (d, classes), in memory column by column as it comes from solving; intercept."""
    return _read(get, "coef", header).clone().mT, _read(get, "intercept", header).clone()


def _read(get: Get, name: str, header: Mapping[str, Any]) -> Tensor:
    """Read a tensor into memory that may not be aligned: it is to be copied."""
    array, checksums = get(name), header["checksums"]
    if checksums and checksum(array) != checksums.get(name):
        raise InvalidFileError(f"tensor {name!r} does not have the checksum that it was written with")
    tensor = torch.from_numpy(array)
    _require_finite(name, tensor)
    return tensor


def _require_finite(name: str, tensor: Tensor) -> None:
    # The extremes, because comparing all numbers would take as much memory again
    if not bool(torch.isfinite(torch.stack(torch.aminmax(tensor))).all()):
        raise InvalidFileError(f"tensor {name!r} has values that are NaN or infinite")
