"""The sums over samples that determine the ridge regression: additive, mergeable, subtractable."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from acil.analytic.exact import add_gram_pair_, merge_gram_pair_, product_pair
from acil.analytic.linalg import add_gram_
from acil.analytic.pairs import Pair, accumulate, sum_all, sum_columns


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
        Lower triangle of Σ w x xᵀ. The upper triangle holds the low parts of pairs, if pairs are
        kept, and is unspecified if not.
    diagonal_low : Tensor of shape (d,), or None
        Low parts of the diagonal of ``gram``; None if no pairs are kept.
    moment : Tensor of shape (d, n_classes)
        Σ w x yᵀ with one-hot targets y: column c is the weighted sum of the rows of class c.
    moment_low : Tensor of shape (d, n_classes), or None
    counts : Tensor of shape (n_classes,), int64
        Number of samples of each class.
    weights : Tensor of shape (n_classes,), float64
        Sum of the sample weights of each class; equal to ``counts`` when none were given.
    weights_low : Tensor of shape (n_classes,), float64
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
        self.weights_low = torch.zeros(n_classes, dtype=torch.float64)
        self.diagonal_low: Tensor | None = None
        self.moment_low: Tensor | None = None

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
        return sum_all(Pair(self.weights, self.weights_low))

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
        low = self.moment_low
        return Pair(self.moment, torch.zeros_like(self.moment) if low is None else low)

    @property
    def mean(self) -> Tensor:
        """Weighted mean of the rows."""
        return self.total.high / self.total_weight

    @property
    def mean_square(self) -> float:
        """trace(gram) / d, the scale to which γ is compared."""
        return float(self.gram.diagonal().mean())

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
        at = positions.to(self.moment.device)
        largest = self.largest + other.largest
        if largest > exact_above:
            gram_low, moment_low = self._keep_pairs()
            merge_gram_pair_(self.gram, gram_low, other.gram, other.diagonal_low)
            theirs = [part.to(self.moment) for part in other.moment_pair]
            total = accumulate(Pair(self.moment[:, at], moment_low[:, at]), *theirs)
            self.moment[:, at], moment_low[:, at] = total
        else:
            self.drop_pairs()
            # One triangle would do, but adding both is a single pass over memory.
            self.gram += other.gram.to(self.gram)
            self.moment[:, at] += other.moment.to(self.moment)
        self.counts[positions] += other.counts
        self._add_weights(positions, Pair(other.weights, other.weights_low))

    def grow(self, positions: Tensor, n_classes: int) -> None:
        """Make room for new classes: column i moves to ``positions[i]``, the others are empty.

        Parameters
        ----------
        positions : Tensor of shape (old n_classes,), int64
        n_classes : int
            New number of columns.
        """
        moment = self.moment.new_zeros(self.size, n_classes)
        moment[:, positions.to(moment.device)] = self.moment
        if self.moment_low is not None:
            low = torch.zeros_like(moment)
            low[:, positions.to(moment.device)] = self.moment_low
            self.moment_low = low
        counts, weights = self.counts.new_zeros(n_classes), self.weights.new_zeros(2, n_classes)
        counts[positions] = self.counts
        weights[0, positions], weights[1, positions] = self.weights, self.weights_low
        self.moment, self.counts = moment, counts
        self.weights, self.weights_low = weights

    def keep(self, columns: Tensor) -> None:
        """Keep only these columns; the rows of the other classes must have been removed before."""
        at = columns.to(self.moment.device)
        self.moment = self.moment[:, at].contiguous()
        if self.moment_low is not None:
            self.moment_low = self.moment_low[:, at].contiguous()
        self.counts = self.counts[columns]
        self.weights, self.weights_low = self.weights[columns], self.weights_low[columns]

    def copy(self) -> Statistics:
        """Return sums that share no memory with these."""
        twin = Statistics.__new__(Statistics)
        for name, value in vars(self).items():
            setattr(twin, name, None if value is None else value.clone())
        return twin

    def clear(self) -> None:
        """Make all sums zero, for when no sample is left: what is there then is rounding."""
        for name in ("gram", "moment", "counts", "weights", "weights_low"):
            getattr(self, name).zero_()
        self.drop_pairs()

    @property
    def largest(self) -> float:
        """The largest element of ``gram``, which stands on its diagonal."""
        return float(self.gram.diagonal().max())

    def drop_pairs(self) -> None:
        """Keep only the high parts, which are the sums rounded to their type."""
        self.diagonal_low = self.moment_low = None

    def _keep_pairs(self) -> tuple[Tensor, Tensor]:
        """Return the low parts of the diagonal and of ``moment``, after making room for all."""
        if self.diagonal_low is None or self.moment_low is None:
            self.gram.tril_()
            self.diagonal_low = torch.zeros_like(self.gram.diagonal())
            self.moment_low = torch.zeros_like(self.moment)
        return self.diagonal_low, self.moment_low

    def _accumulate(
        self,
        rows: Tensor,
        columns: Tensor,
        weights: Tensor | None,
        sign: int,
        exact_above: float,
    ) -> None:
        present, local = torch.unique(columns.cpu(), return_inverse=True)
        targets = rows.new_zeros(len(rows), len(present))
        targets[torch.arange(len(rows)), local] = 1.0
        count = torch.bincount(local, minlength=len(present))
        if weights is None:
            weight = Pair(count.to(torch.float64), torch.zeros(len(count), dtype=torch.float64))
        else:
            weight = _sum_by_class(weights.cpu().double(), local, count)
            # √w on rows and targets gives w in both products
            root = weights.to(rows).sqrt().unsqueeze(1)
            rows, targets = rows * root, targets * root
        # gram += Xᵀ X and moment += Xᵀ Y, the sums of Eq. (7)
        if exact_above < math.inf and self._largest_with(rows) > exact_above:
            gram_low, moment_low = self._keep_pairs()
            add_gram_pair_(self.gram, gram_low, rows, sign)
            at = present.to(self.moment.device)
            change = (sign * part for part in product_pair(rows, targets))
            total = accumulate(Pair(self.moment[:, at], moment_low[:, at]), *change)
            self.moment[:, at], moment_low[:, at] = total
        else:
            self.drop_pairs()
            add_gram_(self.gram, rows, sign)
            self._add_moment((rows.T @ targets).to(self.moment.dtype), present, sign)
        self.counts[present] += sign * count
        self._add_weights(present, Pair(sign * weight.high, sign * weight.low))

    def _largest_with(self, rows: Tensor) -> float:
        return float((self.gram.diagonal() + rows.square().sum(dim=0)).max())

    def _add_moment(self, product: Tensor, present: Tensor, sign: int) -> None:
        first, last = int(present[0]), int(present[-1])
        if last - first + 1 == len(present):
            # Neighbouring columns, as in most phases: a plain sum is ten times faster.
            self.moment[:, first : last + 1].add_(product, alpha=sign)
        else:
            self.moment.index_add_(1, present.to(self.moment.device), product, alpha=sign)

    def _add_weights(self, positions: Tensor, change: Pair) -> None:
        at = Pair(self.weights[positions], self.weights_low[positions])
        self.weights[positions], self.weights_low[positions] = accumulate(at, *change)


def _sum_by_class(weights: Tensor, local: Tensor, count: Tensor) -> Pair:
    """Return the sum of the weights of each class, of which ``local`` is the number of each sample."""
    ordered = weights[torch.argsort(local)].split(count.tolist())
    sums = torch.tensor([sum_all(Pair(own, own[:0])) for own in ordered], dtype=torch.float64)
    return Pair(*sums.mT)
