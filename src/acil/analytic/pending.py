"""Recent samples that are not yet in the sums: adding many at once takes little more than adding one."""

from __future__ import annotations

import torch
from torch import Tensor

#: Most rows that wait, and most bytes of them.
_MAX_ROWS = 256
_MAX_BYTES = 2**24


class PendingRows:
    """A bounded queue of rows with their classes and weights; it lives in memory only."""

    def __init__(self) -> None:
        self._empty()

    def _empty(self) -> None:
        self._length = 0
        self._rows: Tensor | None = None
        self._columns: list[Tensor] = []
        self._weights: list[Tensor | None] = []
        self._counts: Tensor | None = None

    def __len__(self) -> int:
        return self._length

    def has_room(self, rows: Tensor) -> bool:
        """Say whether so many rows more can wait."""
        return self._length + len(rows) <= _room(rows)

    def append(self, rows: Tensor, columns: Tensor, weights: Tensor | None) -> None:
        """Take copies of samples; see `Statistics.add`."""
        if self._rows is None:
            self._rows = rows.new_empty(max(1, _room(rows)), rows.shape[1])
        self._rows[self._length : self._length + len(rows)] = rows
        self._length += len(rows)
        self._columns.append(columns.cpu())
        self._counts = None
        self._weights.append(weights)

    def counts(self, n_classes: int) -> Tensor:
        """Return the number of samples of each class."""
        if self._counts is None:
            self._counts = torch.bincount(torch.cat(self._columns), minlength=n_classes)
        return self._counts

    def take(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return all samples, and forget them."""
        if self._rows is None:
            raise RuntimeError("no rows are pending")
        rows, columns = self._rows[: self._length], torch.cat(self._columns)
        weights = None
        if any(part is not None for part in self._weights):
            weights = torch.cat(
                [
                    torch.ones(len(own), dtype=torch.float64) if part is None else part.cpu().double()
                    for own, part in zip(self._columns, self._weights, strict=True)
                ]
            )
        self._empty()
        return rows, columns, weights


def _room(rows: Tensor) -> int:
    """Return how many rows like these may wait."""
    return min(_MAX_ROWS, _MAX_BYTES // max(1, rows.shape[1] * rows.element_size()))
