"""The sums over samples that determine the ridge regression: additive, mergeable, subtractable."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from acil.analytic.columns import spread
from acil.analytic.exact import add_gram_pair_, merge_gram_pair_, product_pair
from acil.analytic.linalg import add_gram_
from acil.analytic.lowparts import LowParts
from acil.analytic.pairs import Pair, add_pairs, sum_all, sum_columns


class Statistics:
    """Sums over all samples so far; their order and grouping do not matter beyond rounding.

    Every attribute is a plain sum over samples, so that two ``Statistics`` merge by addition and
    samples leave by subtraction.

    Sums can be kept as pairs of floats: then they hold the digits that rounding would take away, and
    are the same for every order of the samples. Whoever adds says when that is needed; sums that have
    once been added to without are rounded for good.

    Parameters
    ----------
    size : int
        Width d of the (expanded) rows.
    n_classes : int
    dtype, device
        Of the sums.

    Attributes
    ----------
    gram : Tensor of shape (d, d)
        Lower triangle of Σ w x xᵀ. The upper triangle holds low parts if ``low`` is not None, and is
        unspecified otherwise.
    moment : Tensor of shape (d, n_classes)
        Σ w x yᵀ with one-hot targets y: column c is the weighted sum of the rows of class c.
    counts : Tensor of shape (n_classes,), int64
        Number of samples of each class.
    weights : Tensor of shape (n_classes,), float64
        Sum of the sample weights of each class; equal to ``counts`` when none were given.
    low : LowParts or None
        The other half of the pairs; None if no pairs are kept.
    """

    def __init__(
        self,
        size: int,
        n_classes: int = 0,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        self.gram = torch.zeros(size, size, dtype=dtype, device=device)
        self.moment = torch.zeros(size, n_classes, dtype=dtype, device=device)
        self.counts = torch.zeros(n_classes, dtype=torch.int64)
        self.weights = torch.zeros(n_classes, dtype=torch.float64)
        self.low: LowParts | None = None

    @property
    def size(self) -> int:
        """Width d of the rows."""
        return self.gram.shape[0]

    @property
    def n_classes(self) -> int:
        """Number of columns of ``moment``."""
        return self.moment.shape[1]

    @property
    def n_samples(self) -> int:
        """Number of samples in the sums."""
        return int(self.counts.sum())

    @property
    def total_weight(self) -> float:
        """Sum of all sample weights; the number of samples when none were given."""
        return self.total_weight_pair[0]

    @property
    def total_weight_pair(self) -> tuple[float, float]:
        """High and low part of the sum of all sample weights."""
        return sum_all(self.weights_pair)

    @property
    def target_square(self) -> float:
        """Σ w ‖y‖², which for one-hot targets is the total weight."""
        return self.total_weight

    @property
    def total(self) -> Pair:
        """Σ w x, the row sums of ``moment`` (each target sums to one), of shape (d,)."""
        return sum_columns(self.moment_pair)

    @property
    def moment_pair(self) -> Pair:
        """``moment`` with its low part, zero if none is kept."""
        return Pair(self.moment, torch.zeros_like(self.moment) if self.low is None else self.low.moment)

    @property
    def weights_pair(self) -> Pair:
        """``weights`` with their low part, zero if none is kept."""
        low = torch.zeros_like(self.weights) if self.low is None else self.low.weights
        return Pair(self.weights, low)

    @property
    def mean(self) -> Tensor:
        """Weighted mean of the rows."""
        return self.total.high / self.total_weight

    @property
    def mean_square(self) -> float:
        """trace(gram) / d, the scale to which γ is compared."""
        return float(self.gram.diagonal().mean())

    @property
    def sample_square(self) -> float:
        """trace(gram) / n, the mean squared length of a sample."""
        return float(self.gram.diagonal().sum()) / self.total_weight

    def add(
        self,
        rows: Tensor,
        columns: Tensor,
        weights: Tensor | None = None,
        exact_above: float = math.inf,
    ) -> None:
        """Add samples.

        Parameters
        ----------
        rows : Tensor of shape (n, d)
            May be float32 with float64 sums: products are then computed in float32.
        columns : Tensor of shape (n,), int64
            Class of each row, as a column of ``moment``.
        weights : Tensor of shape (n,), optional
            Positive sample weights.
        exact_above : float
            Keep pairs if an element of the diagonal of ``gram`` exceeds this. Needs float64 rows.
        """
        self._accumulate(rows, columns, weights, 1, exact_above)

    def subtract(
        self,
        rows: Tensor,
        columns: Tensor,
        weights: Tensor | None = None,
        exact_above: float = math.inf,
    ) -> None:
        """Remove samples that were added before, with the same weights."""
        self._accumulate(rows, columns, weights, -1, exact_above)

    def merge(self, other: Statistics, positions: Tensor, exact_above: float = math.inf) -> None:
        """Add the sums of other samples.

        Parameters
        ----------
        other : Statistics
        positions : Tensor of shape (other.n_classes,), int64
            Column of these sums to which each column of the others belongs.
        exact_above : float
            See `add`.
        """
        if self.largest + other.largest > exact_above:
            low = self._pairs()
            theirs = None if other.low is None else other.low.diagonal
            merge_gram_pair_(self.gram, low.diagonal, other.gram, theirs)
            moment = (part.to(self.moment) for part in other.moment_pair)
            self._add_columns(positions, Pair(*moment), other.weights_pair)
        else:
            self.low = None
            # One triangle would do, but adding both is a single pass over memory.
            self.gram += other.gram.to(self.gram)
            self.moment[:, positions.to(self.moment.device)] += other.moment.to(self.moment)
            self.weights[positions] += other.weights
        self.counts[positions] += other.counts

    def grow(self, positions: Tensor, n_classes: int) -> None:
        """Make room for new classes: column i moves to ``positions[i]``, the others are empty.

        Parameters
        ----------
        positions : Tensor of shape (old n_classes,), int64
        n_classes : int
            New number of columns.
        """
        moment = spread(self.moment, positions, n_classes)
        counts, weights = self.counts.new_zeros(n_classes), self.weights.new_zeros(n_classes)
        counts[positions], weights[positions] = self.counts, self.weights
        self.moment, self.counts, self.weights = moment, counts, weights
        self.low = None if self.low is None else self.low.grown(positions, n_classes)

    def keep(self, columns: Tensor) -> None:
        """Keep only these columns; the rows of the other classes must have been removed before."""
        self.moment = self.moment[:, columns.to(self.moment.device)].contiguous()
        self.counts, self.weights = self.counts[columns], self.weights[columns]
        self.low = None if self.low is None else self.low.kept(columns)

    def copy(self) -> Statistics:
        """Return sums that share no memory with these."""
        twin = Statistics.__new__(Statistics)
        twin.gram, twin.moment = self.gram.clone(), self.moment.clone()
        twin.counts, twin.weights = self.counts.clone(), self.weights.clone()
        twin.low = None if self.low is None else self.low.copy()
        return twin

    def clear(self) -> None:
        """Make all sums zero, for when no sample is left: what is there then is rounding."""
        for sums in (self.gram, self.moment, self.counts, self.weights):
            sums.zero_()
        self.low = None

    @property
    def largest(self) -> float:
        """The largest element of ``gram``, which stands on its diagonal."""
        return float(self.gram.diagonal().max())

    def _accumulate(
        self, rows: Tensor, columns: Tensor, weights: Tensor | None, sign: int, exact_above: float
    ) -> None:
        present, local = torch.unique(columns.cpu(), return_inverse=True)
        targets = rows.new_zeros(len(rows), len(present))
        targets.scatter_(1, local.to(rows.device).unsqueeze(1), 1.0)
        counts = torch.bincount(local, minlength=len(present))
        heavy = counts.to(torch.float64), torch.zeros(len(present), dtype=torch.float64)
        if weights is not None:
            heavy = _sum_by_class(weights.cpu().double(), local, counts)
            # √w on rows and targets gives w in both products
            root = weights.to(rows).sqrt().unsqueeze(1)
            rows, targets = rows * root, targets * root
        # gram += Xᵀ X and moment += Xᵀ Y, the sums of Eq. (7)
        if exact_above < math.inf and self._exceeds(rows, exact_above):
            add_gram_pair_(self.gram, self._pairs().diagonal, rows, sign)
            product = product_pair(rows, targets)
            signed = [Pair(sign * high, sign * low) for high, low in (product, heavy)]
            self._add_columns(present, *signed)
        else:
            self.low = None
            add_gram_(self.gram, rows, sign)
            self._add_moment((rows.T @ targets).to(self.moment.dtype), present, sign)
            self.weights[present] += sign * heavy[0]
        self.counts[present] += sign * counts

    def keep_pairs(self, kept: bool) -> None:
        """Make room for low parts, or drop them: the sums are then rounded to their type."""
        if kept:
            self._pairs()
        else:
            self.low = None

    def _pairs(self) -> LowParts:
        """Return the low parts, after making room for them."""
        if self.low is None:
            self.gram.tril_()
            self.low = LowParts.zeros_like(self.moment)
        return self.low

    def _exceeds(self, rows: Tensor, limit: float) -> bool:
        """Say whether an element of the diagonal would exceed a limit with these rows."""
        if len(rows) == 0:
            return self.largest > limit
        # A bound that takes one look at each number settles most cases.
        lowest, highest = (float(extreme) for extreme in torch.aminmax(rows))
        if self.largest + len(rows) * max(-lowest, highest) ** 2 <= limit:
            return False
        return float((self.gram.diagonal() + rows.square().sum(dim=0)).max()) > limit

    def _add_columns(self, positions: Tensor, moment: Pair, weights: Pair) -> None:
        """Add pairs to some columns of ``moment`` and elements of ``weights``."""
        at, low = positions.to(self.moment.device), self._pairs()
        total = add_pairs(Pair(self.moment[:, at], low.moment[:, at]), moment)
        self.moment[:, at], low.moment[:, at] = total
        heavy = add_pairs(Pair(self.weights[positions], low.weights[positions]), weights)
        self.weights[positions], low.weights[positions] = heavy

    def _add_moment(self, product: Tensor, present: Tensor, sign: int) -> None:
        first, last = int(present[0]), int(present[-1])
        if last - first + 1 == len(present):
            # Neighbouring columns, as in most phases: a plain sum is ten times faster.
            self.moment[:, first : last + 1].add_(product, alpha=sign)
        else:
            self.moment.index_add_(1, present.to(self.moment.device), product, alpha=sign)


def _sum_by_class(weights: Tensor, local: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the high and low parts of the sums of the weights whose ``local`` is 0, 1, 2 …."""
    ordered = torch.split(weights[torch.argsort(local)], counts.tolist())
    sums = torch.tensor([sum_all(Pair(own, own[:0])) for own in ordered], dtype=torch.float64)
    return sums[:, 0], sums[:, 1]
