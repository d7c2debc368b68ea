"""A model from the content of a file: what the header says, and the tensors that belong to it."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acil.analytic import PRECISIONS, AnalyticModel, Expansion, Frozen, Recursion, Ridge, Sums
from acil.analytic.linalg import mirror_
from acil.analytic.model import balance_factors
from acil.analytic.ridge import Solution
from acil.analytic.sums import Matrix
from acil.classifier import ACILClassifier, State
from acil.errors import InputError, ModelFileError
from acil.header import InvalidFileError, label_array
from acil.storage.tensors import read, unpack_lower_
from acil.validation import resolve_device


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
    checksums = header["checksums"]
    projection = read(file, "projection", checksums).clone() if "projection" in names else None
    expansion = Expansion(projection, header["activation"], header["n_features"])
    if expansion.fingerprint() != header["fingerprint"]:
        raise InvalidFileError(
            f"its projection has the fingerprint {expansion.fingerprint()}, not the stored one"
        )
    frozen = inference or header["kind"] == "inference"
    head = _frozen_head(file, header, where) if frozen else _learning_head(file, header, where)
    model = AnalyticModel(expansion, head, where, header["class_balance"])
    if header["temperature"] is not None:
        # Measuring it anew would cost a factorization.
        model.known_temperature = float(header["temperature"])
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


def _coef(file: Any, header: dict[str, Any]) -> Tensor:
    """Read W of shape (d, classes), in memory column by column as it comes from solving."""
    return read(file, "coef", header["checksums"]).clone().mT


def _frozen_head(file: Any, header: dict[str, Any], device: torch.device) -> Frozen:
    coef, intercept = _coef(file, header), read(file, "intercept", header["checksums"]).clone()
    if header["kind"] == "full" and header["class_balance"]:
        scale = balance_factors(torch.tensor(header["weights"], dtype=torch.float64)).to(coef)
        coef, intercept = coef * scale, intercept * scale
    counts = torch.tensor(header["counts"], dtype=torch.int64)
    gamma, temperature = float(header["gamma"]), float(header["temperature"])
    weights = coef.to(device), intercept.to(device)
    return Frozen(weights, counts, PRECISIONS[header["dtype"]], gamma, temperature)


def _learning_head(file: Any, header: dict[str, Any], device: torch.device) -> Ridge | Recursion:
    precision, d, gamma = PRECISIONS[header["dtype"]], header["size"], float(header["gamma"])
    checksums = header["checksums"]
    coef = _coef(file, header).to(device)
    intercept = read(file, "intercept", checksums).clone().to(device)
    counts = torch.tensor(header["counts"], dtype=torch.int64)
    weights = torch.tensor(header["weights"], dtype=torch.float64)
    if header["solver"] == "recursive":
        recursion = Recursion(d, precision, device, gamma)
        matrix = torch.empty(d, d, dtype=precision.sums, device=device)
        recursion.matrix = Matrix(mirror_(unpack_lower_(read(file, "rfaum", checksums), matrix)))
        recursion.coef, recursion.counts, recursion.weights = coef, counts, weights
        return recursion
    sums = Sums(d, len(counts), precision.sums, device)
    unpack_lower_(read(file, "gram", checksums), sums.gram)
    sums.moment = read(file, "moment", checksums).clone().to(device)
    sums.counts, sums.weights = counts, weights
    chosen = header["gamma_chosen"]
    ridge = Ridge(sums, precision, None if chosen else gamma, header["fit_intercept"])
    if ridge.intercept:
        coef = torch.cat([intercept.unsqueeze(0), coef])
    ridge.solution = Solution(gamma, coef, sums.n_samples)
    return ridge
