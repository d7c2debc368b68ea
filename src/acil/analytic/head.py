"""The default solver: keep the sums, solve by Cholesky when weights are needed."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from acil.analytic.factor import CorrectedFactor
from acil.analytic.linalg import cholesky_, largest_eigenvalue, residual, symmetric_matmul
from acil.analytic.precision import Precision
from acil.analytic.selection import GammaCurve, generalized_cross_validation
from acil.analytic.statistics import Statistics
from acil.errors import InputError, SingularMatrixError

#: One block of samples: expanded rows, their class columns, their weights.
Block = tuple[Tensor, Tensor, Tensor | None]

#: Relative residual at which the refined weights of mixed precision are as good as its sums, whose
#: products are rounded to 6e-8.
_REFINED = 1e-8
_MAX_REFINEMENTS = 10
#: Above this estimate of the condition number, rounding in the Cholesky solve would be the largest
#: error of the scores (measured: some 1e-18 times it), and is refined away.
_ILL_CONDITIONED = 1e7
#: Mixed precision is refused when float32 rounding, times the condition number, exceeds this.
_MAX_MIXED_ERROR = 1e-2


class GramHead:
    """Ridge regression on one-hot targets from sums, with weights that are solved when needed.

    After few new rows the weights follow from the last factor by a low-rank correction
    (`CorrectedFactor`), after many from a new factor. The sums themselves are always up to date.

    Parameters
    ----------
    size : int
        Width d of the rows.
    precision : Precision
    device : torch.device
    gamma : float or None
        Ridge strength γ; ``None`` selects it by generalized cross-validation at the first solve.
    fit_intercept : bool
        Centre rows and targets, which the sums allow without data.
    """

    solver = "gram"

    def __init__(
        self,
        size: int,
        precision: Precision,
        device: torch.device,
        gamma: float | None,
        fit_intercept: bool = False,
    ) -> None:
        self.statistics = Statistics(size, 0, precision.sums, device)
        self.precision = precision
        self.gamma = gamma
        self.fit_intercept = fit_intercept
        self._factor = CorrectedFactor(size, device)
        self._coef: Tensor | None = None
        #: A lower bound of the least eigenvalue, which more samples can only raise.
        self._least: float | None = None

    @property
    def size(self) -> int:
        """Width d of the rows."""
        return self.statistics.size

    @property
    def counts(self) -> Tensor:
        """Number of samples of each class."""
        return self.statistics.counts

    @property
    def weights(self) -> Tensor:
        """Sum of the sample weights of each class."""
        return self.statistics.weights

    def learn(self, blocks: Iterable[Block], n_rows: int) -> None:
        """Add samples, given in blocks of ``n_rows`` rows in all."""
        follow = self._coef is not None and self._factor.worth_correcting(
            n_rows, self.statistics.n_classes
        )
        for rows, columns, weights in blocks:
            follow = follow and self._correct(rows, columns, weights)
            self.statistics.add(rows, columns, weights)
            del rows  # or two blocks would be alive while the next one is made
        if not follow:
            self._invalidate()

    def forget(self, blocks: Iterable[Block]) -> None:
        """Remove samples, or raise and leave everything as it was."""
        remaining = self.statistics.copy()
        for rows, columns, weights in blocks:
            remaining.subtract(rows, columns, weights)
        if remaining.n_samples == 0:
            remaining.gram.zero_()
        else:
            self._require_possible(remaining)
        self.statistics, self._least = remaining, None
        self._invalidate()

    def merge(self, other: GramHead, positions: Tensor) -> None:
        """Add the sums of another head; see `Statistics.merge`."""
        self.statistics.merge(other.statistics, positions)
        self._invalidate()

    def grow(self, positions: Tensor, n_classes: int) -> None:
        """Make room for new classes; see `Statistics.grow`."""
        self.statistics.grow(positions, n_classes)
        if self._coef is not None:
            # A class without samples has the weights 0.
            coef = self._coef.new_zeros(self.size, n_classes)
            coef[:, positions.to(coef.device)] = self._coef
            self._coef = coef

    def keep(self, columns: Tensor) -> None:
        """Keep only these classes; see `Statistics.keep`."""
        self.statistics.keep(columns)
        if self._coef is not None:
            self._coef = self._coef[:, columns.to(self._coef.device)].contiguous()

    def coefficients(self) -> tuple[Tensor, Tensor]:
        """Return W of shape (d, classes) and the intercepts of shape (classes,)."""
        coef = self._coef if self._coef is not None else self._solve()
        if not self.fit_intercept:
            return coef, coef.new_zeros(coef.shape[1])
        prior = (self.weights / self.statistics.total_weight).to(coef)
        return coef, prior - self.statistics.mean @ coef

    def restore(self, statistics: Statistics, coef: Tensor) -> None:
        """Take sums, and the weights that were solved from exactly these sums before."""
        self._factor = CorrectedFactor(statistics.size, statistics.gram.device)
        self.statistics, self._coef, self._least = statistics, coef, None

    def copy(self) -> GramHead:
        """Return a head with the same sums that shares no memory with this one; it solves for itself."""
        twin = GramHead(0, self.precision, self.statistics.gram.device, self.gamma, self.fit_intercept)
        twin.statistics = self.statistics.copy()
        twin._factor = CorrectedFactor(self.size, self.statistics.gram.device)
        return twin

    def solve_anew(self) -> None:
        """Solve from the sums alone if the weights come from a low-rank correction."""
        if self._factor.rank:
            self._invalidate()
        if self._coef is None:
            self._solve()

    def release(self) -> None:
        """Keep only sums and weights that follow from them: no factor, no trace of recent rows."""
        if self._factor.rank:
            self._coef = None
        self._factor.release()

    def novelty(self, rows: Tensor) -> Tensor:
        """Return the leverage xᵀ R x of each row."""
        self._require_factor()
        if not self.fit_intercept:
            return self._factor.leverage(rows)
        leverage = self._factor.leverage(rows - self.statistics.mean.to(rows))
        return leverage + 1.0 / self.statistics.total_weight

    def condition(self) -> float:
        """Estimate the condition number κ of the matrix that is inverted."""
        self._require_fresh_factor()
        generator = torch.Generator().manual_seed(0)
        start = torch.randn(self.size, min(2, self.size), generator=generator)
        start = start.to(self.statistics.gram)
        largest = largest_eigenvalue(self._multiply, start)
        inverse = largest_eigenvalue(self._factor.solve, start.to(self._factor.dtype))
        # Estimates of eigenvalues come from within: allow for what is missing.
        self._least = 0.9 / inverse
        return max(1.0, largest * inverse)

    def trace_of_inverse(self) -> float:
        """Return tr R, from which the degrees of freedom follow."""
        self._require_fresh_factor()
        return self._factor.trace_of_inverse()

    def moment(self) -> Tensor:
        """Return Σ w x yᵀ of shape (d, classes), centred if asked for."""
        if not self.fit_intercept:
            return self.statistics.moment
        mean = self.statistics.mean
        return self.statistics.moment - torch.outer(mean, self.weights.to(mean))

    def select_gamma(self, gammas: Tensor | None = None) -> GammaCurve:
        """Set γ by generalized cross-validation over the sums; see `selection`."""
        curve = generalized_cross_validation(self.statistics, gammas, self.fit_intercept)
        self.set_gamma(curve.best)
        return curve

    def set_gamma(self, gamma: float) -> None:
        """Take another γ; the weights are solved anew when they are next needed."""
        if gamma != self.gamma:
            self.gamma, self._least = gamma, None
            self._invalidate()

    def _solve(self) -> Tensor:
        moment = self.moment()
        coef: Tensor | None = None
        if self.precision.products != self.precision.sums:
            try:
                self._factorize(self.precision.products)
                coef = self._refined_from_float32(moment)
            except SingularMatrixError:
                coef = None
        if coef is None:
            # Also what mixed precision falls back to when a float32 factor is not good enough
            self._factorize(self.precision.sums)
            coef = self._factor.solve(moment)
            if self._estimated_condition() > _ILL_CONDITIONED:
                coef = self._refined(coef, moment)
        if self.precision.products != self.precision.sums:
            self._require_enough_precision()
        self._coef = coef
        return coef

    def _factorize(self, dtype: torch.dtype) -> None:
        gamma = self._resolved_gamma()
        # Σ (x − μ)(x − μ)ᵀ = Σ x xᵀ − n μ μᵀ
        centre = self._centre() if self.fit_intercept else None
        self._factor.factorize(self.statistics.gram, gamma, centre, dtype)

    def _centre(self) -> Tensor:
        centre: Tensor = self.statistics.mean * self.statistics.total_weight**0.5
        return centre

    def _refined_from_float32(self, moment: Tensor) -> Tensor | None:
        """Improve what a factor of lower precision gives; None if that does not converge."""
        coef: Tensor = self._factor.solve(moment).to(moment)
        scale, previous = float(moment.norm()), float("inf")
        for _ in range(_MAX_REFINEMENTS):
            rest = moment - self._multiply(coef)
            error = float(rest.norm())
            if error <= _REFINED * scale:
                return coef
            if not error < previous / 2:
                return None
            previous = error
            coef += self._factor.solve(rest).to(coef)
        return None

    def _refined(self, coef: Tensor, moment: Tensor) -> Tensor:
        """Improve weights by residuals that are computed with twice the digits."""
        centre = self._centre() if self.fit_intercept else None
        previous = float("inf")
        for _ in range(3):
            rest = residual(self.statistics.gram, self._resolved_gamma(), centre, coef, moment)
            step = self._factor.solve(rest)
            size = float(step.norm())
            if not size < previous / 2:
                break
            previous = size
            coef = coef + step
        return coef

    def _estimated_condition(self) -> float:
        # The trace bounds the largest eigenvalue from above, a pivot the smallest one.
        return self.statistics.mean_square * self.size / self._factor.smallest_pivot()

    def _multiply(self, block: Tensor) -> Tensor:
        """Multiply (gram + γI), centred if asked for, with a block of columns."""
        image = symmetric_matmul(self.statistics.gram, block)
        if self.fit_intercept:
            centre = self._centre()
            image -= torch.outer(centre, centre @ block)
        return image.add_(block, alpha=self._resolved_gamma())

    def _correct(self, rows: Tensor, columns: Tensor, weights: Tensor | None) -> bool:
        """Update the weights for rows about to be added; False, with nothing done, if inaccurate."""
        coef = self._coef
        if coef is None:
            return False
        targets = coef.new_zeros(len(rows), coef.shape[1])
        targets[torch.arange(len(rows)), columns.cpu()] = 1.0
        rows, targets = self._regression_rows(rows, targets, weights)
        absorbed = self._factor.absorb(rows)
        if absorbed is None:
            return False
        # W += R_k Xᵀ (Y − X W), of which Eq. (9) is the case of new classes only
        self._coef = coef + self._factor.step(*absorbed, targets - rows.to(coef) @ coef).to(coef)
        return True

    def _regression_rows(
        self, rows: Tensor, targets: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the rows and targets by which this block changes the (centred) regression."""
        if weights is None and not self.fit_intercept:
            return rows, targets
        if weights is None:
            weights = torch.ones(len(rows), dtype=torch.float64)
        root = weights.to(targets).sqrt().unsqueeze(1)
        if not self.fit_intercept:
            return rows * root.to(rows), targets * root
        # With n old samples of mean μ and k new ones of mean m, the centred sum grows by
        # Σ (x − m)(x − m)ᵀ + nk / (n + k) (m − μ)(m − μ)ᵀ: one more row.
        n, k = self.statistics.total_weight, float(weights.sum())
        share = (weights / k).to(targets)
        row_mean, target_mean = share.to(rows) @ rows, share @ targets
        jump = (n * k / (n + k)) ** 0.5
        shift = jump * (row_mean - self.statistics.mean.to(rows))
        turn = jump * (target_mean - (self.weights / n).to(targets))
        rows = torch.cat([(rows - row_mean) * root.to(rows), shift.unsqueeze(0)])
        targets = torch.cat([(targets - target_mean) * root, turn.unsqueeze(0)])
        return rows, targets

    def _invalidate(self) -> None:
        self._factor.drop()
        self._coef = None

    def _require_factor(self) -> None:
        if self._factor.ready:
            return
        if self._coef is None:
            self._solve()
            return
        # Weights that were loaded: only the factor is missing
        try:
            self._factorize(self.precision.products)
        except SingularMatrixError:
            self._factorize(self.precision.sums)

    def _require_fresh_factor(self) -> None:
        if self._factor.rank:
            self._invalidate()
        self._require_factor()

    def _resolved_gamma(self) -> float:
        if self.gamma is None:
            self.gamma = generalized_cross_validation(self.statistics, None, self.fit_intercept).best
        return self.gamma

    def _require_possible(self, remaining: Statistics) -> None:
        """Raise unless what is left after forgetting can be a sum of x xᵀ."""
        before = float(self.statistics.gram.diagonal().max())
        rounding = 200 * self.size**0.5 * self.precision.rounding * before
        shift = 0.0 if self.gamma == 0 else rounding
        matrix = remaining.gram.clone()
        matrix.diagonal().add_(shift)
        try:
            cholesky_(matrix, shift)
        except SingularMatrixError as error:
            raise InputError(
                "These samples cannot be forgotten: without them the sums would no longer be those of "
                "any set of samples (the matrix is not positive definite). They were not all learnt "
                "by this model, or not with these weights."
            ) from error

    def _require_enough_precision(self) -> None:
        trace = self.statistics.mean_square * self.size + self._resolved_gamma()
        if self._least is not None and self.precision.rounding * trace / self._least <= _MAX_MIXED_ERROR:
            # The trace is an upper bound of the largest eigenvalue: no need to look closer.
            return
        condition = self.condition()
        error = self.precision.rounding * condition
        if error > _MAX_MIXED_ERROR:
            self._invalidate()
            raise SingularMatrixError(
                f"The condition number of gram + γI is {condition:.2g}, too large for "
                f'dtype="{self.precision.name}" (γ = {self._resolved_gamma():g}): float32 products '
                f"would leave a relative error of about {error:.1g}. Take a larger gamma or "
                'dtype="float64".'
            )
