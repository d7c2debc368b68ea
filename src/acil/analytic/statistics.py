"""The sums over samples that determine the ridge regression: additive, mergeable, subtractable."""

from __future__ import annotations

import torch
from torch import Tensor

from acil.analytic.linalg import add_gram_


class Statistics:
    """Sums over all samples so far; their order and grouping do not matter beyond rounding.

    Every attribute is a plain sum over samples, so that two ``Statistics`` merge by addition and
    samples leave by subtraction.

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
        Lower triangle of Σ w x xᵀ; the upper triangle is unspecified.
    moment : Tensor of shape (d, n_classes)
        Σ w x yᵀ with one-hot targets y: column c is the weighted sum of the rows of class c.
    counts : Tensor of shape (n_classes,), int64
        Number of samples of each class.
    weights : Tensor of shape (n_classes,), float64
        Sum of the sample weights of each class; equal to ``counts`` when none were given.
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
        return float(self.weights.sum())

    @property
    def target_square(self) -> float:
        """Σ w ‖y‖², which for one-hot targets is the total weight."""
        return self.total_weight

    @property
    def mean(self) -> Tensor:
        """Weighted mean of the rows, from the row sums of ``moment`` (each target sums to one)."""
        return self.moment.sum(dim=1) / self.total_weight

    @property
    def mean_square(self) -> float:
        """trace(gram) / d, the scale to which γ is compared."""
        return float(self.gram.diagonal().mean())

    @property
    def sample_square(self) -> float:
        """trace(gram) / n, the mean squared length of a sample."""
        return float(self.gram.diagonal().sum()) / self.total_weight

    def add(self, rows: Tensor, columns: Tensor, weights: Tensor | None = None) -> None:
        """Add samples.

        Parameters
        ----------
        rows : Tensor of shape (n, d)
            May be float32 with float64 sums: products are then computed in float32.
        columns : Tensor of shape (n,), int64
            Class of each row, as a column of ``moment``.
        weights : Tensor of shape (n,), optional
            Positive sample weights.
        """
        self._accumulate(rows, columns, weights, sign=1)

    def subtract(self, rows: Tensor, columns: Tensor, weights: Tensor | None = None) -> None:
        """Remove samples that were added before, with the same weights."""
        self._accumulate(rows, columns, weights, sign=-1)

    def merge(self, other: Statistics, positions: Tensor) -> None:
        """Add the sums of other samples.

        Parameters
        ----------
        other : Statistics
        positions : Tensor of shape (other.n_classes,), int64
            Column of these sums to which each column of the others belongs.
        """
        at = positions.to(self.moment.device)
        # One triangle would do, but adding both is a single pass over memory.
        self.gram += other.gram.to(self.gram)
        self.moment[:, at] += other.moment.to(self.moment)
        self.counts[positions] += other.counts
        self.weights[positions] += other.weights

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
        counts, weights = self.counts.new_zeros(n_classes), self.weights.new_zeros(n_classes)
        counts[positions], weights[positions] = self.counts, self.weights
        self.moment, self.counts, self.weights = moment, counts, weights

    def keep(self, columns: Tensor) -> None:
        """Keep only these columns; the rows of the other classes must have been removed before."""
        self.moment = self.moment[:, columns.to(self.moment.device)].contiguous()
        self.counts, self.weights = self.counts[columns], self.weights[columns]

    def copy(self) -> Statistics:
        """Return sums that share no memory with these."""
        twin = Statistics.__new__(Statistics)
        twin.gram, twin.moment = self.gram.clone(), self.moment.clone()
        twin.counts, twin.weights = self.counts.clone(), self.weights.clone()
        return twin

    def _accumulate(self, rows: Tensor, columns: Tensor, weights: Tensor | None, sign: int) -> None:
        present, local = torch.unique(columns.cpu(), return_inverse=True)
        targets = rows.new_zeros(len(rows), len(present))
        targets[torch.arange(len(rows)), local] = 1.0
        total = torch.bincount(local, minlength=len(present))
        if weights is None:
            weight = total.to(torch.float64)
        else:
            weight = torch.bincount(local, weights.cpu().double(), minlength=len(present))
            # √w on rows and targets gives w in both products
            root = weights.to(rows).sqrt().unsqueeze(1)
            rows, targets = rows * root, targets * root
        # gram += Xᵀ X and moment += Xᵀ Y, the sums of Eq. (7)
        add_gram_(self.gram, rows, sign)
        product = (rows.T @ targets).to(self.moment.dtype)
        first, last = int(present[0]), int(present[-1])
        if last - first + 1 == len(present):
            # Neighbouring columns, as in most phases: a plain sum is ten times faster.
            self.moment[:, first : last + 1].add_(product, alpha=sign)
        else:
            self.moment.index_add_(1, present.to(self.moment.device), product, alpha=sign)
        self.counts[present] += sign * total
        self.weights[present] += sign * weight
