"""Saving and loading models: one safetensors file, no pickle, bit-equal sums."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

import acil
from acil.analytic import PRECISIONS, AnalyticModel, Expansion, FrozenHead, GramHead, RecursiveHead
from acil.analytic.linalg import mirror_
from acil.analytic.lowparts import LowParts
from acil.analytic.model import balance_factors
from acil.analytic.packing import pack_low, pack_lower, unpack_low_, unpack_lower_
from acil.atomic import cannot_write, replacing
from acil.classifier import ACILClassifier, State
from acil.errors import InputError, ModelFileError, UnsupportedError
from acil.header import InvalidFileError, label_array, parse_header
from acil.labels import Labels
from acil.locking import locked
from acil.modelfile import MAX_HEADER_BYTES, METADATA_KEY, Layout, check_layouts, describe, opened
from acil.parameters import check_parameters, resolve_device

__all__ = ["describe", "load", "locked", "pack", "save", "unpack"]

_TYPE_NAMES = {torch.float32: "F32", torch.float64: "F64"}
#: Numbers that are looked at together.
_CHUNK = 2**20


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
        Store only what prediction needs. Such a model cannot learn, forget or merge.

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
    ...     save(ACILClassifier(expansion_size=8).fit(X, y), path)
    ...     load(path).predict(X[:2])
    array(['cat', 'dog'], dtype='<U3')
    """
    text, tensors = _content(clf, inference)
    with replacing(path) as draft:
        try:
            save_file(tensors, draft, metadata={METADATA_KEY: text})
        except SafetensorError as error:
            raise cannot_write(path, error) from error


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
        If the file is missing, damaged, hostile or written by a newer version.
    """
    with opened(path) as (file, header, layouts):
        return _assembled(file, header, layouts.keys(), inference, device, path)


def pack(clf: ACILClassifier) -> dict[str, Any]:
    """Return what a full model file of a model would hold: tensors, and its header as text.

    For keeping a model inside something else; `unpack` makes the model again.
    """
    text, tensors = _content(clf, inference=False)
    return {**tensors, _HEADER: text}


def unpack(content: Mapping[str, Any], device: str | None = None) -> ACILClassifier:
    """Make the model again that `pack` described.

    Parameters
    ----------
    content : Mapping
    device : str, optional
        Where to put the model, instead of the ``device`` it was made with.
    """
    tensors = {name: value for name, value in content.items() if isinstance(value, Tensor)}
    try:
        header = parse_header(content[_HEADER])
        check_layouts(header, _layouts(tensors))
        return _assembled(_InMemory(tensors), header, tensors.keys(), False, device, "a packed model")
    except (InvalidFileError, KeyError) as error:
        raise ModelFileError(f"This is not the content of a model: {error}.") from None


_HEADER = "header"


class _InMemory:
    """Tensors behind the interface of an open file."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def get_tensor(self, name: str) -> npt.NDArray[Any]:
        """Return a tensor as an array."""
        return self._tensors[name].cpu().numpy()


def _layouts(tensors: Mapping[str, Tensor]) -> dict[str, Layout]:
    return {name: (_TYPE_NAMES.get(t.dtype, "?"), tuple(t.shape)) for name, t in tensors.items()}


def _content(clf: ACILClassifier, inference: bool) -> tuple[str, dict[str, Tensor]]:
    """Return header and tensors of a model, solved and checked."""
    if not isinstance(clf, ACILClassifier):
        raise InputError(f"save needs an ACILClassifier, got {type(clf).__name__}.")
    state = clf._require_state()
    head = state.model.head
    if isinstance(head, FrozenHead) and not inference:
        raise UnsupportedError(
            "This model was loaded for inference and has no sums to save. Save it with inference=True."
        )
    check_parameters(clf)
    if not isinstance(head, FrozenHead):
        head.solve_anew()
    text = _header_text(clf, state, inference)
    tensors = _tensors(state.model, inference)
    try:
        header = parse_header(text)
        check_layouts(header, _layouts(tensors))
        for name, tensor in tensors.items():
            _require_finite(name, tensor)
    except InvalidFileError as error:
        # A file that could not be loaded again must not replace one that can.
        raise InputError(
            f"This model cannot be saved, because it could not be loaded: {error}"
        ) from None
    return text, tensors


