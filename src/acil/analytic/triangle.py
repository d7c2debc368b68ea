"""A Cholesky factor in the form in which its device solves with it fastest."""

from __future__ import annotations

import torch
from torch import Tensor

from acil.analytic.blocked import BlockedFactor
from acil.analytic.linalg import check_pivots, cholesky_, solve_lower, solve_lower_transposed

#: Devices whose own factorization and triangular solution are far slower than their products.
_BLOCKED_DEVICES = frozenset({"cuda"})


class Triangle:
    """L with A = L Lᵀ, in the memory of A.

    Parameters
    ----------
    matrix : Tensor of shape (d, d), row-major
        Lower triangle of A = gram + γI; holds L afterwards.
    gamma : float
        The γ already added to the diagonal, for the error message.

    Raises
    ------
    SingularMatrixError
        See `cholesky_`.
    """

    def __init__(self, matrix: Tensor, gamma: float) -> None:
        self.lower = matrix
        self._blocked: BlockedFactor | None = None
        if matrix.device.type not in _BLOCKED_DEVICES:
            cholesky_(matrix, gamma)
            return
        scale = matrix.diagonal().max()
        self._blocked = BlockedFactor(matrix)
        check_pivots(matrix, gamma, float(scale), self._blocked.first_failure())

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the factor."""
        return self.lower.dtype

    def solve(self, right: Tensor) -> Tensor:
        """Return L⁻¹ right, for ``right`` of shape (d, k), in the precision of the factor."""
        right = right.to(self.lower)
        return solve_lower(self.lower, right) if self._blocked is None else self._blocked.solve(right)

    def solve_transposed(self, right: Tensor) -> Tensor:
        """Return L⁻ᵀ right, for ``right`` of shape (d, k), in the precision of the factor."""
        right = right.to(self.lower)
        if self._blocked is None:
            return solve_lower_transposed(self.lower, right)
        return self._blocked.solve_transposed(right)
