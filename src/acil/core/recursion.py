"""The paper's recursion: keep R and W, update both from the present phase alone."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy

import torch
from torch import Tensor

from acil.core import linalg
from acil.core.cholesky import cholesky_
from acil.core.linalg import add_gram_, mirror_, solve_lower, spread
from acil.core.sums import Block, Matrix, Precision, Sums, weighted
from acil.errors import SingularMatrixError

#: What rounding may change weights by when rows are removed, relative.
_MOST_LOST = 1e-4


class Recursion:
    """Ridge regression on one-hot targets by the recursion of Theorem 1.

    It keeps R = (Σ XᵀX + γI)⁻¹, the regularized feature autocorrelation matrix, both triangles, and the
    weights W. As with `Ridge`, learning returns another object, which has taken over the matrix.

    Started from R = I / γ with batches of more than d rows, the recursion loses 3–6 % of the weights
    even in float64: I + X R Xᵀ is then singular up to rounding. So the base phase is solved directly
    (Eq. 4 and 8), later phases are split into blocks of d / 4 rows, and R is updated by a product
    V Vᵀ that is symmetric by construction.
    """

    solver = "recursive"
    intercept = False

    def __init__(self, size: int, precision: Precision, device: torch.device, gamma: float) -> None:
        self.precision = precision
        self.gamma = gamma
        # Empty before the base phase
        self.matrix, self.version = Matrix(torch.empty(0, 0, dtype=precision.sums, device=device)), 0
        self.coef = torch.zeros(size, 0, dtype=precision.sums, device=device)
        self.counts = torch.zeros(0, dtype=torch.int64)
        self.class_weights = torch.zeros(0, dtype=torch.float64)

    @property
    def R(self) -> Tensor:
        """R of shape (d, d); raises if a change of it was interrupted."""
        return self.matrix.require(self.version)

    def learn(self, blocks: Iterable[Block], n_rows: int, places: Tensor, n_classes: int) -> Recursion:
        """Return the regression that has seen one phase more; see `Ridge.learn`."""
        new = self.regrouped(places, n_classes)
        if not self.R.numel():
            new._learn_base(blocks)
            return new
        with new.matrix.changing(self.version) as R:
            for block in blocks:
                new._step(R, *block, sign=1)
        new.version = new.matrix.version
        return new

    def forget(self, blocks: Iterable[Block], declared: Tensor) -> tuple[Recursion, Tensor]:
        """Return the regression that has never seen some samples; see `Ridge.forget`."""
        new, R = copy(self), self.R.clone()
        new.counts, new.class_weights = self.counts.clone(), self.class_weights.clone()
        for block in blocks:
            new._step(R, *block, sign=-1)
        new.matrix, new.version = Matrix(R), 0
        remaining = (new.counts > 0) | declared
        new.coef = new.coef[:, remaining.to(new.coef.device)].contiguous()
        new.counts, new.class_weights = new.counts[remaining], new.class_weights[remaining]
        return new, remaining

    def regrouped(self, places: Tensor, n_classes: int) -> Recursion:
        """Return the regression with other columns of classes; see `Ridge.regrouped`."""
        new = copy(self)
        # W = R · moment, so its columns are added up as those of the moment are.
        new.coef, new.counts, new.class_weights = (
            spread(part, places, n_classes) for part in (self.coef, self.counts, self.class_weights)
        )
        return new

    def widened(self, size: int) -> Recursion:
        """Return the regression on rows of another width; see `Ridge.widened`."""
        if not self.gamma:
            raise SingularMatrixError("With gamma=0, R is infinite for features that were always 0.")
        new, d = copy(self), len(self.R)
        R = torch.eye(size, dtype=self.R.dtype, device=self.R.device) / self.gamma
        R[:d, :d] = self.R
        new.matrix, new.version = Matrix(R), 0
        new.coef = self.coef.new_zeros(size, self.coef.shape[1])
        new.coef[:d] = self.coef
        return new

    def clone(self) -> Recursion:
        """Return a regression with the same weights that shares no memory to be written."""
        new = copy(self)
        new.matrix, new.version = Matrix(self.R.clone()), 0
        return new

    def coefficients(self) -> tuple[Tensor, Tensor]:
        """Return W of shape (d, n_classes) and zero intercepts of shape (n_classes,)."""
        return self.coef, self.coef.new_zeros(self.coef.shape[1])

    def leverage(self, rows: Tensor) -> Tensor:
        """Return xᵀ R x of each row."""
        return ((rows @ self.R) * rows).sum(dim=1)

    def condition(self) -> float:
        """Estimate the condition number κ of R, which is that of gram + γI."""
        R, L = self.R, self._factor()
        inverse = linalg.largest_eigenvalue(lambda b: solve_lower(L, solve_lower(L, b), True), R)
        return max(1.0, linalg.largest_eigenvalue(lambda b: R @ b, R) * inverse)

    def degrees_of_freedom(self) -> float:
        """Return tr H = d − γ tr R."""
        # Not below 0, whatever γ a file gives beside R
        return max(0.0, len(self.R) - self.gamma * float(self.R.diagonal().sum()))

    def residual_squares(self) -> Tensor:
        """Return Σ w (y_c − x w_c)² of each class: Σ y_c² − w_cᵀ R⁻¹ w_c − γ ‖w_c‖²."""
        W, L = self.coef, self._factor()
        moment = solve_lower(L, solve_lower(L, W), transposed=True)
        return self.class_weights.to(W) - (W * (moment + self.gamma * W)).sum(dim=0)

    def _factor(self) -> Tensor:
        factor = self.R.clone()
        cholesky_(factor, self.gamma)
        return factor

    def _learn_base(self, blocks: Iterable[Block]) -> None:
        sums = Sums(len(self.coef), len(self.counts), self.coef.dtype, self.coef.device)
        sums.add(blocks)
        R, W = sums.gram, sums.moment
        R.diagonal().add_(self.gamma)
        cholesky_(R, self.gamma)
        # Eq. (4): W_0 = (X_0ᵀX_0 + γI)⁻¹ X_0ᵀY_0
        self.coef = solve_lower(R, solve_lower(R, W), transposed=True)
        # Eq. (8): R_0 = (X_0ᵀX_0 + γI)⁻¹
        self.matrix, self.version = Matrix(linalg.cholesky_inverse_(R)), 0
        self.counts, self.class_weights = sums.counts, sums.target_total

    def _step(self, R: Tensor, rows: Tensor, columns: Tensor, weights: Tensor | None, sign: int) -> None:
        X, Y, heavy = weighted(rows, columns, weights, len(self.counts))
        limit = max(1, len(R) // 4)
        for part, targets in zip(torch.split(X, limit), torch.split(Y, limit), strict=True):
            self._update(R, part, targets, sign)
        self.counts.index_add_(0, columns, torch.full_like(columns, sign))
        self.class_weights.index_add_(0, columns, sign * heavy)

    def _update(self, R: Tensor, X: Tensor, Y: Tensor, sign: int) -> None:
        # With I + X R Xᵀ = C Cᵀ and V = R Xᵀ C⁻ᵀ; rows are removed with the other sign.
        RXt = R @ X.mT
        S = (X @ RXt).mul_(sign)
        S.diagonal().add_(1.0)
        C, status = torch.linalg.cholesky_ex(S)
        if int(status) and sign > 0:
            raise SingularMatrixError(
                "These rows cannot be learnt: up to rounding, R is no longer positive definite, because "
                f"γ = {self.gamma:.3g} is too small for the recursion in {self.precision.name}. Learn "
                'all again with a larger gamma, dtype="float64" or solver="gram".'
            )
        # What is left of rows is known to ε ‖x‖² ‖R‖.
        rounding = torch.finfo(R.dtype).eps * X.square().sum(1).max() * R.diagonal().max()
        if int(status) or (sign < 0 and bool(rounding > _MOST_LOST * C.diagonal().min() ** 2)):
            raise SingularMatrixError(
                "These rows cannot be removed: up to rounding, the matrix would no longer be positive "
                "definite. They were not all learnt by this model, or few others were and γ = "
                f"{self.gamma:.3g} is too small for the recursion: solver='gram' could remove them."
            )
        V: Tensor = torch.linalg.solve_triangular(C, RXt.mT, upper=False).mT
        # Eq. (10): R_k = R − R Xᵀ (I + X R Xᵀ)⁻¹ X R = R − V Vᵀ
        mirror_(add_gram_(R, V.mT, -sign))
        # Eq. (9), for classes old and new: W_k = W + R_k Xᵀ (Y − X W), with R_k Xᵀ = V C⁻¹
        residual = Y - X @ self.coef
        self.coef = self.coef + sign * (V @ torch.linalg.solve_triangular(C, residual, upper=False))
