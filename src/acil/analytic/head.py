"""The default solver: keep the sums, solve by Cholesky when weights are needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from acil.analytic import rounding
from acil.analytic.correction import regression_rows
from acil.analytic.drift import Drift
from acil.analytic.factor import CorrectedFactor
from acil.analytic.forgetting import require_possible
from acil.analytic.linalg import largest_eigenvalue, symmetric_matmul
from acil.analytic.lostdigits import LostDigits, warn_of_rounded_sums
from acil.analytic.pending import PendingRows
from acil.analytic.precision import Precision
from acil.analytic.refinement import NormalEquations, Unknowns
from acil.analytic.selection import GammaCurve, generalized_cross_validation
from acil.analytic.sensitivity import score_change
from acil.analytic.statistics import Statistics
from acil.errors import InterruptedModelError, SingularMatrixError

#: One block of samples: expanded rows, their class columns, their weights.
Block = tuple[Tensor, Tensor, Tensor | None]

#: Relative residual at which the refined weights of mixed precision are as good as its sums, whose
#: products are rounded to 6e-8.
_REFINED = 1e-8
_MAX_REFINEMENTS = 10
#: Above this estimate of the condition number, rounding in the Cholesky solve could move scores by
#: 1e-10 and more (measured: up to 0.3 eps times it), and is refined away.
_ILL_CONDITIONED = 1e6
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
    extended : bool
        Keep low parts of the sums for good, whatever they cost. Needs float64 products.
    """

    solver = "gram"

    def __init__(
        self,
        size: int,
        precision: Precision,
        device: torch.device,
        gamma: float | None,
        fit_intercept: bool = False,
        extended: bool = False,
    ) -> None:
        self._sums = Statistics(size, 0, precision.sums, device)
        self._pending = PendingRows()
        #: Whether adding the rows that waited was interrupted.
        self._torn = False
        self.precision = precision
        self.gamma = gamma
        self.fit_intercept = fit_intercept
        self.extended = extended
        self._factor = CorrectedFactor(size, device)
        self._coef: Tensor | None = None
        #: A lower bound of the least eigenvalue, which more samples can only raise.
        self._least: float | None = None
        #: Whether the factor is of a matrix whose solutions have to be refined.
        self._refine = False
        #: What corrections have cost in digits since the weights were last refined.
        self._drift = Drift()
        #: Whether the sums have grown so much that the least eigenvalue is to be looked at.
        self._look_due = False
        #: What forgetting has cost in digits.
        self._lost = LostDigits()
        #: Of a branch: whether the head that it came from needs low parts; None for other heads.
        self._pairs_wanted: bool | None = None

    @property
    def statistics(self) -> Statistics:
        """Sums over all samples; those of the last few are added when the sums are asked for."""
        self._require_whole()
        self._fold()
        return self._sums

    @statistics.setter
    def statistics(self, sums: Statistics) -> None:
        self._sums, self._pending, self._torn = sums, PendingRows(), False

    @property
    def size(self) -> int:
        """Width d of the rows."""
        return self._sums.size

    @property
    def counts(self) -> Tensor:
        """Number of samples of each class."""
        if not len(self._pending):
            return self._sums.counts
        return self._sums.counts + self._pending.counts(self._sums.n_classes)

    @property
    def weights(self) -> Tensor:
        """Sum of the sample weights of each class."""
        return self.statistics.weights

    def learn(self, blocks: Iterable[Block], n_rows: int) -> None:
        """Add samples, given in blocks of ``n_rows`` rows in all.

        First samples that fill all directions are added without low parts, and once more with them
        if it turns out that they are needed; only an iterator, which cannot be read twice, is not.
        """
        self._require_whole()
        pairs = False
        if self._sums.n_samples == 0 and self._pairs_wanted is None and not self.extended:
            repeatable = rounding.settled(n_rows, self.size) and iter(blocks) is not blocks
            if repeatable and self._learn_plainly(blocks):
                return
            pairs = repeatable
        exact = self.precision.products == torch.float64
        refined = exact and self._factor.ready and self._refine and not self._drift.allows_another
        follow = self._coef is not None and self._factor.worth_correcting(
            n_rows, self._sums.n_classes, refined
        )
        looked = False
        for rows, columns, weights in blocks:
            if looked:
                self._invalidate()
            change = self._absorb(rows, columns, weights, refined) if follow else None
            follow = change is not None
            # Weights that are corrected by rows alone need no sums: these can wait for more rows.
            waits = follow and not (refined or self.fit_intercept) and self._pending.has_room(rows)
            if waits:
                self._pending.append(rows, columns, weights)
            else:
                self._fold()
                self._add(rows, columns, weights, pairs)
            if change is not None:
                self._coef = change()
                if self._drift.exhausted:
                    equations = self._equations()
                    self._coef = equations.refined(self._factor.solve_corrected, *equations.right())
                    self._drift.renew()
            del rows, change  # or two blocks would be alive while the next one is made
            looked = self._look_due and self._look_at_least_eigenvalue(n_rows)
            follow = follow and not looked
        if not (follow or looked):
            self._invalidate()

    def _fold(self) -> None:
        """Add the samples that wait to the sums."""
        if len(self._pending) and not self._torn:
            self._torn = True
            self._add(*self._pending.take())
            self._torn = False

    def _require_whole(self) -> None:
        if self._torn:
            raise InterruptedModelError(
                "Adding recent samples to the sums was interrupted, so the sums hold part of them. Load "
                "the last saved model, or fit again."
            )

    def _add(self, rows: Tensor, columns: Tensor, weights: Tensor | None, pairs: bool = False) -> None:
        """Add samples to the sums, with low parts if they need them, or in any case (``pairs``)."""
        before = self._sums.n_samples
        settled = self._pairs_wanted is False or rounding.settled(before, self.size)
        self._sums.add(rows, columns, weights, -math.inf if pairs else self._exact_above(settled))
        if self._pairs_wanted is None and self._worth_a_look(before):
            self._look_due = True

    def _learn_plainly(self, blocks: Iterable[Block]) -> bool:
        """Add first samples without low parts; False, with empty sums, if they turn out to be needed."""
        longest = 1
        for rows, columns, weights in blocks:
            longest = max(longest, len(columns))
            self._sums.add(rows, columns, weights)
            del rows
        self._invalidate()
        self._look_at_least_eigenvalue(longest, growing=False)
        if self.statistics.low is None:
            return True
        self.statistics.clear()
        self._invalidate()
        return False

    def forget(self, blocks: Iterable[Block]) -> None:
        """Remove samples, or raise and leave everything as it was."""
        remaining = self.statistics.copy()
        # Sums that did without low parts, and that γ alone leaves beyond their reach, go on so.
        settled = remaining.low is None and rounding.settled(remaining.n_samples, self.size)
        exact_above = self._exact_above(settled and self._beyond_reach(self.gamma or 0.0))
        for rows, columns, weights in blocks:
            remaining.subtract(rows, columns, weights, exact_above)
        if remaining.n_samples == 0:
            remaining.clear()
            self._lost = LostDigits()
        else:
            require_possible(self.statistics, remaining, self.gamma, self.precision.rounding)
            if self.precision.products == torch.float64 and self.statistics.low is None:
                self._lost.note(self.statistics)
        self.statistics, self._least = remaining, None
        self._invalidate()

    def merge(self, other: GramHead, positions: Tensor) -> None:
        """Add the sums of another head; see `Statistics.merge`."""
        sums = (self.statistics, other.statistics)
        if self.extended and other.statistics.low is None and other.statistics.n_samples > 0:
            warn_of_rounded_sums()
        plain = all(part.low is None for part in sums)
        settled = plain and rounding.settled(sum(part.n_samples for part in sums), self.size)
        self.statistics.merge(other.statistics, positions, self._exact_above(settled))
        self._invalidate()

    def branch(self, n_classes: int) -> GramHead:
        """Return an empty head whose samples are to be absorbed by this one.

        It keeps low parts unless this head has found that it needs none.
        """
        sums = self.statistics
        options = (self.gamma, self.fit_intercept, self.extended)
        twin = GramHead(self.size, self.precision, sums.gram.device, *options)
        twin.grow(torch.empty(0, dtype=torch.int64), n_classes)
        twin._pairs_wanted = sums.low is not None or not rounding.settled(sums.n_samples, self.size)
        return twin

    def absorb(self, branch: GramHead, positions: Tensor) -> None:
        """Add the sums of a branch, and look whether they still need low parts, as `learn` does."""
        before = self.statistics.n_samples
        self.merge(branch, positions)
        if self._worth_a_look(before):
            self._look_at_least_eigenvalue(branch.statistics.n_samples)

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
        options = (self.gamma, self.fit_intercept, self.extended)
        twin = GramHead(0, self.precision, self.statistics.gram.device, *options)
        twin.statistics = self.statistics.copy()
        twin._factor = CorrectedFactor(self.size, self.statistics.gram.device)
        return twin

    def solve_anew(self) -> None:
        """Solve from the sums alone if the weights come from a low-rank correction."""
        if self._factor.rank:
            self._invalidate()
        if self._coef is None:
            self._solve()

    def release(self, memory: bool = True) -> None:
        """Keep only sums and weights that follow from them: no factor, no trace of recent rows.

        Parameters
        ----------
        memory : bool
            Whether to give the memory of the factor back, too.
        """
        self._fold()
        if self._factor.rank:
            self._coef = None
        if memory:
            self._factor.release()
        else:
            self._factor.drop()

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
        largest = largest_eigenvalue(self._multiply, self._random_start())
        self._least = self._least_eigenvalue()
        return max(1.0, largest * 0.9 / self._least)

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
            if not self._factor.ready or self._factor.dtype != self.precision.sums:
                self._factorize(self.precision.sums)
            if self._refine:
                self._drift = Drift(self.precision.rounding * self._condition_bound())
                equations = self._equations()
                coef = equations.refined(self._factor.solve, *equations.right())
            else:
                coef = self._factor.solve(moment)
            self._lost.warn(self._factor, moment, self.gamma or 0.0, self.precision.rounding)
        if self.precision.products != self.precision.sums:
            self._require_enough_precision()
        self._coef = coef
        return coef

    def _factorize(self, dtype: torch.dtype) -> None:
        gamma = self._resolved_gamma()
        # Σ (x − μ)(x − μ)ᵀ = Σ x xᵀ − n μ μᵀ
        centre = self._centre() if self.fit_intercept else None
        self._factor.factorize(self.statistics.gram, gamma, centre, dtype)
        self._refine = self._ill_conditioned()

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

    def _equations(self) -> NormalEquations:
        return NormalEquations(self.statistics, self._resolved_gamma(), self.fit_intercept)

    def _ill_conditioned(self) -> bool:
        return self._condition_bound() > _ILL_CONDITIONED

    def _condition_bound(self) -> float:
        # The trace bounds the largest eigenvalue from above, a pivot the smallest one.
        return self.statistics.mean_square * self.size / self._factor.smallest_pivot()

    def _exact_above(self, settled: bool = False) -> float:
        """Return the largest element of gram that sums without low parts may have; see `rounding`.

        Parameters
        ----------
        settled : bool
            Whether to go on as before: with low parts if there are any.
        """
        if self.precision.products != torch.float64:
            return math.inf
        if self.extended:
            return -math.inf
        if settled:
            return math.inf if self._sums.low is None else -math.inf
        return self._harmless_by_gamma()

    def _harmless_by_gamma(self) -> float:
        """Return the largest element of gram whose rounding is harmless because λ ≥ γ."""
        return rounding.exact_above(self.gamma or 0.0, self.size, self.precision.rounding)

    def _beyond_reach(self, least: float, fall: float = 1.0) -> bool:
        """Say whether a least eigenvalue makes low parts useless; see `rounding`."""
        if self.fit_intercept:
            # Centring takes out what the bound is made of.
            return False
        sums = self._sums
        largest = rounding.eigenvalue_bound(sums.moment.sum(dim=1), sums.total_weight)
        return rounding.beyond_reach(largest, least * fall, self.size)

    def _worth_a_look(self, before: int) -> bool:
        return not self.extended and rounding.worth_a_look(before, self._sums.n_samples, self.size)

    def _look_at_least_eigenvalue(self, block: int, growing: bool = True) -> bool:
        """Decide whether filled sums need low parts; say whether that took a factorization.

        If it did, the factor is there for the next solution, and former weights are not.

        Parameters
        ----------
        block : int
            Rows that are added at a time.
        growing : bool
            Whether these samples are the first of a stream of them.
        """
        self._look_due = False
        sums = self.statistics
        largest = sums.largest
        if self.precision.products != torch.float64 or largest <= self._harmless_by_gamma():
            return False
        self._invalidate()
        centre = self._centre() if self.fit_intercept else None
        try:
            self._factor.factorize(sums.gram, self.gamma or 0.0, centre, self.precision.sums)
            self._refine = self._ill_conditioned()
            least = self._least_eigenvalue()
        except SingularMatrixError:
            least = 0.0
        harmless = largest <= rounding.exact_above(least, self.size, self.precision.rounding)
        harmless = harmless or (least > 0 and self._rounding_invisible(block))
        fall = rounding.fall_to_come(sums.n_samples, self.size) if growing else 1.0
        sums.keep_pairs(not (harmless or self._beyond_reach(least, fall)))
        if self.gamma is None:
            self._factor.drop()
        return True

    def _rounding_invisible(self, block: int) -> bool:
        """Say whether rounding of the sums moves no score that matters, by trying it out."""
        sums = self.statistics
        noise = rounding.noise_of(sums.n_samples, block, self.precision.rounding)
        gamma = self.gamma or 0.0
        change = score_change(self._factor, sums.gram.diagonal(), self.moment(), gamma, noise)
        return rounding.invisible(change)

    def _least_eigenvalue(self) -> float:
        """Return a lower bound of the least eigenvalue of the matrix that was factorized."""
        largest = largest_eigenvalue(self._factor.solve, self._random_start().to(self._factor.dtype))
        # Estimates of eigenvalues come from within: allow for what is missing.
        return 0.9 / largest

    def _random_start(self) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        start = torch.randn(self.size, min(2, self.size), generator=generator)
        return start.to(self.statistics.gram)

    def _multiply(self, block: Tensor) -> Tensor:
        """Multiply (gram + γI), centred if asked for, with a block of columns."""
        image = symmetric_matmul(self.statistics.gram, block)
        if self.fit_intercept:
            centre = self._centre()
            image -= torch.outer(centre, centre @ block)
        return image.add_(block, alpha=self._resolved_gamma())

    def _absorb(
        self, rows: Tensor, columns: Tensor, weights: Tensor | None, refined: bool
    ) -> Callable[[], Tensor] | None:
        """Correct the factor for rows about to be added.

        Returns
        -------
        callable or None
            What gives the new weights when the sums have the rows. None, with nothing done, if these
            rows are too far from everything learnt for an accurate correction.
        """
        coef, intercept = self.coefficients()
        targets = coef.new_zeros(len(rows), coef.shape[1])
        targets[torch.arange(len(rows)), columns.cpu()] = 1.0
        changed_rows, changed_targets = rows, targets
        if weights is not None or self.fit_intercept:
            changed_rows, changed_targets = regression_rows(
                self._sums, rows, targets, weights, self.fit_intercept
            )
        absorbed = self._factor.absorb(changed_rows)
        if absorbed is None:
            return None
        # W += R_k Xᵀ (Y − X W), of which Eq. (9) is the case of new classes only
        if not refined:
            errors = changed_targets - changed_rows.to(coef) @ coef
            return lambda: self._moved(coef, self._factor.step(*absorbed, errors).to(coef), refined)
        root = rows.new_ones(len(rows)) if weights is None else weights.to(rows).sqrt()
        rows, errors = rows * root.unsqueeze(1), (targets - rows @ coef - intercept) * root.unsqueeze(1)
        right = Unknowns(rows.mT, root if self.fit_intercept else None)

        def change() -> Tensor:
            step = self._equations().refined(self._factor.solve_corrected, right) @ errors
            return self._moved(coef, step, refined)

        return change

    def _moved(self, coef: Tensor, step: Tensor, refined: bool) -> Tensor:
        """Return weights after a step, whose rounding is taken note of."""
        moved = coef + step
        if self._refine:
            self._drift.note(float(step.norm()) / max(float(moved.norm()), 1e-300), refined)
        return moved

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
