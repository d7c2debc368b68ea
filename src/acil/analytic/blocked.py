"""Triangular solutions made of matrix products, for devices that excel at those.

Next to a Cholesky factor L stand the inverses of its diagonal blocks, with which a triangular solution
is a short chain of products. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

#: Side of the diagonal blocks. Larger ones take fewer steps to solve with, and more work to invert.
BLOCK = 2048
#: Side of the blocks that are inverted by substitution; inverses of larger ones follow by products.
_SMALLEST = 256


class BlockInverses:
    """Solves with a lower-triangular L by the inverses of its diagonal blocks.

    Parameters
    ----------
    lower : Tensor of shape (d, d)
        L; what is above its diagonal is not read.
    block : int, optional
        Side of the diagonal blocks.
    """

    def __init__(self, lower: Tensor, block: int | None = None) -> None:
        self.lower = lower
        self.block = min(block or BLOCK, lower.shape[0])
        self._inverses = self._inverted()

    def solve(self, right: Tensor) -> Tensor:
        """Return L⁻¹ right, for ``right`` of shape (d, k)."""
        rest = right.clone()
        for inverse, here in self._blocks():
            rest[here] = inverse @ rest[here]
            rest[here.stop :].addmm_(self.lower[here.stop :, here], rest[here], alpha=-1)
        return rest

    def solve_transposed(self, right: Tensor) -> Tensor:
        """Return L⁻ᵀ right, for ``right`` of shape (d, k)."""
        rest = right.clone()
        for inverse, here in reversed(list(self._blocks())):
            rest[here].addmm_(self.lower[here.stop :, here].mT, rest[here.stop :], alpha=-1)
            rest[here] = inverse.mT @ rest[here]
        return rest

    def _blocks(self) -> Iterator[tuple[Tensor, slice]]:
        """Yield the inverses of the diagonal blocks and where these are."""
        d = self.lower.shape[0]
        for inverse, start in zip(self._inverses, range(0, d, self.block), strict=True):
            here = slice(start, min(start + self.block, d))
            side = here.stop - start
            yield inverse[:side, :side], here

    def _inverted(self) -> Tensor:
        """Return the inverses of the diagonal blocks; a short last one is filled up with ones."""
        d = self.lower.shape[0]
        side = _SMALLEST
        while side < self.block:
            side *= 2
        starts = range(0, d, self.block)
        blocks = self.lower.new_zeros(len(starts), side, side)
        for block, start in zip(blocks, starts, strict=True):
            stop = min(start + self.block, d)
            block[: stop - start, : stop - start] = self.lower[start:stop, start:stop].tril()
            block.diagonal()[stop - start :] = 1.0
        small = _tiles(blocks, min(_SMALLEST, side))
        unit = torch.eye(small.shape[-1], dtype=blocks.dtype, device=blocks.device)
        small.copy_(torch.linalg.solve_triangular(small, unit.expand_as(small), upper=False))
        half = small.shape[-1]
        while half < side:
            # The inverse of [A 0; C B] is [A⁻¹ 0; −B⁻¹ C A⁻¹ B⁻¹].
            pairs = _tiles(blocks, 2 * half)
            A, B, C = pairs[..., :half, :half], pairs[..., half:, half:], pairs[..., half:, :half]
            C.copy_((B @ (C @ A)).neg_())
            half *= 2
        return blocks


def _tiles(blocks: Tensor, side: int) -> Tensor:
    """Return the tiles on the diagonals of blocks, as a view of shape (blocks, tiles, side, side)."""
    count, whole, _ = blocks.shape
    cut = blocks.view(count, whole // side, side, whole // side, side)
    return cut.diagonal(dim1=1, dim2=3).movedim(-1, 1)
