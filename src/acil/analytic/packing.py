"""A triangle of a symmetric matrix as one vector, for files."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

#: Rows that are copied together: between devices, few large copies are faster than many small ones.
_PANEL = 512


def pack_lower(matrix: Tensor) -> Tensor:
    """Return the lower triangle of a matrix row by row, on the CPU.

    Parameters
    ----------
    matrix : Tensor of shape (d, d)
        The upper triangle is not read.

    Returns
    -------
    Tensor of shape (d (d + 1) / 2,)

    Examples
    --------
    >>> pack_lower(torch.tensor([[1.0, torch.nan], [2.0, 3.0]]))
    tensor([1., 2., 3.])
    """
    d = matrix.shape[0]
    packed = torch.empty(d * (d + 1) // 2, dtype=matrix.dtype)
    for start in range(0, d, _PANEL):
        stop = min(start + _PANEL, d)
        panel = matrix[start:stop, :stop].cpu()
        for row, place in _places(start, stop):
            packed[place] = panel[row - start, : row + 1]
    return packed


def unpack_lower_(packed: Tensor, matrix: Tensor) -> Tensor:
    """Fill the lower triangle of a matrix with what `pack_lower` has returned, in place.

    Parameters
    ----------
    packed : Tensor of shape (d (d + 1) / 2,)
    matrix : Tensor of shape (d, d)
        What is above the diagonal stays.
    """
    d = matrix.shape[0]
    for start in range(0, d, _PANEL):
        stop = min(start + _PANEL, d)
        panel = torch.zeros(stop - start, stop, dtype=packed.dtype)
        for row, place in _places(start, stop):
            panel[row - start, : row + 1] = packed[place]
        panel = panel.to(matrix.device)
        matrix[start:stop, :start] = panel[:, :start]
        square = matrix[start:stop, start:stop]
        below = torch.ones_like(square, dtype=torch.bool).tril()
        square.copy_(torch.where(below, panel[:, start:], square))
    return matrix


def pack_low(gram: Tensor, diagonal_low: Tensor) -> Tensor:
    """Return the low parts of a symmetric matrix of pairs, in the order of `pack_lower`.

    Parameters
    ----------
    gram : Tensor of shape (d, d)
        Low parts above the diagonal.
    diagonal_low : Tensor of shape (d,)
        Low parts of the diagonal.
    """
    packed = pack_lower(gram.mT)
    packed[_diagonal_places(gram.shape[0])] = diagonal_low.cpu()
    return packed


def unpack_low_(packed: Tensor, gram: Tensor, diagonal_low: Tensor) -> None:
    """Put back what `pack_low` has returned, in place; what is on and below the diagonal stays."""
    diagonal = gram.diagonal().clone()
    unpack_lower_(packed, gram.mT)
    gram.diagonal().copy_(diagonal)
    diagonal_low.copy_(packed[_diagonal_places(gram.shape[0])])


def _diagonal_places(d: int) -> Tensor:
    rows = torch.arange(d)
    return rows * (rows + 3) // 2


def _places(start: int, stop: int) -> Iterator[tuple[int, slice]]:
    """Yield rows and the place of each in the vector."""
    for row in range(start, stop):
        first = row * (row + 1) // 2
        yield row, slice(first, first + row + 1)
