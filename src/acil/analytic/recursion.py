"""The paper's recursion: keep R and W, update both from the present phase alone."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from acil.analytic.columns import spread
from acil.analytic.head import Block
from acil.analytic.linalg import (
    add_gram_,
    cholesky_,
    cholesky_inverse_,
    cholesky_solve,
    largest_eigenvalue,
    mirror_,
    solve_lower,
    woodbury,
)
from acil.analytic.precision import Precision
from acil.analytic.statistics import Statistics


class RecursiveHead:
    """Ridge regression on one-hot targets by the recursion of Theorem 1.

    Parameters
    ----------
    size : int
        Width d of the rows.
    precision : Precision
    device : torch.device
    gamma : float
        Ridge strength γ, fixed for good by the first phase.

    Attributes
    ----------
    rfaum : Tensor of shape (d, d), or None before the base phase
        R = (Σ XᵀX + γI)⁻¹, the regularized feature autocorrelation matrix, kept symmetric.
    coef : Tensor of shape (d, classes)
        W.

    Notes
    -----
    Started from R = I / γ with batches of more than d rows, the recursion loses 3–6 % of the weights
    even in float64: I + X R Xᵀ is then singular up to rounding. So the base phase is solved directly
    (Eq. 4 and 8), later phases are split into blocks of d / 4 rows, and R is updated by a product
    V Vᵀ that is symmetric by construction.
    """

    solver = "recursive"
    fit_intercept = False

    def __init__(self, size: int, precision: Precision, device: torch.device, gamma: float) -> None:
        self.size = size
        self.precision = precision
        self.device = device
        self.gamma = gamma
        self.rfaum: Tensor | None = None
        self.coef = torch.zeros(size, 0, dtype=precision.sums, device=device)
        self.counts = torch.zeros(0, dtype=torch.int64)
        self.weights = torch.zeros(0, dtype=torch.float64)

    def learn(self, blocks: Iterable[Block], n_rows: int) -> None:
        """Learn one phase, given in blocks of ``n_rows`` rows in all."""
        if self.rfaum is None:
            self._learn_base(blocks)
            return
        for block in blocks:
            self._step(*block, sign=1)

    def forget(self, blocks: Iterable[Block]) -> None:
        """Remove samples, or raise and leave everything as it was."""
        before = self.rfaum, self.coef, self.counts, self.weights
        self.rfaum, self.coef = self.matrix().clone(), self.coef.clone()
        self.counts, self.weights = self.counts.clone(), self.weights.clone()
        try:
            for block in blocks:
                self._step(*block, sign=-1)
        except BaseException:
            self.rfaum, self.coef, self.counts, self.weights = before
            raise

    def grow(self, positions: Tensor, n_classes: int) -> None:
        """Make room for new classes: column i moves to ``positions[i]``, the others are empty."""
        coef = spread(self.coef, positions, n_classes)
        counts, weights = self.counts.new_zeros(n_classes), self.weights.new_zeros(n_classes)
        counts[positions], weights[positions] = self.counts, self.weights
        self.coef, self.counts, self.weights = coef, counts, weights

    def keep(self, columns: Tensor) -> None:
        """Keep only these classes."""
        self.coef = self.coef[:, columns.to(self.coef.device)].contiguous()
        self.counts, self.weights = self.counts[columns], self.weights[columns]

    def coefficients(self) -> tuple[Tensor, Tensor]:
        """Return W of shape (d, classes) and zero intercepts of shape (classes,)."""
        return self.coef, self.coef.new_zeros(self.coef.shape[1])

    def solve_anew(self) -> None:
        """Do nothing: the recursion has no sums to solve from."""

    def release(self, memory: bool = True) -> None:
        """Do nothing: the recursion holds no derived tensors."""

    def novelty(self, rows: Tensor) -> Tensor:
        """Return the leverage xᵀ R x of each row."""
        return ((rows @ self.matrix()) * rows).sum(dim=1)

    def condition(self) -> float:
        """Estimate the condition number κ of R, which is that of gram + γI."""
        matrix = self.matrix()
        factor = cholesky_(matrix.clone(), self.gamma)
        generator = torch.Generator().manual_seed(0)
        start = torch.randn(self.size, min(2, self.size), generator=generator).to(matrix)
        largest = largest_eigenvalue(lambda b: matrix @ b, start)
        return max(1.0, largest * largest_eigenvalue(lambda b: cholesky_solve(factor, b), start))

    def trace_of_inverse(self) -> float:
        """Return tr R, from which the degrees of freedom follow."""
        return float(self.matrix().diagonal().sum())

    def moment(self) -> Tensor:
        """Return Σ x yᵀ = R⁻¹ W, which R and W determine."""
        return cholesky_solve(cholesky_(self.matrix().clone(), self.gamma), self.coef)

    def _learn_base(self, blocks: Iterable[Block]) -> None:
        sums = Statistics(self.size, self.coef.shape[1], self.coef.dtype, self.device)
        for block in blocks:
            sums.add(*block)
        matrix = sums.gram
        matrix.diagonal().add_(self.gamma)
        factor = cholesky_(matrix, self.gamma)
        # Eq. (4): W_0 = (X_0ᵀX_0 + γI)⁻¹ X_0ᵀY_0
        self.coef = cholesky_solve(factor, sums.moment)
        # Eq. (8): R_0 = (X_0ᵀX_0 + γI)⁻¹
        self.rfaum = cholesky_inverse_(factor)
        self.counts, self.weights = sums.counts, sums.weights

    def _step(self, rows: Tensor, columns: Tensor, weights: Tensor | None, sign: int) -> None:
        targets = rows.new_zeros(len(rows), self.coef.shape[1])
        targets[torch.arange(len(rows)), columns.cpu()] = 1.0
        if weights is None:
            weights = torch.ones(len(rows), dtype=torch.float64)
        root = weights.to(rows).sqrt().unsqueeze(1)
        limit = max(1, self.size // 4)
        for X, Y in zip(
            torch.split(rows * root, limit), torch.split(targets * root, limit), strict=True
        ):
            self._update(X, Y, sign)
        index = columns.cpu()
        self.counts.index_add_(0, index, torch.full_like(index, sign))
        self.weights.index_add_(0, index, sign * weights.cpu().double())

    def _update(self, X: Tensor, Y: Tensor, sign: int) -> None:
        R = self.matrix()
        V, C = woodbury(R @ X.mT, X, sign)
        # Eq. (10): R_k = R − R Xᵀ (I + X R Xᵀ)⁻¹ X R = R − V Vᵀ
        mirror_(add_gram_(R, V.mT, -sign))
        # Eq. (9), for classes old and new: W_k = W + R_k Xᵀ (Y − X W), with R_k Xᵀ = V C⁻¹
        self.coef += sign * (V @ solve_lower(C, Y - X @ self.coef))

    def matrix(self) -> Tensor:
        """Return R, which exists after the base phase."""
        if self.rfaum is None:
            raise RuntimeError("the recursion has not seen a base phase")
        return self.rfaum