def _assembled(
    file: Any,
    header: dict[str, Any],
    names: Collection[str],
    inference: bool,
    device: str | None,
    path: str | os.PathLike[str],
) -> ACILClassifier:
    """Return the model of a checked header and the tensors that belong to it."""
    clf = ACILClassifier(**header["parameters"])
    if device is not None:
        clf.device = device
    where = _device(path, clf, header["dtype"], given=device is not None)
    projection = _read(file, "projection").clone() if "projection" in names else None
    expansion = Expansion(projection, header["activation"], header["n_features"])
    if expansion.fingerprint() != header["fingerprint"]:
        raise InvalidFileError(
            f"its projection has the fingerprint {expansion.fingerprint()}, not the stored one"
        )
    frozen = inference or header["kind"] == "inference"
    head = _frozen_head(file, header, where) if frozen else _learning_head(file, header, names, where)
    precision = PRECISIONS[header["dtype"]]
    model = AnalyticModel(expansion, head, precision, where, header["class_balance"])
    # Measuring it anew would cost a factorization.
    model.set_temperature(float(header["temperature"]))
    classes = label_array(header["classes"], header["classes_dtype"])
    clf._state = State(classes, model, header["random_state"])
    clf.n_features_in_ = header["n_features"]
    if header["feature_names"] is not None:
        clf.feature_names_in_ = np.array(header["feature_names"], dtype=object)
    if header["backbone"] is not None:
        clf.backbone_ = header["backbone"]
    if header["images"] is not None:
        clf.images_ = header["images"]
    return clf


