"""A model from the content of a file: what the header says, and the tensors that belong to it."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acil.analytic import PRECISIONS, AnalyticModel, Expansion, FrozenHead, GramHead, RecursiveHead
from acil.analytic.linalg import mirror_
from acil.analytic.lowparts import LowParts
from acil.analytic.model import balance_factors
from acil.analytic.packing import unpack_low_, unpack_lower_
from acil.classifier import ACILClassifier
from acil.errors import InputError, ModelFileError
from acil.header import InvalidFileError, label_array
from acil.parameters import resolve_device
from acil.state import State
from acil.storage.tensors import read, read_low


def assembled(
    file: Any,
    header: dict[str, Any],
    names: Collection[str],
    inference: bool,
    device: str | None,
    path: str | os.PathLike[str],
) -> ACILClassifier:
    """Return the model of a checked header and the tensors that belong to it.

    Parameters
    ----------
    file : safe_open or InMemory
        Where the tensors are read from.
    header : dict
    names : collection of str
        Tensors that are there.
    inference : bool
        Read only what prediction needs.
    device : str or None
        Where to put the model, if not where the header says.
    path : str or path-like
        What to call the file where it is refused.
    """
    clf = ACILClassifier(**header["parameters"])
    if device is not None:
        clf.device = device
    where = _device(path, clf, header["dtype"], given=device is not None)
    projection = read(file, "projection").clone() if "projection" in names else None
    expansion = Expansion(projection, header["activation"], header["n_features"])
    if expansion.fingerprint() != header["fingerprint"]:
        raise InvalidFileError(
            f"its projection has the fingerprint {expansion.fingerprint()}, not the stored one"
        )
    frozen = inference or header["kind"] == "inference"
    head = _frozen_head(file, header, where) if frozen else _learning_head(file, header, names, where)
    precision = PRECISIONS[header["dtype"]]
    model = AnalyticModel(expansion, head, precision, where, header["class_balance"])
    if header["temperature"] is not None:
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
    return read(file, "coef").clone().mT


def _frozen_head(file: Any, header: dict[str, Any], device: torch.device) -> FrozenHead:
    coef, intercept = _coef(file), read(file, "intercept").clone()
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
    read(file, "intercept")
    counts = torch.tensor(header["counts"], dtype=torch.int64)
    weights = torch.tensor(header["weights"], dtype=torch.float64)
    if header["solver"] == "recursive":
        recursive = RecursiveHead(d, precision, device, gamma)
        matrix = torch.empty(d, d, dtype=precision.sums, device=device)
        recursive.rfaum = mirror_(unpack_lower_(read(file, "rfaum"), matrix))
        recursive.coef, recursive.counts, recursive.weights = coef, counts, weights
        return recursive
    extended = header["sums"] == "extended"
    head = GramHead(d, precision, device, gamma, header["fit_intercept"], extended)
    # The head's own empty sums, so that no second matrix is made.
    sums = head.statistics
    gram, moment = read(file, "gram"), read(file, "moment")
    unpack_lower_(gram, sums.gram)
    sums.moment = moment.clone().to(device)
    sums.counts, sums.weights = counts, weights
    if "gram_low" in names:
        gram_low = read_low(file, "gram_low", gram)
        sums.low = LowParts.zeros_like(sums.moment)
        unpack_low_(gram_low, sums.gram, sums.low.diagonal)
        sums.low.moment.copy_(read_low(file, "moment_low", moment))
        sums.low.weights.copy_(read_low(file, "weights_low", weights))
    head.restore(sums, coef)
    return head
