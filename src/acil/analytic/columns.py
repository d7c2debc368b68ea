"""Matrices with one column for each class, when classes are added."""

from __future__ import annotations

import torch
from torch import Tensor


def spread(matrix: Tensor, positions: Tensor, n_columns: int) -> Tensor:
    """Return a matrix with more columns: column i has moved to ``positions[i]``, new ones are zero.

    Parameters
    ----------
    matrix : Tensor of shape (d, k)
    positions : Tensor of shape (k,), int64, on the CPU
    n_columns : int

    Examples
    --------
    >>> spread(torch.tensor([[1.0, 2.0]]), torch.tensor([0, 2]), 3)
    tensor([[1., 0., 2.]])
    """
    wider, k = matrix.new_zeros(matrix.shape[0], n_columns), matrix.shape[1]
    if torch.equal(positions, torch.arange(k)):
        # New ones come last, as in most phases: no indices have to travel to a GPU.
        wider[:, :k] = matrix
    else:
        wider[:, positions.to(matrix.device)] = matrix
    return wider
