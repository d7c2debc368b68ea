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

#: One block of samples: expanded rows; their class columns, or targets of any numbers; their weights.
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

    Of rows x, targets y and weights w: ``gram`` is the lower triangle of Σ w x xᵀ, of shape (d, d); its
    upper triangle is unspecified. ``moment`` is Σ w x yᵀ of shape (d, n_targets), ``total`` Σ w x,
    ``total_weight`` Σ w, and ``target_total`` Σ w y. ``counts`` is the number of samples with a target
    that is not zero, and ``n_samples`` that of all.

    Targets are classes (each y is one-hot) unless ``one_hot`` is false: then they are any numbers. Of
    classes, column c of ``moment`` is the weighted sum of the rows of class c, and ``target_total`` has
    the weights of the classes, which are the diagonal of Σ w y yᵀ, too: the rest of it is zero.
    """

    def __init__(
        self,
        size: int,
        n_targets: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        one_hot: bool = True,
    ) -> None:
        self.matrix = Matrix(torch.zeros(size, size, dtype=dtype, device=device))
        self.version = 0
        self.moment = torch.zeros(size, n_targets, dtype=dtype, device=device)
        self.total = torch.zeros(size, dtype=dtype, device=device)
        self.total_weight, self.n_samples = 0.0, 0
        self.counts = torch.zeros(n_targets, dtype=torch.int64)
        self.target_total = torch.zeros(n_targets, dtype=torch.float64)
        self._products = None if one_hot else torch.zeros(n_targets, n_targets, dtype=torch.float64)

    @property
    def gram(self) -> Tensor:
        """Lower triangle of Σ w x xᵀ; raises if a change of it was interrupted."""
        return self.matrix.require(self.version)

    @property
    def target_products(self) -> Tensor:
        """Σ w y yᵀ of shape (n_targets, n_targets), or of one-hot targets its diagonal."""
        return self.target_total if self._products is None else self._products

    @property
    def target_squares(self) -> Tensor:
        """Σ w y² of shape (n_targets,)."""
        return self.target_total if self._products is None else self._products.diagonal()

    def draft(self, places: Tensor | None = None, n_targets: int = 0) -> Sums:
        """Return sums to be changed, which share the matrix; column i has moved to ``places[i]``."""
        new = copy(self)

        def moved(part: Tensor) -> Tensor:
            return part.clone() if places is None else spread(part, places, n_targets)

        new.total = self.total.clone()
        new.moment, new.counts = moved(self.moment), moved(self.counts)
        new.target_total = moved(self.target_total)
        new._products = None if self._products is None else moved(moved(self._products).mT).mT
        return new

    def add(self, blocks: Iterable[Block], sign: int = 1) -> None:
        """Add samples, or with ``sign=-1`` remove them.

        Rows of shape (n, d) may be float32 with float64 sums: products are then computed in float32.
        """
        with self.matrix.changing(self.version) as gram:
            for block in blocks:
                X = self.count(block, sign)
                # gram += Xᵀ X, the sum of Eq. (7)
                add_gram_(gram, X, sign)
                del block, X  # or two blocks would be alive while the next one is made
            if self.n_samples == 0:
                # What is left of sums over no samples is rounding.
                self.total_weight = 0.0
                for part in (gram, self.moment, self.total, self.target_total, self.target_products):
                    part.zero_()
        self.version = self.matrix.version

    def count(self, block: Block, sign: int = 1) -> Tensor:
        """Add samples to all sums but ``gram``; return X such that they add XᵀX to that."""
        rows, targets, weights = block
        if self._products is None:
            present, local = torch.unique(targets, return_inverse=True)
            X, Y, heavy = weighted(rows, local, weights, len(present))
        else:
            X, Y, heavy = weighted(rows, targets, weights, len(self.counts))
        self._tally(targets, heavy, sign)
        # moment += Xᵀ Y, the sum of Eq. (7)
        change = (X.T @ Y).to(self.moment)
        if self._products is None:
            self.moment.index_add_(1, present.to(change.device), change, alpha=sign)
            total = change.sum(dim=1)  # each target sums to one
        else:
            self.moment += sign * change
            total = X.T @ heavy.sqrt().to(X)
        self.total.add_(total.to(self.total), alpha=sign)
        return X

    def tallied(self, block: Block) -> Sums:
        """Return sums that count samples, and weigh them, but have nothing of their rows."""
        new, (_, targets, weights) = copy(self), block
        ones = torch.ones(len(targets), dtype=torch.float64)
        new._tally(targets, ones if weights is None else weights.cpu().double(), 1)
        return new

    def _tally(self, targets: Tensor, heavy: Tensor, sign: int) -> None:
        """Replace what depends on targets and weights alone by that with more samples."""
        if self._products is None:
            self.counts = self.counts.index_add(0, targets, torch.ones_like(targets), alpha=sign)
            self.target_total = self.target_total.index_add(0, targets, heavy, alpha=sign)
        else:
            y = targets.cpu().double()
            self.counts = self.counts + sign * (y != 0).sum(dim=0)
            self.target_total = self.target_total + sign * (heavy @ y)
            self._products = self._products + sign * (y.T @ (heavy.unsqueeze(1) * y))
        self.total_weight += sign * float(heavy.sum())
        self.n_samples += sign * len(heavy)

    def merge(self, other: Sums, positions: Tensor) -> None:
        """Add the sums of other samples; their column i is our column ``positions[i]``."""
        theirs, moment = other.gram.to(self.moment), other.moment.to(self.moment)
        with self.matrix.changing(self.version) as gram:
            # One triangle would do, but adding both is a single pass over memory.
            gram += theirs
            self.moment[:, positions.to(self.moment.device)] += moment
            self.total += other.total.to(self.total)
            self.counts[positions] += other.counts
            self.target_total[positions] += other.target_total
            if self._products is not None:
                self._products[positions.unsqueeze(1), positions] += other.target_products
            self.total_weight += other.total_weight
            self.n_samples += other.n_samples
        self.version = self.matrix.version

    def keep(self, columns: Tensor) -> None:
        """Keep only these targets; the rows of the other classes must have been removed before."""
        self.moment = self.moment[:, columns.to(self.moment.device)].contiguous()
        self.counts, self.target_total = self.counts[columns], self.target_total[columns]
        if self._products is not None:
            self._products = self._products[columns][:, columns]

    def widened(self, size: int) -> Sums:
        """Return the sums of rows of another width, which are 0 at the end."""
        new, d = self.draft(), len(self.total)
        new.matrix, new.version = Matrix(self.moment.new_zeros(size, size)), 0
        new.moment = self.moment.new_zeros(size, self.moment.shape[1])
        new.total = self.total.new_zeros(size)
        new.gram[:d, :d], new.moment[:d], new.total[:d] = self.gram, self.moment, self.total
        return new

    def moved_to(self, device: torch.device) -> Sums:
        """Return the sums on a device."""
        new = self.draft()
        new.matrix, new.version = Matrix(self.gram.to(device)), 0
        new.moment, new.total = self.moment.to(device), self.total.to(device)
        return new

    def clone(self) -> Sums:
        """Return sums that share no memory with these."""
        new = self.draft()
        new.matrix, new.version = Matrix(self.gram.clone()), 0
        return new


def weighted(
    rows: Tensor, targets: Tensor, weights: Tensor | None, n_targets: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return X and Y such that samples add XᵀX and XᵀY to the sums, and their weights on the CPU.

    Targets are columns of classes, of shape (n,), or numbers of shape (n, n_targets).
    """
    if targets.is_floating_point():
        Y = targets.to(rows)
    else:
        Y = rows.new_zeros(len(rows), n_targets)
        Y.scatter_(1, targets.to(rows.device).unsqueeze(1), 1.0)
    if weights is None:
        return rows, Y, torch.ones(len(rows), dtype=torch.float64)
    # √w on rows and targets gives w in both products
    root = weights.to(rows).sqrt().unsqueeze(1)
    return rows * root, Y * root, weights.cpu().double()


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
