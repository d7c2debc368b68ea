"""Cholesky factors and triangular solutions made of matrix products, for devices that excel at those.

A factor L is built block by block. Next to it stand the inverses of its diagonal blocks, with which a
triangular solution is a chain of products. Nothing here waits for the device: whether a factorization
went well is a tensor, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise

import torch
from torch import Tensor

#: Side of the diagonal blocks. Smaller ones leave more of the work to large products, larger ones need
#: fewer steps, each of which waits for a small factorization.
BLOCK = 512
#: Columns that one product updates: wide enough for full speed, narrow enough that little is computed
#: above the diagonal.
_UPDATE = 2048


class BlockedFactor:
    """L with A = L Lᵀ, in the memory of A, and the inverses of its diagonal blocks.

    Parameters
    ----------
    matrix : Tensor of shape (d, d), row-major
        Lower triangle of A, overwritten by L; what is above the diagonal blocks stays as it was.
    block : int
        Side of the diagonal blocks.

    Attributes
    ----------
    failed : Tensor of shape (blocks,), int32
        For each diagonal block the order of the first of its leading minors that is not positive, or
        0. Only the first failure means anything; see `first_failure`.
    """

    def __init__(self, matrix: Tensor, block: int | None = None) -> None:
        self.lower = matrix
        self.block = block or BLOCK
        count = -(-matrix.shape[0] // self.block)
        self.failed = torch.zeros(count, dtype=torch.int32, device=matrix.device)
        side = min(self.block, matrix.shape[0])
        self.inverses = matrix.new_empty(count, side, side)
        self._factorize()

    def first_failure(self) -> int:
        """Return the order of the first leading minor that is not positive, 0 if there is none."""
        for index, order in enumerate(self.failed.tolist()):
            if order:
                return index * self.block + int(order)
        return 0

    def solve(self, right: Tensor) -> Tensor:
        """Return L⁻¹ right, for ``right`` of shape (d, k)."""
        rest = right.clone()
        for index, here in self._blocks():
            rest[here] = self._inverse(index, here) @ rest[here]
            rest[here.stop :].addmm_(self.lower[here.stop :, here], rest[here], alpha=-1)
        return rest

    def solve_transposed(self, right: Tensor) -> Tensor:
        """Return L⁻ᵀ right, for ``right`` of shape (d, k)."""
        rest = right.clone()
        for index, here in reversed(list(self._blocks())):
            rest[here].addmm_(self.lower[here.stop :, here].mT, rest[here.stop :], alpha=-1)
            rest[here] = self._inverse(index, here).mT @ rest[here]
        return rest

    def _factorize(self) -> None:
        blocks = list(self._blocks())
        queue = _Queue(self.lower.device)
        self._finish_panel(*blocks[0])
        for (_, here), (following, there) in pairwise(blocks):
            # The next panel first: it is finished beside the update of all columns behind it.
            self._update(here, there.start, there.stop)
            with queue.beside():
                self._finish_panel(following, there)
            for start in range(there.stop, self.lower.shape[0], _UPDATE):
                self._update(here, start, min(start + _UPDATE, self.lower.shape[0]))
            queue.wait()

    def _finish_panel(self, index: int, here: slice) -> None:
        """Turn a block of columns of what is left of A into columns of L."""
        diagonal, inverse = self.lower[here, here], self._inverse(index, here)
        factor, self.failed[index] = torch.linalg.cholesky_ex(diagonal)
        diagonal.copy_(factor)
        inverse.zero_().diagonal().fill_(1.0)
        inverse.copy_(torch.linalg.solve_triangular(factor, inverse, upper=False))
        below = self.lower[here.stop :, here]
        # L₂₁ = A₂₁ L₁₁⁻ᵀ
        below.copy_(below @ inverse.mT)

    def _update(self, here: slice, start: int, stop: int) -> None:
        """Subtract the outer product of a panel from some columns behind it."""
        # A₂₂ −= L₂₁ L₂₁ᵀ
        self.lower[start:, start:stop].addmm_(
            self.lower[start:, here], self.lower[start:stop, here].mT, alpha=-1
        )

    def _inverse(self, index: int, here: slice) -> Tensor:
        side = here.stop - here.start
        return self.inverses[index, :side, :side]

    def _blocks(self) -> Iterator[tuple[int, slice]]:
        d = self.lower.shape[0]
        for index, start in enumerate(range(0, d, self.block)):
            yield index, slice(start, min(start + self.block, d))


class _Queue:
    """A second queue of work on a GPU, in step with the present one; elsewhere no queue at all."""

    def __init__(self, device: torch.device) -> None:
        self._side: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._main = torch.cuda.current_stream(device)
            self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def beside(self) -> AbstractContextManager[object]:
        """Return a context whose work starts after what is queued so far, beside what comes next."""
        if self._side is None:
            return nullcontext()
        self._side.wait_stream(self._main)
        return torch.cuda.stream(self._side)

    def wait(self) -> None:
        """Let what comes next start after the work beside."""
        if self._side is not None:
            self._main.wait_stream(self._side)
