"""How many digits a chain of corrections has cost where single solutions have to be refined."""

from __future__ import annotations

import math

#: Relative error of the weights that corrections may add up to before the weights are refined.
_MAX_DRIFT = 1e-10
#: Share of it that one correction may have; a larger one is refined itself.
_MAX_SHARE = 0.1


class Drift:
    """The error of weights that were moved by steps, each computed to a known precision.

    A step that is not refined has about the relative error unit · κ. Late in a stream steps are small
    beside the weights, so that many of them cost nothing that shows.

    Parameters
    ----------
    error : float
        Relative error of a step that is not refined.

    Examples
    --------
    >>> drift = Drift(error=1e-9)
    >>> drift.allows_another
    False
    >>> drift.note(size=1e-3, refined=True)
    >>> drift.allows_another
    True
    """

    def __init__(self, error: float = 0.0) -> None:
        self._error = error
        self._total = 0.0
        self._last = math.inf

    @property
    def allows_another(self) -> bool:
        """Whether a step as large as the last one needs no refinement."""
        # Before the first step nothing is known.
        return math.isfinite(self._last) and self._error * self._last <= _MAX_SHARE * _MAX_DRIFT

    @property
    def exhausted(self) -> bool:
        """Whether the weights have to be refined."""
        return self._total > _MAX_DRIFT

    def renew(self) -> None:
        """Start from weights that have been refined."""
        self._total = 0.0

    def note(self, size: float, refined: bool) -> None:
        """Take note of a step.

        Parameters
        ----------
        size : float
            Of the step, relative to the weights.
        refined : bool
        """
        self._last = size
        if not refined:
            self._total += self._error * size
