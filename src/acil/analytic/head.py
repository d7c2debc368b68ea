"""The default solver: keep the sums, solve by Cholesky when weights are needed."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from acil.analytic.following import Following
from acil.analytic.forgetting import require_possible
from acil.analytic.gathered import Gathered
from acil.analytic.lostdigits import LostDigits, warn_of_rounded_sums
from acil.analytic.precision import Precision
from acil.analytic.ridge import Ridge
from acil.analytic.selection import GammaCurve, generalized_cross_validation
from acil.analytic.solution import Solution
from acil.analytic.statistics import Statistics

#: One block of samples: expanded rows, their class columns, their weights.
Block = tuple[Tensor, Tensor, Tensor | None]


class GramHead:
    """Ridge regression on one-hot targets from sums, with weights that are solved when needed.

    After few new rows the weights follow from the last factor by a low-rank correction (`Following`),
    after many from a new factor (`Solution`). The sums are always up to date (`Gathered`), with digits
    beyond float64 where these are needed (`Digits`).

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
        self.precision = precision
        self.fit_intercept = fit_intercept
        self.extended = extended
        self._ridge = Ridge(precision, gamma, fit_intercept, extended)
        self._gathered = Gathered(size, self._ridge, device)
        self._digits = self._gathered.digits
        self._solution = Solution(self._gathered, self._ridge)

    @property
    def gamma(self) -> float | None:
        """Ridge strength γ; None as long as it is to be selected."""
        return self._ridge.gamma

    @gamma.setter
    def gamma(self, gamma: float | None) -> None:
        self._ridge.gamma = gamma

    @property
    def statistics(self) -> Statistics:
        """Sums over all samples; those of the last few are added when the sums are asked for."""
        return self._gathered.statistics

    @property
    def size(self) -> int:
        """Width d of the rows."""
        return self._gathered.sums.size

    @property
    def counts(self) -> Tensor:
        """Number of samples of each class."""
        return self._gathered.counts

    @property
    def weights(self) -> Tensor:
        """Sum of the sample weights of each class."""
        return self.statistics.weights

    def learn(self, blocks: Iterable[Block], n_rows: int) -> None:
        """Add samples, given in blocks of ``n_rows`` rows in all.

        First samples that fill all directions are added without low parts, and once more with them
        if it turns out that they are needed; only an iterator, which cannot be read twice, is not.
        """
        self._gathered.require_whole()
        pairs = False
        if self._digits.may_start_plainly(self._gathered.sums, n_rows) and iter(blocks) is not blocks:
            if self._learn_plainly(blocks):
                return
            pairs = True
        following = Following(self._gathered, self._ridge, self._solution)
        # A look makes a new factor: corrections before it would be in vain.
        in_vain = self._digits.look_ahead(self._gathered.sums, n_rows)
        follow, looked = following.worthwhile(n_rows) and not in_vain, False
        for rows, columns, weights in blocks:
            if looked:
                self._invalidate()
            follow = follow and following.absorb(rows, columns, weights)
            # Weights that are corrected by rows alone need no sums: these can wait for more rows.
            if follow and not following.needs_sums and self._gathered.has_room(rows):
                self._gathered.wait(rows, columns, weights)
            else:
                self._gathered.add(rows, columns, weights, pairs)
            del rows  # or two blocks would be alive while the next one is made
            if follow:
                following.finish()
            looked = self._digits.look_due and self._look_at_least_eigenvalue(n_rows)
            follow = follow and not looked
        if not (follow or looked):
            self._invalidate()

    def _learn_plainly(self, blocks: Iterable[Block]) -> bool:
        """Add first samples without low parts; False, with empty sums, if they turn out to be needed."""
        sums, longest = self.statistics, 1
        for rows, columns, weights in blocks:
            longest = max(longest, len(columns))
            sums.add(rows, columns, weights)
            del rows
        if not self.needs_low_parts(longest):
            return True
        sums.clear()
        self._invalidate()
        return False

    def may_start_plainly(self, n_rows: int) -> bool:
        """Say whether so many first samples may be added without low parts, and looked at afterwards."""
        return self._digits.may_start_plainly(self._gathered.sums, n_rows)

    def needs_low_parts(self, block: int) -> bool:
        """Look whether first samples, added without low parts in blocks of rows, need them after all."""
        self._invalidate()
        self._look_at_least_eigenvalue(block, growing=False)
        return self.statistics.low is not None

    def forget(self, blocks: Iterable[Block]) -> None:
        """Remove samples, or raise and leave everything as it was."""
        sums = self.statistics
        remaining, exact_above = sums.copy(), self._digits.when_forgetting(sums)
        for rows, columns, weights in blocks:
            remaining.subtract(rows, columns, weights, exact_above)
        if remaining.n_samples == 0:
            remaining.clear()
            self._solution.lost = LostDigits()
        else:
            require_possible(sums, remaining, self.gamma, self.precision.rounding)
            if self._ridge.exact and sums.low is None:
                self._solution.lost.note(sums)
        self._gathered.replace(remaining)
        self._solution.forget_eigenvalue()
        self._invalidate()

    def merge(self, other: GramHead, positions: Tensor) -> None:
        """Add the sums of another head; see `Statistics.merge`."""
        mine, theirs = self.statistics, other.statistics
        if self.extended and theirs.low is None and theirs.n_samples > 0:
            warn_of_rounded_sums()
        mine.merge(theirs, positions, self._digits.when_merging(mine, theirs))
        self._invalidate()

    def branch(self, n_classes: int, plainly: bool = False) -> GramHead:
        """Return an empty head whose samples are to be absorbed by this one.

        It keeps low parts unless this head has found that it needs none, or ``plainly`` asks for none.
        """
        twin = self._alike(self.size)
        twin.grow(torch.empty(0, dtype=torch.int64), n_classes)
        twin._digits.wanted = not plainly and self._digits.wanted_in_branch(self.statistics)
        return twin

    def absorb(self, branch: GramHead, positions: Tensor) -> None:
        """Add the sums of a branch, and look whether they still need low parts, as `learn` does.

        First samples of a branch that was to do without were looked at before.
        """
        before = self.statistics.n_samples
        looked = before == 0 and branch._digits.wanted is False
        self.merge(branch, positions)
        if not looked and self._digits.worth_a_look(before, self.statistics):
            self._look_at_least_eigenvalue(branch.statistics.n_samples)

    def grow(self, positions: Tensor, n_classes: int) -> None:
        """Make room for new classes; see `Statistics.grow`."""
        self.statistics.grow(positions, n_classes)
        self._solution.grow(positions, n_classes)

    def keep(self, columns: Tensor) -> None:
        """Keep only these classes; see `Statistics.keep`."""
        self.statistics.keep(columns)
        self._solution.keep(columns)

    def coefficients(self) -> tuple[Tensor, Tensor]:
        """Return W of shape (d, classes) and the intercepts of shape (classes,)."""
        return self._solution.coefficients()

    def restore(self, statistics: Statistics, coef: Tensor | None) -> None:
        """Take sums, and the weights that were solved from exactly these sums before, if they were."""
        self._gathered.replace(statistics)
        self._solution.take(coef)

    def copy(self) -> GramHead:
        """Return a head with the same sums that shares no memory with this one; it solves for itself."""
        # An empty matrix as wide as this one would be made for nothing.
        twin = self._alike(0)
        twin.restore(self.statistics.copy(), None)
        twin._solution.lost = self._solution.lost.copy()
        return twin

    def solve_anew(self) -> None:
        """Solve from the sums alone if the weights come from a low-rank correction."""
        self._solution.solve_anew()

    def release(self, memory: bool = True) -> None:
        """Keep only sums and weights that follow from them: no factor, no trace of recent rows.

        Parameters
        ----------
        memory : bool
            Whether to give the memory of the factor back, too.
        """
        self._gathered.fold()
        self._solution.release(memory)

    def novelty(self, rows: Tensor) -> Tensor:
        """Return the leverage xᵀ R x of each row."""
        self._solution.require_factor()
        if not self.fit_intercept:
            return self._solution.factor.leverage(rows)
        leverage = self._solution.factor.leverage(rows - self.statistics.mean.to(rows))
        return leverage + 1.0 / self.statistics.total_weight

    def condition(self) -> float:
        """Estimate the condition number κ of the matrix that is inverted."""
        return self._solution.condition()

    def trace_of_inverse(self) -> float:
        """Return tr R, from which the degrees of freedom follow."""
        self._solution.require_fresh_factor()
        return self._solution.factor.trace_of_inverse()

    def moment(self) -> Tensor:
        """Return Σ w x yᵀ of shape (d, classes), centred if asked for."""
        return self._solution.moment()

    def select_gamma(self, gammas: Tensor | None = None) -> GammaCurve:
        """Set γ by generalized cross-validation over the sums; see `selection`."""
        curve = generalized_cross_validation(self.statistics, gammas, self.fit_intercept)
        self.set_gamma(curve.best)
        return curve

    def set_gamma(self, gamma: float) -> None:
        """Take another γ; the weights are solved anew when they are next needed."""
        if gamma != self.gamma:
            self.gamma = gamma
            self._solution.forget_eigenvalue()
            self._invalidate()

    def _alike(self, size: int) -> GramHead:
        """Return an empty head with the same settings, of any width."""
        device = self._gathered.sums.gram.device
        return GramHead(size, self.precision, device, self.gamma, self.fit_intercept, self.extended)

    def _invalidate(self) -> None:
        self._solution.invalidate()

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
        self._digits.look_due = False
        sums, solution = self.statistics, self._solution
        if not self._digits.in_question(sums):
            return False
        solution.look()
        needed = self._digits.needed(
            sums, solution.factor, solution.moment(), solution.least_eigenvalue, block, growing
        )
        sums.keep_pairs(needed)
        if self.gamma is None:
            solution.factor.drop()
        return True
