"""What is measured after each phase, and what is made of it. Accuracies are in percent.

Symbols: A_k is the accuracy after phase k over all test images of all classes seen; a_kj is the accuracy
after phase k on the test images of the classes that came in phase j, predicting over all classes seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from acil.errors import InputError

_Item = TypeVar("_Item")


def accuracy(predictions: Tensor, labels: Tensor) -> float:
    """Return the share of right predictions (n,) in percent: every image counts the same.

    Examples
    --------
    >>> accuracy(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 1, 1, 2]))
    75.0
    """
    _check(predictions, labels)
    # The count is exact, so the same predictions give the same bits on every machine.
    return 100.0 * int((predictions == labels).sum()) / labels.numel()


def accuracy_by_origin(
    predictions: Tensor, labels: Tensor, phases: Sequence[Sequence[int]]
) -> tuple[float, ...]:
    """Return the accuracy on the classes of each phase so far: one row a_k0 … a_kk of the matrix.

    ``phases`` has the labels that came in each phase 0 … k; predictions are over all classes seen.

    Examples
    --------
    >>> accuracy_by_origin(torch.tensor([0, 1, 0, 2]), torch.tensor([0, 1, 2, 2]), [(0, 1), (2,)])
    (100.0, 50.0)
    """
    _check(predictions, labels)
    row = []
    for k, classes in enumerate(phases):
        here = torch.isin(labels, torch.tensor(classes, dtype=labels.dtype, device=labels.device))
        if not bool(here.any()):
            raise InputError(
                f"No test image belongs to the classes {list(classes)} of phase {k}, so its accuracy is "
                "undefined. Give test images for every class."
            )
        row.append(accuracy(predictions[here], labels[here]))
    return tuple(row)


def average_accuracy(accuracies: Sequence[float]) -> float:
    """Return Ā, the mean of A_0 … A_K, the base phase included.

    Examples
    --------
    >>> average_accuracy([90.0, 80.0, 70.0])
    80.0
    """
    # Ā = (A_0 + … + A_K) / (K + 1)
    return math.fsum(_some(accuracies)) / len(accuracies)


def forgetting(base_accuracies: Sequence[float]) -> float:
    """Return F, the drop of the accuracy on the classes of the first phase; positive means forgotten.

    It takes a_00, a_10 … a_K0. The paper's formula has the other sign, its tables do not
    (docs/differences.md).

    Examples
    --------
    >>> forgetting([80.0, 75.0, 72.5])
    7.5
    """
    # F = a_00 - a_K0
    return _some(base_accuracies)[0] - base_accuracies[-1]


def chaudhry_forgetting(matrix: Sequence[Sequence[float]]) -> float:
    """Return the mean drop of each phase's classes from their own best (Chaudhry et al., 2018).

    Another metric than `forgetting`: it counts every phase but the last, and from the best value. Row k
    of the matrix is a_k0 … a_kk, as `accuracy_by_origin` returns it. After a single phase it is 0.

    Examples
    --------
    >>> chaudhry_forgetting([[80.0], [82.0, 70.0], [75.0, 60.0, 90.0]])
    8.5
    """
    lengths = [len(row) for row in _some(matrix)]
    if lengths != list(range(1, len(matrix) + 1)):
        raise InputError(
            "Row k of the accuracy matrix must have one entry for each phase 0 … k, "
            f"got rows of {lengths} entries."
        )
    last = len(matrix) - 1
    if last == 0:
        return 0.0
    # F_K = 1/K Σ_{j<K} (max_{j ≤ l < K} a_lj - a_Kj)
    drops = [max(matrix[k][j] for k in range(j, last)) - matrix[last][j] for j in range(last)]
    return math.fsum(drops) / last


def _some(values: Sequence[_Item]) -> Sequence[_Item]:
    if len(values) == 0:
        raise InputError("There is no phase to average over: the sequence of accuracies is empty.")
    return values


def _check(predictions: Tensor, labels: Tensor) -> None:
    if predictions.shape != labels.shape or labels.ndim != 1:
        raise InputError(
            "predictions and labels must be one-dimensional and of equal length, got shapes "
            f"{tuple(predictions.shape)} and {tuple(labels.shape)}."
        )
    if labels.numel() == 0:
        raise InputError("There is no test image, so the accuracy is undefined.")
