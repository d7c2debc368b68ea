"""The sums of a head, and the recent samples that wait to be added to them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from acil.analytic.digits import Digits
from acil.analytic.pending import PendingRows
from acil.analytic.ridge import Ridge
from acil.analytic.statistics import Statistics
from acil.errors import InterruptedModelError


class Gathered:
    """Sums over all samples, some of which may still wait: adding many at once is cheaper.

    Parameters
    ----------
    size : int
        Width d of the rows.
    ridge : Ridge
    device : torch.device

    Attributes
    ----------
    sums : Statistics
        Without the samples that wait.
    digits : Digits
        What decides whether the sums keep low parts.
    """

    def __init__(self, size: int, ridge: Ridge, device: torch.device) -> None:
        self.digits = Digits(ridge)
        self.replace(Statistics(size, 0, ridge.precision.sums, device))

    def replace(self, sums: Statistics) -> None:
        """Take other sums, complete ones."""
        self.sums = sums
        self._pending = PendingRows()
        #: Whether adding the rows that waited was interrupted.
        self._torn = False

    @property
    def statistics(self) -> Statistics:
        """Sums over all samples; those that wait are added first."""
        self.require_whole()
        self.fold()
        return self.sums

    @property
    def counts(self) -> Tensor:
        """Number of samples of each class, those that wait included."""
        if not self.waiting:
            return self.sums.counts
        return self.sums.counts + self._pending.counts(self.sums.n_classes)

    @property
    def waiting(self) -> int:
        """Number of samples that wait."""
        return len(self._pending)

    def has_room(self, rows: Tensor) -> bool:
        """Say whether so many rows more can wait."""
        return self._pending.has_room(rows)

    def wait(self, rows: Tensor, columns: Tensor, weights: Tensor | None) -> None:
        """Take samples that are to be added later; see `Statistics.add`."""
        self._pending.append(rows, columns, weights)

    def add(self, rows: Tensor, columns: Tensor, weights: Tensor | None, pairs: bool = False) -> None:
        """Add samples to the sums, with low parts if they need them, or in any case (``pairs``)."""
        self.fold()
        before = self.sums.n_samples
        exact_above = -math.inf if pairs else self.digits.when_adding(self.sums)
        self.sums.add(rows, columns, weights, exact_above)
        self.digits.note_growth(before, self.sums)

    def fold(self) -> None:
        """Add the samples that wait to the sums."""
        if self.waiting and not self._torn:
            self._torn = True
            self.add(*self._pending.take())
            self._torn = False

    def require_whole(self) -> None:
        """Raise if the sums hold part of the samples that waited."""
        if self._torn:
            raise InterruptedModelError(
                "Adding recent samples to the sums was interrupted, so the sums hold part of them. Load "
                "the last saved model, or fit again."
            )
