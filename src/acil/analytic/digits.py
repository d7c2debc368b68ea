"""Which sums of a head keep low parts; the rules themselves are in `rounding`."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from acil.analytic import rounding
from acil.analytic.factor import CorrectedFactor
from acil.analytic.ridge import Ridge
from acil.analytic.sensitivity import score_change
from acil.analytic.statistics import Statistics


class Digits:
    """Decide whether sums keep low parts, from γ and from looks at the least eigenvalue.

    The first three methods return a limit: sums keep low parts if an element of gram exceeds it.

    Parameters
    ----------
    ridge : Ridge

    Attributes
    ----------
    look_due : bool
        Whether the sums have grown so much that the least eigenvalue is to be looked at.
    wanted : bool or None
        Of a branch: whether the head that it came from needs low parts; None for other heads.
    """

    def __init__(self, ridge: Ridge) -> None:
        self._ridge = ridge
        self.look_due = False
        self.wanted: bool | None = None

    def when_adding(self, sums: Statistics) -> float:
        """Return the limit for samples that are added to sums."""
        settled = self.wanted is False or rounding.settled(sums.n_samples, sums.size)
        return self._as_before(sums) if settled else self._by_gamma(sums)

    def when_forgetting(self, sums: Statistics) -> float:
        """Return the limit for samples that are taken from sums."""
        # Sums that did without low parts, and that γ alone leaves beyond their reach, go on so.
        settled = sums.low is None and rounding.settled(sums.n_samples, sums.size)
        if settled and self._beyond_reach(sums, self._ridge.known_gamma):
            return self._as_before(sums)
        return self._by_gamma(sums)

    def when_merging(self, sums: Statistics, others: Statistics) -> float:
        """Return the limit for sums to which others are added."""
        plain = sums.low is None and others.low is None
        if plain and rounding.settled(sums.n_samples + others.n_samples, sums.size):
            return self._as_before(sums)
        return self._by_gamma(sums)

    def may_start_plainly(self, sums: Statistics, n_rows: int) -> bool:
        """Say whether so many samples may be added without low parts, to be looked at afterwards."""
        first = sums.n_samples == 0 and self.wanted is None
        return first and not self._ridge.extended and rounding.settled(n_rows, sums.size)

    def wanted_in_branch(self, sums: Statistics) -> bool:
        """Say whether samples that are gathered elsewhere for these sums need low parts."""
        return sums.low is not None or not rounding.settled(sums.n_samples, sums.size)

    def worth_a_look(self, before: int, sums: Statistics) -> bool:
        """Say whether the least eigenvalue is to be looked at, after sums of ``before`` samples grew."""
        if self._ridge.extended:
            return False
        return rounding.worth_a_look(before, sums.n_samples, sums.size)

    def note_growth(self, before: int, sums: Statistics) -> None:
        """Take note that sums of ``before`` samples grew."""
        if self.wanted is None and self.worth_a_look(before, sums):
            self.look_due = True

    def look_ahead(self, sums: Statistics, n_rows: int) -> bool:
        """Say whether adding so many rows will call for a look."""
        if self.wanted is not None or self._ridge.extended:
            return False
        due = rounding.worth_a_look(sums.n_samples, sums.n_samples + n_rows, sums.size)
        return due and self.in_question(sums)

    def in_question(self, sums: Statistics) -> bool:
        """Say whether low parts could be needed, so that it takes a look to know."""
        return self._ridge.exact and sums.largest > self._harmless_by_gamma(sums)

    def needed(
        self,
        sums: Statistics,
        factor: CorrectedFactor,
        moment: Tensor,
        least_eigenvalue: Callable[[], float],
        block: int,
        growing: bool,
    ) -> bool:
        """Say whether sums that fill all directions need low parts.

        Parameters
        ----------
        sums : Statistics
        factor : CorrectedFactor
            Of gram + γI, centred if the regression is; not ready if that is singular.
        moment : Tensor of shape (d, n_classes)
            Centred if the regression is.
        least_eigenvalue : callable
            Gives a lower bound of the least eigenvalue; called only if nothing cheaper decides.
        block : int
            Rows that are added at a time.
        growing : bool
            Whether these samples are the first of a stream of them.
        """
        unit = self._ridge.precision.rounding
        least = 0.0
        if factor.ready:
            noise = rounding.noise_of(sums.n_samples, block, unit)
            gamma = self._ridge.known_gamma
            if rounding.invisible(score_change(factor, sums.gram.diagonal(), moment, gamma, noise)):
                return False
            least = least_eigenvalue()
        if sums.largest <= rounding.exact_above(least, sums.size, unit):
            return False
        fall = rounding.fall_to_come(sums.n_samples, sums.size) if growing else 1.0
        return not self._beyond_reach(sums, least * fall)

    def _as_before(self, sums: Statistics) -> float:
        """Go on with low parts if there are any, and without if there are none."""
        return -math.inf if self._ridge.extended or sums.low is not None else math.inf

    def _by_gamma(self, sums: Statistics) -> float:
        if self._ridge.extended:
            return -math.inf
        return self._harmless_by_gamma(sums) if self._ridge.exact else math.inf

    def _harmless_by_gamma(self, sums: Statistics) -> float:
        """Return the largest element of gram whose rounding is harmless because λ ≥ γ."""
        unit = self._ridge.precision.rounding
        return rounding.exact_above(self._ridge.known_gamma, sums.size, unit)

    def _beyond_reach(self, sums: Statistics, least: float) -> bool:
        """Say whether a least eigenvalue makes low parts useless."""
        if self._ridge.fit_intercept:
            # Centring takes out what the bound is made of.
            return False
        largest = rounding.eigenvalue_bound(sums.moment.sum(dim=1), sums.total_weight)
        return rounding.beyond_reach(largest, least, sums.size)
