"""A Cholesky factor in the form in which its device makes it and solves with it fastest."""

from __future__ import annotations

import torch
from torch import Tensor

from acil.analytic.blocked import BlockInverses
from acil.analytic.linalg import (
    factorize_,
    require_positive,
    solve_lower,
    solve_lower_transposed,
)

#: Devices whose own triangular solution is far slower than their products, and whose factorization
#: wants its triangle by columns (8192 x 8192 on an H200: 8 ms, by rows 14).
_BY_COLUMNS = frozenset({"cuda"})


def laid_out(buffer: Tensor) -> Tensor:
    """Return a row-major buffer as the matrix that its device factorizes fastest: as it is, or turned.

    Parameters
    ----------
    buffer : Tensor of shape (d, d)
    """
    return buffer.mT if buffer.device.type in _BY_COLUMNS else buffer


class Triangle:
    """L with A = L Lᵀ, in the memory of A.

    Parameters
    ----------
    matrix : Tensor of shape (d, d), row-major or column-major (see `laid_out`)
        Lower triangle of A = gram + γI; holds L afterwards.
    gamma : float
        The γ already added to the diagonal, for the error message.

    Raises
    ------
    SingularMatrixError
        See `require_positive`.
    """

    def __init__(self, matrix: Tensor, gamma: float) -> None:
        self.lower = matrix
        pivots = factorize_(matrix)
        self._inverses: BlockInverses | None = None
        if matrix.device.type in _BY_COLUMNS:
            # Queued before anything waits for the factor
            self._inverses = BlockInverses(matrix)
        #: The smallest pivot of the factorization.
        self.smallest_pivot = require_positive(matrix, gamma, pivots)

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the factor."""
        return self.lower.dtype

    def solve(self, right: Tensor) -> Tensor:
        """Return L⁻¹ right, for ``right`` of shape (d, k), in the precision of the factor."""
        right = right.to(self.lower)
        return solve_lower(self.lower, right) if self._inverses is None else self._inverses.solve(right)

    def solve_transposed(self, right: Tensor) -> Tensor:
        """Return L⁻ᵀ right, for ``right`` of shape (d, k), in the precision of the factor."""
        right = right.to(self.lower)
        if self._inverses is None:
            return solve_lower_transposed(self.lower, right)
        return self._inverses.solve_transposed(right)
