"""The sums over samples that determine the ridge regression: additive, mergeable, subtractable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from acil.core.linalg import add_gram_, spread
from acil.errors import InterruptedModelError

#: One block of samples: expanded rows, their class columns, their weights.
Block = tuple[Tensor, Tensor, Tensor | None]


@dataclass(frozen=True)
class Precision:
    """Types of the sums and weights, and of the expanded rows and products with them."""

    name: str
    sums: torch.dtype
    products: torch.dtype
    #: Rows that one product may sum over before it is added to the sums.
    max_block_rows: int


#: "mixed" multiplies in float32 and adds the products of at most 1,024 rows to float64 sums: longer
#: float32 sums would lose digits that the float64 sums cannot bring back.
PRECISIONS = {
    "float64": Precision("float64", torch.float64, torch.float64, 8192),
    "float32": Precision("float32", torch.float32, torch.float32, 8192),
    "mixed": Precision("mixed", torch.float64, torch.float32, 1024),
}


class Matrix:
    """The one thing that is written in place, d x d, with a version for each of its contents.

    Whoever holds another version than this is out of date. It is −1 while the matrix is written, and for
    good if that was interrupted.
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.version = 0
        #: Memory for a factor of it, kept because fresh memory is slow.
        self.spare: Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"values": self.values, "version": self.version}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, spare=None)

    def require(self, version: int) -> Tensor:
        """Return the values of a version; raise if they are those of another one."""
        if self.version != version:
            raise InterruptedModelError(
                "Learning, forgetting or merging was interrupted while the matrix of this model was "
                "written, so it cannot be used any more. Load the last saved model, or fit again."
            )
        return self.values

    @contextmanager
    def changing(self, version: int) -> Iterator[Tensor]:
        """Write a new version over a version, which is there no more from the first moment on."""
        values = self.require(version)
        self.version = -1
        yield values
        self.version = version + 1

    def scratch(self, size: int, dtype: torch.dtype) -> Tensor:
        """Return memory for a matrix of shape (size, size), the same at every call."""
        if self.spare is None or self.spare.shape[0] != size or self.spare.dtype != dtype:
            self.spare = None  # before more is taken
            self.spare = torch.empty(size, size, dtype=dtype, device=self.values.device)
        return self.spare


