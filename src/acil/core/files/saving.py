"""Saving, loading and verifying models: one safetensors file, no pickle, bit-equal sums."""

from __future__ import annotations

import json
import logging
import math
import os
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import sklearn
import torch
from torch import Tensor

import acil
from acil.core.cholesky import cholesky_
from acil.core.classifier import ACILClassifier, adopt, holding, learnt_of
from acil.core.expansion import AnalyticModel, Expansion, Frozen
from acil.core.files.header import (
    CHECKSUM_KEY,
    FORMAT_VERSION,
    METADATA_KEY,
    InvalidFileError,
    check_header,
    check_layouts,
    check_tensor,
    opened,
    parse_header,
)
from acil.core.files.reading import MAX_HEADER_BYTES
from acil.core.files.writing import write_tensors
from acil.core.gcv import freedom_share
from acil.core.inputs import resolve_device
from acil.core.linalg import mirror_, pack_lower, plain_torch, unpack_lower_
from acil.core.model import Learnt, impossible, least_left
from acil.core.parameters import check_parameters
from acil.core.recursion import Recursion
from acil.core.ridge import Ridge, Solution
from acil.core.scores import (
    Calibration,
    Discriminants,
    Pooled,
    condition,
    heights,
    mixer_of,
    of_heights,
)
from acil.core.sums import PRECISIONS, Matrix, Sums
from acil.errors import ACILError, InputError, ModelFileError, SingularMatrixError, UnsupportedError

logger = logging.getLogger(__name__)

#: Whose versions a file names.
_PACKAGES = {"acil": acil, "torch": torch, "numpy": np, "scikit-learn": sklearn}
#: Returns a tensor as a NumPy array, by its name.
Get = Callable[[str], Any]
#: Tensors that prediction does not need.
_SUMS = ("gram", "moment", "total", "rfaum")
_TYPE_NAMES = {torch.float32: "F32", torch.float64: "F64"}
#: Error of solving, of the precision of the sums: rounding grows with √d. Mixed precision stops earlier.
_SOLVED, _SOLVED_MIXED = 100.0, 1e-7
#: What rounding may change in the map from weights to discriminants, relative: it grows with κ.
_MIXED = {torch.float64: 1e-3, torch.float32: 0.5}
#: Files of which it has been said, once in a process, that they give samples away.
_advised: set[str] = set()
#: Share of a class that rounding of the recursion may invent.
_RECURSION = {torch.float64: 1e-4, torch.float32: 0.5}


