"""Weights that follow new rows by low-rank corrections, without a new factor."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from acil.analytic.correction import regression_rows
from acil.analytic.gathered import Gathered
from acil.analytic.refinement import Unknowns
from acil.analytic.ridge import Ridge
from acil.analytic.solution import Solution


class Following:
    """Corrections of one solution for the samples of one call: `absorb` each block, then `finish` it.

    Parameters
    ----------
    gathered : Gathered
    ridge : Ridge
    solution : Solution
        Of the sums as they are.
    """

    def __init__(self, gathered: Gathered, ridge: Ridge, solution: Solution) -> None:
        self._gathered = gathered
        self._ridge = ridge
        self._solution = solution
        #: Whether each correction is to be refined, or the weights are to be checked after it.
        self._refined = (
            ridge.exact
            and solution.factor.ready
            and solution.refine
            and not solution.drift.allows_another
        )
        self._checked = False
        self._change: Callable[[], Tensor] | None = None

    def worthwhile(self, n_rows: int) -> bool:
        """Say whether correcting for so many rows is cheaper than solving anew."""
        solution, n_classes = self._solution, self._gathered.sums.n_classes
        if solution.coef is None:
            return False
        if solution.factor.worth_correcting(n_rows, n_classes, self._refined):
            return True
        if not (self._refined and solution.can_be_checked):
            return False
        # To refine what many rows give takes longer than to look whether that is needed.
        self._refined, self._checked = False, True
        return solution.factor.worth_correcting(n_rows, n_classes)

    @property
    def needs_sums(self) -> bool:
        """Whether `finish` needs sums that have the samples; if not, these can wait for more."""
        return self._refined or self._checked or self._ridge.fit_intercept

    def absorb(self, rows: Tensor, columns: Tensor, weights: Tensor | None) -> bool:
        """Correct the factor for samples about to be added.

        Parameters
        ----------
        rows, columns, weights
            See `Statistics.add`.

        Returns
        -------
        bool
            False, with nothing done, if these rows are too far from everything learnt for an accurate
            correction.
        """
        solution, centred = self._solution, self._ridge.fit_intercept
        coef, intercept = solution.coefficients()
        changed_rows, changed_targets = rows, None
        if weights is not None or centred:
            changed_rows, changed_targets = regression_rows(
                self._gathered.sums, rows, self._targets(rows, columns), weights, centred
            )

        def residual() -> Tensor:
            wanted = self._targets(rows, columns) if changed_targets is None else changed_targets
            return wanted - changed_rows.to(coef) @ coef

        absorbed = solution.factor.absorb(changed_rows, None if self._refined else residual)
        if absorbed is None:
            return False
        # W += R_k Xᵀ (Y − X W), of which Eq. (9) is the case of new classes only
        if not self._refined:
            self._change = lambda: solution.factor.step(*absorbed).to(coef)
            return True
        root = rows.new_ones(len(rows)) if weights is None else weights.to(rows).sqrt()
        errors = self._targets(rows, columns) - rows @ coef - intercept
        rows, errors = rows * root.unsqueeze(1), errors * root.unsqueeze(1)
        right = Unknowns(rows.mT, root if centred else None)
        self._change = lambda: (
            solution.equations().refined(solution.factor.solve_corrected, right) @ errors
        )
        return True

    def _targets(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return Y of shape (n, n_classes): 1 in the column of each row's class."""
        coef = self._solution.weights()
        targets = coef.new_zeros(len(rows), coef.shape[1])
        return targets.scatter_(1, columns.to(targets.device).unsqueeze(1), 1.0)

    def finish(self) -> None:
        """Move the weights, now that the sums have the absorbed samples or these wait."""
        solution = self._solution
        if self._change is None:
            raise RuntimeError("no rows were absorbed")
        step = self._change()
        # It holds the rows, which must not stay alive while the next ones are made.
        self._change = None
        coef = solution.coef = solution.weights() + step
        size = step.norm() / coef.norm().clamp(min=1e-300) if solution.refine else None
        # Before other numbers are read: the device is then waited for once.
        is_good = not self._checked or solution.good_enough(coef)
        if not solution.factor.sound:
            solution.invalidate()
        elif size is not None:
            solution.drift.note(float(size), self._refined or self._checked)
            if solution.drift.exhausted or not is_good:
                solution.coef = solution.refined()
                solution.drift.renew()