class Sums:
    """Sums over all samples so far; their order and grouping do not matter beyond rounding.

    ``gram`` is the lower triangle of Σ w x xᵀ, of shape (d, d); its upper triangle is unspecified.
    ``moment`` is Σ w x yᵀ of shape (d, n_classes): with one-hot targets y, column c is the weighted sum
    of the rows of class c. ``counts`` and ``weights`` are the number of samples of each class, and the
    sum of their weights.
    """

    def __init__(
        self, size: int, n_classes: int, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        self.matrix = Matrix(torch.zeros(size, size, dtype=dtype, device=device))
        self.version = 0
        self.moment = torch.zeros(size, n_classes, dtype=dtype, device=device)
        self.counts = torch.zeros(n_classes, dtype=torch.int64)
        self.weights = torch.zeros(n_classes, dtype=torch.float64)

    @property
    def gram(self) -> Tensor:
        """Lower triangle of Σ w x xᵀ; raises if a change of it was interrupted."""
        return self.matrix.require(self.version)

    @property
    def n_samples(self) -> int:
        """Number of samples in the sums."""
        return int(self.counts.sum())

    @property
    def total_weight(self) -> float:
        """Sum of all sample weights; also Σ w ‖y‖², because targets are one-hot."""
        return float(self.weights.sum())

    @property
    def total(self) -> Tensor:
        """Σ w x of shape (d,): each target sums to one, so the columns of ``moment`` do."""
        return self.moment.sum(dim=1)

    def draft(self, places: Tensor, n_classes: int) -> Sums:
        """Return sums to be changed, which share the matrix; column i has moved to ``places[i]``."""
        new = copy(self)
        parts = self.moment, self.counts, self.weights
        new.moment, new.counts, new.weights = (spread(part, places, n_classes) for part in parts)
        return new

    def add(self, blocks: Iterable[Block], sign: int = 1) -> None:
        """Add samples, or with ``sign=-1`` remove them.

        Rows of shape (n, d) may be float32 with float64 sums: products are then computed in float32.
        """
        with self.matrix.changing(self.version) as gram:
            for rows, columns, weights in blocks:
                present, local = torch.unique(columns, return_inverse=True)
                X, Y, heavy = weighted(rows, local, weights, len(present))
                # gram += Xᵀ X and moment += Xᵀ Y, the sums of Eq. (7)
                add_gram_(gram, X, sign)
                moment = (X.T @ Y).to(self.moment.dtype)
                self.moment.index_add_(1, present.to(moment.device), moment, alpha=sign)
                self.counts.index_add_(0, columns, torch.full_like(columns, sign))
                self.weights.index_add_(0, columns, sign * heavy)
                del rows, X  # or two blocks would be alive while the next one is made
            if self.n_samples == 0:
                # What is left of sums over no samples is rounding.
                for part in (gram, self.moment, self.weights):
                    part.zero_()
        self.version = self.matrix.version

    def merge(self, other: Sums, positions: Tensor) -> None:
        """Add the sums of other samples; their column i is our column ``positions[i]``."""
        theirs, moment = other.gram.to(self.moment), other.moment.to(self.moment)
        with self.matrix.changing(self.version) as gram:
            # One triangle would do, but adding both is a single pass over memory.
            gram += theirs
            self.moment[:, positions.to(self.moment.device)] += moment
            self.counts[positions] += other.counts
            self.weights[positions] += other.weights
        self.version = self.matrix.version

    def keep(self, columns: Tensor) -> None:
        """Keep only these columns; the rows of the other classes must have been removed before."""
        self.moment = self.moment[:, columns.to(self.moment.device)].contiguous()
        self.counts, self.weights = self.counts[columns], self.weights[columns]

    def clone(self) -> Sums:
        """Return sums that share no memory with these."""
        new = self.draft(torch.arange(len(self.counts)), len(self.counts))
        new.matrix, new.version = Matrix(self.gram.clone()), 0
        return new


def weighted(
    rows: Tensor, columns: Tensor, weights: Tensor | None, n_classes: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return X and Y such that samples add XᵀX and XᵀY to the sums, and their weights on the CPU."""
    targets = rows.new_zeros(len(rows), n_classes)
    targets.scatter_(1, columns.to(rows.device).unsqueeze(1), 1.0)
    if weights is None:
        return rows, targets, torch.ones(len(rows), dtype=torch.float64)
    # √w on rows and targets gives w in both products
    root = weights.to(rows).sqrt().unsqueeze(1)
    return rows * root, targets * root, weights.cpu().double()


def joined(blocks: Sequence[Block]) -> list[Block]:
    """Return blocks as one, or none."""
    if not blocks:
        return []
    rows, columns, weights = zip(*blocks, strict=True)
    ones = [torch.ones(len(part), dtype=torch.float64) for part in columns]
    heavy = torch.cat([one if w is None else w for one, w in zip(ones, weights, strict=True)])
    return [(torch.cat(rows), torch.cat(columns), None if bool((heavy == 1).all()) else heavy)]


class Stack(NamedTuple):
    """The first rows of a memory to which more are appended; a shorter one does not see them."""

    memory: Tensor
    length: int = 0

    @property
    def values(self) -> Tensor:
        """The rows, of shape (length, d)."""
        return self.memory[: self.length]

    def plus(self, rows: Tensor) -> Stack:
        """Return these rows and more; twice the memory is taken when it is full."""
        need, memory = self.length + len(rows), self.memory
        if need > len(memory):
            memory = rows.new_empty(max(64, 2 * self.length, need), rows.shape[1])
            memory[: self.length] = self.values
        memory[self.length : need] = rows
        return Stack(memory, need)