def save(clf: ACILClassifier, path: str | os.PathLike[str], *, inference: bool = False) -> None:
    """Write a model to one file, completely or not at all (`ModelFileError`).

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
    text, tensors = _content(clf, inference, packed=False)
    write_tensors(path, tensors, {METADATA_KEY: text, CHECKSUM_KEY: str(zlib.crc32(text.encode()))})
    with holding(clf) as state:
        between, d = state.changes, state.model.expansion.size
        private = state.release is not None and state.release["private"]
        adopt(clf, replace(state, changes=0))
    place = str(Path(path).absolute())
    if 0 < between < d and not private and place not in _advised:
        _advised.add(place)
        logger.warning(
            "Whoever has %s and the state saved or loaded before can recover the %d samples between, "
            "fewer than the width %d: see docs/privacy.md#guards.",
            path,
            between,
            d,
        )


def load(
    path: str | os.PathLike[str], *, inference: bool = False, device: str | None = None
) -> ACILClassifier:
    """Read a model from a file; it goes on learning as if it had never been saved.

    Its sums are bit-equal to those saved. A file that is missing, damaged, hostile or written by another
    version is a `ModelFileError`.

    Parameters
    ----------
    path : str or path-like
    inference : bool, default=False
        Read only what prediction needs, which is a small part of a full model.
    device : str, optional
        Where to put the model, instead of the ``device`` it was made with.
    """
    with opened(path) as (file, header):
        return _assembled(file.array, header, file.layouts, inference, device)


def pack(clf: ACILClassifier) -> dict[str, Any]:
    """Return what a full model file of a model would hold: tensors, and its header as text.

    For keeping a model inside something else; `unpack` makes the model again. Condition number and
    temperature, which take long to measure, are left out.
    """
    text, tensors = _content(clf, inference=False, packed=True)
    return {**tensors, "header": text}


def unpack(content: Mapping[str, Any], device: str | None = None) -> ACILClassifier:
    """Make the model again that `pack` described, on its device or another."""
    tensors = {name: part for name, part in content.items() if isinstance(part, Tensor)}
    layouts = {n: (_TYPE_NAMES.get(t.dtype, "?"), tuple(t.shape)) for n, t in tensors.items()}
    try:
        header = parse_header(content["header"])
        check_layouts(header, layouts)
        return _assembled(lambda name: tensors[name].cpu().numpy(), header, tensors, False, device)
    except (InvalidFileError, KeyError) as error:
        raise ModelFileError(f"This is not the content of a model: {error}.") from None


def _content(clf: ACILClassifier, inference: bool, packed: bool) -> tuple[str, dict[str, Tensor]]:
    """Return the header as text and the tensors of a model, solved and checked."""
    if not isinstance(clf, ACILClassifier):
        raise InputError(f"save needs an ACILClassifier, got {type(clf).__name__}.")
    settings = check_parameters(clf)
    with holding(clf, counted=True) as state:
        if isinstance(state.model.head, Frozen) and not inference:
            raise UnsupportedError(
                "This model can only predict and has no sums to save. Save it with inference=True."
            )
        state.model.solve_again()
        tensors = _tensors(state, inference, packed)
        header = _header(clf, settings, state, inference, packed)
    header["checksums"] = {} if packed else {n: zlib.crc32(t.numpy().data) for n, t in tensors.items()}
    try:
        # A file that could not be loaded again must not replace one that can.
        for name, tensor in tensors.items():
            _require_numbers(name, tensor)
        check_header(header)
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
    clf: ACILClassifier, settings: dict[str, Any], state: Learnt, inference: bool, packed: bool
) -> dict[str, Any]:
    """Return all entries but the checksums."""
    model, head = state.model, state.model.head
    ridge = head if isinstance(head, Ridge) and not inference else None
    names, images = getattr(clf, "feature_names_in_", None), getattr(clf, "images_", None)
    if inference and images is not None:
        # Hashes are for those who learn and forget.
        images = {**images, "tracked": []}
    parameters = settings | {"random_state": state.seed, "device": str(clf.device)}
    if inference:
        # The recursion takes no "auto".
        parameters |= {"gamma": "auto", "solver": "gram"}
    classes = state.classes
    if classes.dtype.kind == "U":
        # As wide as the longest; it may be as wide as one that has been forgotten.
        classes = np.array(classes.tolist())
    elif classes.dtype.itemsize > 8:
        classes = classes.astype(np.float64)
    temperature = None if packed else float(state.temperature())
    if inference:
        # γ follows from all its digits, the weights and the counts.
        temperature = float(f"{temperature:.1e}")
    return {
        "format_version": FORMAT_VERSION,
        "kind": "inference" if inference else "full",
        "task": "classes",
        "encoder": "features" if images is None else getattr(clf, "encoder_", "images"),
        "parameters": parameters,
        "n_features": model.expansion.in_features,
        "feature_names": None if names is None else [str(name) for name in names],
        "size": model.expansion.size,
        "activation": model.expansion.activation,
        "linear": model.expansion.linear,
        "solver": str(clf.solver) if isinstance(head, Frozen) else head.solver,
        "dtype": model.precision.name,
        "fit_intercept": head.intercept if isinstance(head, Ridge) else bool(clf.fit_intercept),
        "class_balance": model.mixer.exponent
        if isinstance(model.mixer, Pooled)
        else model.mixer is heights,
        "clip_norm": model.expansion.clip_norm,
        "scores": "discriminant" if isinstance(model.mixer, Discriminants) else "ridge",
        "unseen": getattr(model.mixer, "unseen", 0.0),
        "unseen_by_one": getattr(model.mixer, "unseen_by_one", 0.0),
        "standardize": state.scaling is not None,
        "classes": classes.tolist(),
        "classes_dtype": classes.dtype.str if classes.dtype.kind == "U" else classes.dtype.name,
        "counts": head.counts.tolist(),
        "weights": None if inference else model.learner.class_weights.tolist(),
        "total_weight": None if inference else _total_weight(model.learner),
        "clipped": state.clipped,
        "gamma": None if inference else float(model.gamma()),
        "gamma_chosen": ridge is not None and ridge.gamma is None,
        "gamma_samples": 0 if ridge is None or ridge.gamma is not None else ridge.solved().n_samples,
        "gamma_relative": None if ridge is None else _finite(clf.gamma_relative_),
        "condition": None if packed or ridge is None else _finite(condition(model)),
        "temperature": temperature,
        "calibration": state.calibration and state.calibration.to_dict(inference),
        "backbone": getattr(clf, "backbone_", None),
        "images": images,
        "release": state.release,
        # For those who change the model
        "history": [] if inference else getattr(clf, "history_", []),
        "fingerprint": model.expansion.fingerprint(),
        "versions": {name: str(module.__version__) for name, module in _PACKAGES.items()},
    }


def _finite(value: float) -> float | None:
    """Return a number, or None for one that JSON does not have."""
    return value if math.isfinite(value) else None


def _tensors(state: Learnt, inference: bool, packed: bool) -> dict[str, Tensor]:
    model, tensors = state.model, {}
    if inference:
        # As used for scoring
        weights = model.weights()
        W, intercept = weights.coef, weights.intercept
    else:
        head = model.learner
        W, intercept = head.coefficients()
        if isinstance(head, Recursion):
            tensors = {"rfaum": pack_lower(head.R)}
        else:
            sums = head.sums
            tensors = {"gram": pack_lower(sums.gram), "moment": sums.moment, "total": sums.total}
        if model.mixer not in (None, heights) and not packed:
            # Else whoever reads the file had to factorize before the first prediction.
            tensors["mixing"] = _mixing(model)
    if state.scaling is not None:
        tensors["scaling"] = state.scaling
    tensors |= {"coef": W.mT, "intercept": intercept}
    if model.expansion.projection is not None:
        tensors["projection"] = model.expansion.projection
    if model.expansion.bias is not None:
        tensors["bias"] = model.expansion.bias
    return {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}


@plain_torch()
def _assembled(
    get: Get, header: dict[str, Any], names: Collection[str], inference: bool, device: str | None
) -> ACILClassifier:
    """Return the model of a checked header and of tensors with these names."""
    clf = ACILClassifier(**header["parameters"])
    if device is not None:
        clf.device = device
    where = resolve_device(clf.device, header["dtype"])
    frozen = inference or header["kind"] == "inference"
    # Copies, whose memory is aligned; `_head` makes those of sums.
    parts = {
        name: _read(get, name, header) if name in _SUMS else _read(get, name, header).clone()
        for name in names
        if not frozen or name not in _SUMS
    }
    expansion = Expansion(
        parts.get("projection"),
        header["activation"],
        header["n_features"],
        header["clip_norm"],
        parts.get("bias"),
        header["linear"],
    )
    if expansion.fingerprint() != header["fingerprint"]:
        raise InvalidFileError(
            f"its projection has the fingerprint {expansion.fingerprint()}, not the stored one"
        )
    head = _head(parts, header, where, frozen)
    # In files of format 5, true was another rule.
    old = header["class_balance"] is True
    mixer = heights if old else mixer_of(header["scores"], header["class_balance"])
    if isinstance(mixer, Discriminants):
        private = header["release"] is not None and header["release"]["private"]
        mixer = Discriminants(not private, header["unseen"], header["unseen_by_one"])
    model = AnalyticModel(expansion, head, where, mixer)
    if "mixing" in parts:
        model.known_mixing = parts["mixing"][:-1], parts["mixing"][-1]
    elif frozen and header["kind"] == "full" and old:
        # The weights of an inference file are balanced already.
        weights = torch.tensor(header["weights"], dtype=torch.float64)
        model.known_mixing = of_heights(weights, head.coefficients()[1])
    # Measuring it anew would cost a factorization.
    model.known_temperature = header["temperature"]
    classes = np.array(header["classes"], dtype=header["classes_dtype"])
    scaling = parts.get("scaling")
    if scaling is not None and not bool((scaling[1] > 0).all()):
        raise InvalidFileError("'scaling' must divide by positive numbers")
    calibration = header["calibration"] and Calibration.from_dict(header["calibration"], frozen)
    if header["calibration"] is not None and calibration is None:
        raise InvalidFileError("'calibration' does not have the numbers that it must have")
    seed = header["parameters"]["random_state"]
    learnt = Learnt(
        *(classes, model, seed, scaling, calibration),
        release=header["release"],
        clipped=header["clipped"],
        changes=0,
    )
    adopt(clf, learnt)
    clf.n_features_in_ = header["n_features"]
    if header["feature_names"] is not None:
        clf.feature_names_in_ = np.array(header["feature_names"], dtype=object)
    if header["backbone"] is not None:
        clf.backbone_ = header["backbone"]
    if header["images"] is not None:
        clf.images_, clf.encoder_ = header["images"], header["encoder"]
    if header["history"]:
        clf.history_ = header["history"]
    return clf


def _head(
    parts: dict[str, Tensor], header: dict[str, Any], device: torch.device, frozen: bool
) -> Ridge | Recursion | Frozen:
    precision, d, gamma = PRECISIONS[header["dtype"]], header["size"], header["gamma"]
    # W is in memory column by column, as it comes from solving.
    coef, intercept = parts["coef"].mT.to(device), parts["intercept"].to(device)
    counts = torch.tensor(header["counts"], dtype=torch.int64)
    if frozen:
        return Frozen((coef, intercept), counts, precision, gamma, header["temperature"])
    weights, gamma = torch.tensor(header["weights"], dtype=torch.float64), float(gamma)
    if header["solver"] == "recursive":
        recursion = Recursion(d, precision, device, gamma)
        matrix = torch.empty(d, d, dtype=precision.sums, device=device)
        recursion.matrix = Matrix(mirror_(unpack_lower_(parts["rfaum"], matrix)))
        recursion.coef, recursion.counts, recursion.class_weights = coef, counts, weights
        return recursion
    sums = Sums(d, len(counts), precision.sums, device)
    unpack_lower_(parts["gram"], sums.gram)
    sums.moment.copy_(parts["moment"])
    sums.counts, sums.target_total = counts, weights
    # Files of format 5 have no total.
    sums.total.copy_(parts["total"] if "total" in parts else sums.moment.sum(dim=1))
    sums.total_weight = float(header["total_weight"])
    sums.n_samples = int(counts.sum())
    fixed = None if header["gamma_chosen"] else gamma
    ridge = Ridge(sums, precision, fixed, header["fit_intercept"], freedom_share(header["scores"]))
    if ridge.intercept:
        coef = torch.cat([intercept.unsqueeze(0), coef])
    samples, allowed = header["gamma_samples"], ridge.most_freedom()
    ridge.solution = Solution(gamma, coef, samples, freedom=allowed)
    return ridge


def _read(get: Get, name: str, header: Mapping[str, Any]) -> Tensor:
    """Read a tensor into memory that may not be aligned: it is to be copied."""
    array = get(name)
    check_tensor(array, name, header)
    tensor = torch.from_numpy(array)
    _require_numbers(name, tensor)
    return tensor


def _require_numbers(name: str, tensor: Tensor) -> None:
    # The extremes, because comparing all numbers would take as much memory again
    largest = torch.stack(torch.aminmax(tensor)).abs().max()
    if not bool(torch.isfinite(largest)):
        raise InvalidFileError(f"tensor {name!r} has values that are NaN or infinite")
    # Sums may be of squares; all else is multiplied.
    if name not in _SUMS and float(largest) > torch.finfo(tensor.dtype).max ** 0.5:
        raise InvalidFileError(
            f"tensor {name!r} has values up to {float(largest):.1e}, too large to use"
        )


class Check(NamedTuple):
    """One thing that was looked at, whether it is as it must be, and what was found."""

    name: str
    ok: bool
    detail: str


def verify(path: str | os.PathLike[str]) -> list[Check]:
    """Check everything that can be checked about a model file.

    Header and shapes; the checksum of each tensor; values and the expansion; and of a full model,
    whether its sums can be sums over samples, fit the counts of the classes, and give its weights, with
    what makes discriminant scores of them. The list ends early where later checks need what has failed.

    Examples
    --------
    >>> import tempfile, os
    >>> from acil import ACILClassifier, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.acil")
    ...     save(ACILClassifier(expansion_size=8).fit([[0.0], [1.0]], [0, 1]), path)
    ...     all(check.ok for check in verify(path))
    True
    """
    return list(_checks(path))


def _checks(path: str | os.PathLike[str]) -> Iterator[Check]:
    stage = "header"
    try:
        with opened(path) as (file, header):
            number, classes = sum(header["counts"]), len(header["classes"])
            yield Check("header", True, f"{header['kind']}, {classes} classes, {number} samples")
            sums = header["checksums"]
            names = file.layouts
            bad = [name for name in names if zlib.crc32(file.array(name).data) != sums.get(name)]
            yield Check("checksums", not bad, f"differ: {', '.join(bad)}" if bad else ", ".join(names))
            if bad:
                return
            stage = "values"
            clf = _assembled(file.array, header, names, False, "cpu")
            model = learnt_of(clf).model
            head = model.head
    except ACILError as error:
        yield Check(stage, False, str(error))
        return
    yield Check("values", True, "all finite; the expansion has its fingerprint")
    if isinstance(head, Frozen):
        return
    if isinstance(head, Recursion):
        yield from _of_recursion(head)
        return
    if header["release"] is None or not header["release"]["private"]:
        fits = bool(((head.counts > 0) == (head.class_weights > 0)).all())
        yield Check("counts", fits, "every class with samples has weight, no other has")
        fault = impossible(head) or _wrong_total(head.sums)
        words = "gram is positive definite; moment and counts belong to it"
        yield Check("sums", not fault, fault or words)
    else:
        yield Check("sums", True, "noise was added for privacy: not compared with the counts")
    yield _of_weights(head)
    if model.known_mixing is not None:
        yield _of_mixing(model)


def _total_weight(head: Ridge | Recursion) -> float:
    return head.sums.total_weight if isinstance(head, Ridge) else float(head.class_weights.sum())


def _wrong_total(sums: Sums) -> str:
    """Say whether Σ w x is not that of the classes; "" if it is."""
    off = float((sums.total - sums.moment.sum(dim=1)).norm())
    size = float(sums.gram.diagonal().sum() * sums.total_weight) ** 0.5
    wrong = off > 1e3 * torch.finfo(sums.total.dtype).eps ** 0.75 * size
    return "total is not that of the classes" if wrong else ""


def _of_weights(ridge: Ridge) -> Check:
    solution, d = ridge.solved(), len(ridge.sums.gram)
    matrix = float(ridge.sums.gram.diagonal().sum()) + solution.gamma
    # An intercept borders it by n.
    size = (matrix + ridge.intercept * ridge.sums.total_weight) * float(solution.coef.norm())
    error = float(ridge.residual(solution.gamma, solution.coef).norm()) / max(size, 1e-300)
    bound = _SOLVED * d**0.5 * torch.finfo(solution.coef.dtype).eps
    bound = _SOLVED_MIXED if ridge.precision.name == "mixed" else bound
    return _within("weights", "solve the sums", error, bound)


def _mixing(model: AnalyticModel) -> Tensor:
    """Return the map from weights to discriminants, with its intercepts as the last row."""
    mixing, intercepts = cast(tuple[Tensor, Tensor], model.mixing())
    return torch.cat([mixing, intercepts.unsqueeze(0)])


def _of_mixing(model: AnalyticModel) -> Check:
    """Compare what makes scores of the weights with what the sums give."""
    stored = _mixing(model)
    model.known_mixing = None
    try:
        expected = _mixing(model)
    except SingularMatrixError as error:
        return Check("mixing", False, str(error))
    off = float((stored - expected).norm()) / max(float(expected.norm()), 1e-300)
    return _within("mixing", "as the sums give it", off, _MIXED[model.precision.products])


def _within(name: str, words: str, error: float, bound: float) -> Check:
    error = math.inf if math.isnan(error) else error
    return Check(name, error <= bound, f"{words} to {error:.1e}, at most {bound:.1e}")


def _of_recursion(head: Recursion) -> Iterator[Check]:
    lower = head.R.clone()
    try:
        cholesky_(lower, head.gamma)
    except SingularMatrixError:
        yield Check("rfaum", False, "not positive definite")
        return
    yield Check("rfaum", True, "positive definite")
    slack = _RECURSION[lower.dtype] * float(head.class_weights.max())
    fits = least_left(lower, head.coef, head.class_weights) >= -slack
    yield Check("weights", fits, f"coef and counts {'belong' if fits else 'do not belong'} to rfaum")