def _header_text(clf: ACILClassifier, state: State, inference: bool) -> str:
    model, head = state.model, state.model.head
    sums = head.statistics if isinstance(head, GramHead) else None
    names = getattr(clf, "feature_names_in_", None)
    classes, classes_dtype = _storable(state.classes)
    gamma, parameters = model.gamma(), _parameters(clf, state.seed)
    extended = isinstance(head, GramHead) and head.extended and not inference
    low = sums is not None and sums.low is not None and not inference
    header = {
        "format_version": 3 if extended or "sums" in parameters else 2 if low else 1,
        "kind": "inference" if inference else "full",
        "parameters": parameters,
        "random_state": state.seed,
        "n_features": model.expansion.in_features,
        "feature_names": None if names is None else [str(name) for name in names],
        "size": model.expansion.size,
        "activation": model.expansion.activation,
        "solver": clf.solver if isinstance(head, FrozenHead) else head.solver,
        "dtype": model.precision.name,
        "fit_intercept": getattr(head, "fit_intercept", bool(clf.fit_intercept)),
        "class_balance": model.balanced,
        "sums": "extended" if extended else "auto",
        "classes": classes,
        "classes_dtype": classes_dtype,
        "counts": head.counts.tolist(),
        "weights": None if inference or isinstance(head, FrozenHead) else head.weights.tolist(),
        "gamma": gamma,
        "gamma_relative": None if sums is None else _finite(gamma, sums.mean_square),
        "condition": None if sums is None else _finite(head.condition()),
        "temperature": model.temperature(),
        "n_samples": int(head.counts.sum()),
        "backbone": getattr(clf, "backbone_", None),
        "images": getattr(clf, "images_", None),
        "fingerprint": model.expansion.fingerprint(),
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
    # Left out where a reader that does not know it can do without.
    sums = {} if clf.sums == "auto" else {"sums": str(clf.sums)}
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
        **sums,
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
    head = model.head
    if inference or isinstance(head, FrozenHead):
        # With class balancing, as used for scoring
        coef, intercept = model.weights()
        tensors = {}
    else:
        W, intercept = head.coefficients()
        coef = W.mT
        if isinstance(head, GramHead):
            sums = head.statistics
            tensors = {"gram": pack_lower(sums.gram), "moment": sums.moment.cpu().contiguous()}
            if sums.low is not None:
                tensors |= {
                    "gram_low": pack_low(sums.gram, sums.low.diagonal),
                    "moment_low": sums.low.moment.cpu().contiguous(),
                    "weights_low": sums.low.weights,
                }
        else:
            tensors = {"rfaum": pack_lower(head.matrix())}
    tensors |= {"coef": coef.cpu().contiguous(), "intercept": intercept.cpu().contiguous()}
    if model.expansion.projection is not None:
        tensors["projection"] = model.expansion.projection.contiguous()
    return tensors


def _read(file: Any, name: str) -> Tensor:
    """Read a tensor into memory that may not be aligned: it is to be copied."""
    tensor = torch.from_numpy(file.get_tensor(name))
    _require_finite(name, tensor)
    return tensor


def _read_low(file: Any, name: str, high: Tensor) -> Tensor:
    """Read what rounding has taken from numbers: added to them, it must be rounded away again."""
    low = _read(file, name)
    values, sums = low.reshape(-1), high.reshape(-1)
    for start in range(0, len(values), _CHUNK):
        part = slice(start, start + _CHUNK)
        if not torch.equal(sums[part] + values[part], sums[part]):
            raise InvalidFileError(f"tensor {name!r} does not hold low parts of {name[:-4]!r}")
    return low


def _require_finite(name: str, tensor: Tensor) -> None:
    values = tensor.reshape(-1)
    # In pieces: asking for all at once would take as much memory again.
    for start in range(0, len(values), _CHUNK):
        if not bool(torch.isfinite(values[start : start + _CHUNK]).all()):
            raise InvalidFileError(f"tensor {name!r} has values that are NaN or infinite")


def _device(path: str | os.PathLike[str], clf: ACILClassifier, dtype: str, given: bool) -> torch.device:
    try:
        return resolve_device(clf.device, dtype)
    except InputError as error:
        if given:
            raise
        raise ModelFileError(
            f"Cannot load {path} onto the device {clf.device!r}, where it was saved: {error} Or load it "
            'with device="cpu".'
        ) from error


def _coef(file: Any) -> Tensor:
    """Read W of shape (d, classes), in memory column by column as it comes from solving."""
    return _read(file, "coef").clone().mT


def _frozen_head(file: Any, header: dict[str, Any], device: torch.device) -> FrozenHead:
    coef, intercept = _coef(file), _read(file, "intercept").clone()
    if header["kind"] == "full" and header["class_balance"]:
        weights = torch.tensor(header["weights"], dtype=torch.float64)
        scale = balance_factors(weights).to(coef)
        coef, intercept = coef * scale, intercept * scale
    counts = torch.tensor(header["counts"], dtype=torch.int64)
    gamma, temperature = float(header["gamma"]), float(header["temperature"])
    return FrozenHead(coef.to(device), intercept.to(device), counts, gamma, temperature)


def _learning_head(
    file: Any, header: dict[str, Any], names: Collection[str], device: torch.device
) -> GramHead | RecursiveHead:
    precision, d, gamma = PRECISIONS[header["dtype"]], header["size"], float(header["gamma"])
    coef = _coef(file).to(device)
    # Follows from the sums; looked at all the same, because a damaged file is no file to go on from.
    _read(file, "intercept")
    counts = torch.tensor(header["counts"], dtype=torch.int64)
    weights = torch.tensor(header["weights"], dtype=torch.float64)
    if header["solver"] == "recursive":
        recursive = RecursiveHead(d, precision, device, gamma)
        matrix = torch.empty(d, d, dtype=precision.sums, device=device)
        recursive.rfaum = mirror_(unpack_lower_(_read(file, "rfaum"), matrix))
        recursive.coef, recursive.counts, recursive.weights = coef, counts, weights
        return recursive
    extended = header["sums"] == "extended"
    head = GramHead(d, precision, device, gamma, header["fit_intercept"], extended)
    # The head's own empty sums, so that no second matrix is made.
    sums = head.statistics
    gram, moment = _read(file, "gram"), _read(file, "moment")
    unpack_lower_(gram, sums.gram)
    sums.moment = moment.clone().to(device)
    sums.counts, sums.weights = counts, weights
    if "gram_low" in names:
        gram_low = _read_low(file, "gram_low", gram)
        sums.low = LowParts.zeros_like(sums.moment)
        unpack_low_(gram_low, sums.gram, sums.low.diagonal)
        sums.low.moment.copy_(_read_low(file, "moment_low", moment))
        sums.low.weights.copy_(_read_low(file, "weights_low", weights))
    head.restore(sums, coef)
    return head
