"""What is measured after each phase. Accuracies are in percent.

Symbols: A_k is the accuracy after phase k over all test images of all classes seen; a_kj is the accuracy
after phase k on the test images of the classes that came in phase j, predicting over all classes seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from acil.errors import InputError


def accuracy(predictions: Tensor, labels: Tensor) -> float:
    """Return the share of right predictions (n,) in percent: every image counts the same.

    Examples
    --------
    >>> accuracy(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 1, 1, 2]))
    75.0
    """
    if predictions.shape != labels.shape or labels.ndim != 1:
        raise InputError(
            "predictions and labels must be one-dimensional and of equal length, got shapes "
            f"{tuple(predictions.shape)} and {tuple(labels.shape)}."
        )
    if labels.numel() == 0:
        raise InputError("There is no test image, so the accuracy is undefined.")
    # The count is exact, so the same predictions give the same bits on every machine.
    return 100.0 * int((predictions == labels).sum()) / labels.numel()


def accuracy_by_origin(
    predictions: Tensor, labels: Tensor, phases: Sequence[Sequence[int]]
) -> tuple[float, ...]:
    """Return the accuracy on the classes of each phase so far: one row a_k0 … a_kk of the matrix.

    ``phases`` has the labels that came in each phase 0 … k, each of which has test images; predictions
    are over all classes seen.

    Examples
    --------
    >>> accuracy_by_origin(torch.tensor([0, 1, 0, 2]), torch.tensor([0, 1, 2, 2]), [(0, 1), (2,)])
    (100.0, 50.0)
    """
    row = []
    for classes in phases:
        here = torch.isin(labels, torch.tensor(classes, dtype=labels.dtype, device=labels.device))
        row.append(accuracy(predictions[here], labels[here]))
    return tuple(row)
