"""Triangular solutions made of matrix products, for devices that excel at those."""

from __future__ import annotations

import torch
from torch import Tensor

from acil.core.linalg import panels

#: Side of the diagonal blocks. Larger ones take fewer steps to solve with, and more work to invert.
BLOCK = 2048
#: Side of the blocks that are inverted by substitution; inverses of larger ones follow by products.
_SMALLEST = 256


class BlockInverses:
    """Solves with the lower triangle L of a matrix by the inverses of its diagonal blocks.

    A solution is then a short chain of products, and nothing waits for the device.
    """

    def __init__(self, lower: Tensor, block: int | None = None) -> None:
        self.lower = lower
        self._places = [slice(*place) for place in panels(len(lower), min(block or BLOCK, len(lower)))]
        self._inverses = self._inverted()

    def solve(self, right: Tensor) -> Tensor:
        """Return L⁻¹ right, for ``right`` of shape (d, k)."""
        rest = right.clone()
        for inverse, here in zip(self._inverses, self._places, strict=True):
            rest[here] = inverse @ rest[here]
            rest[here.stop :].addmm_(self.lower[here.stop :, here], rest[here], alpha=-1)
        return rest

    def solve_transposed(self, right: Tensor) -> Tensor:
        """Return L⁻ᵀ right, for ``right`` of shape (d, k)."""
        rest = right.clone()
        for inverse, here in reversed(list(zip(self._inverses, self._places, strict=True))):
            rest[here].addmm_(self.lower[here.stop :, here].mT, rest[here.stop :], alpha=-1)
            rest[here] = inverse.mT @ rest[here]
        return rest

    def _inverted(self) -> list[Tensor]:
        """Return the inverses of the diagonal blocks, all made at once."""
        sides = [here.stop - here.start for here in self._places]
        side = _SMALLEST
        while side < max(sides):
            side *= 2
        # Filled up with ones to a power of two
        blocks = torch.eye(side, dtype=self.lower.dtype, device=self.lower.device)
        blocks = blocks.repeat(len(sides), 1, 1)
        for block, here, size in zip(blocks, self._places, sides, strict=True):
            block[:size, :size] = self.lower[here, here].tril()
        small = _tiles(blocks, _SMALLEST)
        unit = torch.eye(_SMALLEST, dtype=blocks.dtype, device=blocks.device)
        small.copy_(torch.linalg.solve_triangular(small, unit.expand_as(small), upper=False))
        half = _SMALLEST
        while half < side:
            # The inverse of [A 0; C B] is [A⁻¹ 0; −B⁻¹ C A⁻¹ B⁻¹].
            pairs = _tiles(blocks, 2 * half)
            A, B, C = pairs[..., :half, :half], pairs[..., half:, half:], pairs[..., half:, :half]
            C.copy_((B @ (C @ A)).neg_())
            half *= 2
        return [block[:size, :size] for block, size in zip(blocks, sides, strict=True)]


def _tiles(blocks: Tensor, side: int) -> Tensor:
    """Return the tiles on the diagonals of blocks, as a view of shape (blocks, tiles, side, side)."""
    count, whole, _ = blocks.shape
    cut = blocks.view(count, whole // side, side, whole // side, side)
    return cut.diagonal(dim1=1, dim2=3).movedim(-1, 1)
