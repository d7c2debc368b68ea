"""What forgetting leaves behind: rounding of sums that were larger once."""

from __future__ import annotations

import warnings

from torch import Tensor

from acil.analytic import rounding
from acil.analytic.factor import CorrectedFactor
from acil.analytic.sensitivity import score_change
from acil.analytic.statistics import Statistics
from acil.errors import PrecisionWarning

#: Models that forgot are promised to agree to 1e-9. The change of scores of samples like those that are
#: left is estimated, and others may show some ten times as much.
_TOLD_FROM, _UNLIKE = 1e-10, 10


class LostDigits:
    """The largest sums without low parts that samples were removed from, and whether they show."""

    def __init__(self) -> None:
        self._diagonal: Tensor | None = None
        self._n_samples = 0

    def note(self, sums: Statistics) -> None:
        """Take note of sums before samples are removed from them."""
        if sums.n_samples > self._n_samples:
            self._diagonal, self._n_samples = sums.gram.diagonal().clone(), sums.n_samples

    def copy(self) -> LostDigits:
        """Return the same notes for a copy of the sums; what they refer to is never changed."""
        twin = LostDigits()
        twin._diagonal, twin._n_samples = self._diagonal, self._n_samples
        return twin

    def warn(self, factor: CorrectedFactor, moment: Tensor, gamma: float, unit: float) -> None:
        """Warn if rounding of those sums moves the scores that the present ones give.

        Parameters
        ----------
        factor : CorrectedFactor
            Of the present matrix.
        moment : Tensor of shape (d, n_classes)
        gamma : float
        unit : float
            Unit roundoff.
        """
        if self._diagonal is None:
            return
        noise = rounding.noise_of(self._n_samples, self._n_samples, unit)
        change = score_change(factor, self._diagonal, moment, gamma, noise)
        if change > _TOLD_FROM:
            warnings.warn(
                "Most of what the sums held has been forgotten, and rounding is left of it. Scores may "
                f"differ from those of a model that never learnt it by about {_UNLIKE * change:.0e} of "
                'their size. sums="extended" from the first sample on, a larger gamma, or a width of at '
                "most 512 avoids that.",
                PrecisionWarning,
                stacklevel=2,
            )


def warn_of_rounded_sums() -> None:
    """Warn that sums without low parts are about to be added to sums that keep them for good."""
    warnings.warn(
        'A model with sums="extended" is merged with one whose sums were rounded, and that rounding '
        'stays. Learn both with sums="extended" to keep all digits.',
        PrecisionWarning,
        stacklevel=2,
    )
