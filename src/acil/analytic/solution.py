"""Weights from sums: a Cholesky factor when they are needed, refined where κ asks for it."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from acil.analytic import rounding
from acil.analytic.columns import spread
from acil.analytic.drift import Drift
from acil.analytic.factor import CorrectedFactor
from acil.analytic.gathered import Gathered
from acil.analytic.linalg import largest_eigenvalue, symmetric_matmul
from acil.analytic.lostdigits import LostDigits
from acil.analytic.mixed import refined_weights, require_enough_precision
from acil.analytic.refinement import NormalEquations
from acil.analytic.ridge import Ridge
from acil.analytic.selection import generalized_cross_validation
from acil.analytic.sensitivity import solution_error
from acil.errors import SingularMatrixError

#: Above this estimate of the condition number, rounding in the Cholesky solve could move scores by
#: 1e-10 and more (measured: up to 0.3 eps times it), and is refined away.
_ILL_CONDITIONED = 1e6


class Solution:
    """The solution of (gram + γI) W = moment, centred if asked for, solved when it is needed.

    Parameters
    ----------
    gathered : Gathered
        Where the sums are.
    ridge : Ridge

    Attributes
    ----------
    factor : CorrectedFactor
        Of gram + γI; not ready if the sums have changed since.
    coef : Tensor of shape (d, classes) or None
        W; None if it has to be solved for.
    refine : bool
        Whether the factor is of a matrix whose solutions have to be refined.
    drift : Drift
        What corrections have cost in digits since the weights were last refined.
    lost : LostDigits
        What forgetting has cost in digits.
    """

    def __init__(self, gathered: Gathered, ridge: Ridge) -> None:
        self._gathered = gathered
        self._ridge = ridge
        self.lost = LostDigits()
        self.take(None)

    def take(self, coef: Tensor | None) -> None:
        """Start anew for sums of any width, with the weights that belong to them if they are known."""
        sums = self._gathered.sums
        self.factor = CorrectedFactor(sums.size, sums.gram.device)
        self.coef = coef
        self.refine = False
        self.drift = Drift()
        self.forget_eigenvalue()

    def invalidate(self) -> None:
        """Drop factor and weights: the sums have changed."""
        self.factor.drop()
        self.coef = None

    def forget_eigenvalue(self) -> None:
        """Drop the lower bound of the least eigenvalue, which more samples can only raise."""
        self._least: float | None = None

    def grow(self, positions: Tensor, n_classes: int) -> None:
        """Make room for new classes; see `Statistics.grow`."""
        if self.coef is not None:
            # A class without samples has the weights 0.
            self.coef = spread(self.coef, positions, n_classes)

    def keep(self, columns: Tensor) -> None:
        """Keep only these classes; see `Statistics.keep`."""
        if self.coef is not None:
            self.coef = self.coef[:, columns.to(self.coef.device)].contiguous()

    def weights(self) -> Tensor:
        """Return W of shape (d, classes), after solving for it if need be."""
        return self.coef if self.coef is not None else self._solve()

    def coefficients(self) -> tuple[Tensor, Tensor]:
        """Return W and the intercepts of shape (classes,)."""
        coef = self.weights()
        if not self._ridge.fit_intercept:
            return coef, coef.new_zeros(coef.shape[1])
        sums = self._gathered.statistics
        prior = (sums.weights / sums.total_weight).to(coef)
        return coef, prior - sums.mean @ coef

    def solve_anew(self) -> None:
        """Solve from the sums alone if the weights come from a low-rank correction."""
        if self.factor.rank:
            self.invalidate()
        self.weights()

    def release(self, memory: bool) -> None:
        """Drop the factor, and weights that come from a low-rank correction; see `GramHead.release`."""
        if self.factor.rank:
            self.coef = None
        if memory:
            self.factor.release()
        else:
            self.factor.drop()

    def moment(self) -> Tensor:
        """Return Σ w x yᵀ of shape (d, classes), centred if asked for."""
        sums = self._gathered.statistics
        if not self._ridge.fit_intercept:
            return sums.moment
        return sums.moment - torch.outer(sums.mean, sums.weights.to(sums.mean))

    def condition(self) -> float:
        """Estimate the condition number κ of the matrix that is inverted."""
        self.require_fresh_factor()
        largest = largest_eigenvalue(self._multiply, self._random_start())
        self._least = self.least_eigenvalue()
        return max(1.0, largest * 0.9 / self._least)

    def look(self) -> None:
        """Factorize with γ as far as it is known; a singular matrix leaves no factor."""
        self.invalidate()
        with contextlib.suppress(SingularMatrixError):
            self._factorize(self._ridge.known_gamma, self._ridge.precision.sums)

    def require_factor(self) -> None:
        """Make sure that there is a factor, which may have a low-rank correction."""
        if self.factor.ready:
            return
        if self.coef is None:
            self._solve()
            return
        # Weights that were loaded: only the factor is missing
        try:
            self._factorize(self._resolved_gamma(), self._ridge.precision.products)
        except SingularMatrixError:
            self._factorize(self._resolved_gamma(), self._ridge.precision.sums)

    def require_fresh_factor(self) -> None:
        """Make sure that there is a factor of the sums as they are."""
        if self.factor.rank:
            self.invalidate()
        self.require_factor()

    def equations(self) -> NormalEquations:
        """Return the equations whose residuals refine weights."""
        gamma = self._resolved_gamma()
        return NormalEquations(self._gathered.statistics, gamma, self._ridge.fit_intercept)

    def refined(self) -> Tensor:
        """Return W to nearly its last digit, corrections of the factor included."""
        equations = self.equations()
        return equations.refined(self.factor.solve_corrected, *equations.right())

    @property
    def can_be_checked(self) -> bool:
        """Whether a residual in working precision can tell that weights need no refinement.

        It does not see low parts, nor what centring has rounded. Narrow matrices, of which refinement
        costs next to nothing, are refined in any case.
        """
        sums = self._gathered.sums
        return rounding.is_wide(sums.size) and sums.low is None and not self._ridge.fit_intercept

    def good_enough(self, coef: Tensor) -> bool:
        """Say whether weights of an ill-conditioned matrix need no refinement all the same."""
        if not self.can_be_checked:
            return False
        gamma = self._resolved_gamma()
        error = solution_error(self.factor, self._multiply, coef, self.moment(), gamma)
        return rounding.invisible(error)

    def _solve(self) -> Tensor:
        precision, moment = self._ridge.precision, self.moment()
        mixed = precision.products != precision.sums
        coef: Tensor | None = None
        if mixed:
            try:
                self._factorize(self._resolved_gamma(), precision.products)
                coef = refined_weights(self.factor, self._multiply, moment)
            except SingularMatrixError:
                coef = None
        if coef is None:
            # Also what mixed precision falls back to when a float32 factor is not good enough
            if not self.factor.ready or self.factor.dtype != precision.sums:
                self._factorize(self._resolved_gamma(), precision.sums)
            coef = self.factor.solve(moment)
            if self.refine:
                self.drift = Drift(precision.rounding * self._condition_bound())
                if not self.good_enough(coef):
                    coef = self.refined()
            self.lost.warn(self.factor, moment, self._ridge.known_gamma, precision.rounding)
        if mixed:
            self._require_enough_precision()
        self.coef = coef
        return coef

    def _factorize(self, gamma: float, dtype: torch.dtype) -> None:
        # Σ (x − μ)(x − μ)ᵀ = Σ x xᵀ − n μ μᵀ
        centre = self._centre() if self._ridge.fit_intercept else None
        self.factor.factorize(self._gathered.statistics.gram, gamma, centre, dtype)
        self.refine = self._condition_bound() > _ILL_CONDITIONED

    def _centre(self) -> Tensor:
        sums = self._gathered.statistics
        centre: Tensor = sums.mean * sums.total_weight**0.5
        return centre

    def _trace(self) -> float:
        """Return the trace of gram, which bounds its largest eigenvalue from above."""
        sums = self._gathered.statistics
        return sums.mean_square * sums.size

    def _condition_bound(self) -> float:
        # A pivot bounds the smallest eigenvalue from above.
        return self._trace() / self.factor.smallest_pivot()

    def least_eigenvalue(self) -> float:
        """Return a lower bound of the least eigenvalue of the matrix that was factorized."""
        largest = largest_eigenvalue(self.factor.solve, self._random_start().to(self.factor.dtype))
        # Estimates of eigenvalues come from within: allow for what is missing.
        return 0.9 / largest

    def _random_start(self) -> Tensor:
        gram = self._gathered.statistics.gram
        generator = torch.Generator().manual_seed(0)
        return torch.randn(len(gram), min(2, len(gram)), generator=generator).to(gram)

    def _multiply(self, block: Tensor) -> Tensor:
        """Multiply (gram + γI), centred if asked for, with a block of columns."""
        image = symmetric_matmul(self._gathered.statistics.gram, block)
        if self._ridge.fit_intercept:
            centre = self._centre()
            image -= torch.outer(centre, centre @ block)
        return image.add_(block, alpha=self._resolved_gamma())

    def _resolved_gamma(self) -> float:
        """Return γ, after selecting it if that was left to the first solve."""
        if self._ridge.gamma is None:
            sums, centred = self._gathered.statistics, self._ridge.fit_intercept
            self._ridge.gamma = generalized_cross_validation(sums, None, centred).best
        return self._ridge.gamma

    def _require_enough_precision(self) -> None:
        gamma = self._resolved_gamma()
        try:
            # The trace as the largest eigenvalue: often there is no need to look closer.
            bound = None if self._least is None else (self._trace() + gamma) / self._least
            require_enough_precision(self._ridge.precision, gamma, bound, self.condition)
        except SingularMatrixError:
            self.invalidate()
            raise
