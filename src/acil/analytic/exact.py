"""Sums of products that keep the digits beyond float64: what is added is the product, not its rounding.

A matrix of numbers is cut into heads of 21 bits on a grid for each column, and tails. Products of heads
have 42 bits, so that 2,048 of them add up without rounding; the other products are smaller by 2⁻²¹, and
so is their rounding.

The low parts of a symmetric matrix live in the triangle above the diagonal, which is free, those of the
diagonal in a vector: keeping them takes no second matrix.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from acil.analytic.pairs import Pair, add_pairs, head

_HEAD_BITS = 21
_EXACT_TERMS = 2048
#: Side of the square tiles. On a CPU a few of them stay in a core's cache; a GPU wants few large ones.
_TILE, _TILE_GPU = 256, 2048


def add_gram_pair_(gram: Tensor, diagonal_low: Tensor, rows: Tensor, sign: int = 1) -> None:
    """Add ``sign · rowsᵀ rows`` to a symmetric matrix of pairs, in place.

    Parameters
    ----------
    gram : Tensor of shape (d, d), float64
        High parts in the lower triangle, low parts above the diagonal.
    diagonal_low : Tensor of shape (d,)
        Low parts of the diagonal.
    rows : Tensor of shape (n, d), float64
    sign : {1, -1}
    """
    for chunk in torch.split(rows, _EXACT_TERMS):
        heads = _heads(chunk)
        tails = chunk - heads
        for here, there in tiles(gram):
            exact = heads[:, here].mT @ heads[:, there]
            # With X = H + L: XᵀX − HᵀH = XᵀL + LᵀH
            rest = chunk[:, here].mT @ tails[:, there]
            rest.addmm_(tails[:, here].mT, heads[:, there])
            if sign < 0:
                exact.neg_(), rest.neg_()
            total = add_pairs(tile_pair(gram, diagonal_low, here, there), Pair(exact, rest))
            put_tile_(gram, diagonal_low, here, there, total)


def merge_gram_pair_(
    gram: Tensor, diagonal_low: Tensor, other: Tensor, other_low: Tensor | None
) -> None:
    """Add a symmetric matrix to one of pairs, in place.

    Parameters
    ----------
    gram, diagonal_low
        See `add_gram_pair_`.
    other : Tensor of shape (d, d)
    other_low : Tensor of shape (d,) or None
        None if only the lower triangle of the other matrix means anything.
    """
    for here, there in tiles(gram):
        if other_low is None:
            high = high_tile(other, here, there).to(gram)
            tile = Pair(high, torch.zeros_like(high))
        else:
            tile = Pair(*(part.to(gram) for part in tile_pair(other, other_low, here, there)))
        total = add_pairs(tile_pair(gram, diagonal_low, here, there), tile)
        put_tile_(gram, diagonal_low, here, there, total)


def product_pair(rows: Tensor, targets: Tensor) -> Pair:
    """Return rowsᵀ targets as a pair.

    Parameters
    ----------
    rows : Tensor of shape (n, d)
    targets : Tensor of shape (n, k)
    """
    zero = rows.new_zeros(rows.shape[1], targets.shape[1])
    total = Pair(zero, zero)
    for left, right in zip(*(torch.split(part, _EXACT_TERMS) for part in (rows, targets)), strict=True):
        left_heads, right_heads = _heads(left), _heads(right)
        rest = left_heads.mT @ (right - right_heads)
        rest.addmm_((left - left_heads).mT, right)
        total = add_pairs(total, Pair(left_heads.mT @ right_heads, rest))
    return total


def tile_pair(gram: Tensor, diagonal_low: Tensor, here: slice, there: slice) -> Pair:
    """Return a tile on or below the diagonal of a symmetric matrix of pairs, the whole of it."""
    if here != there:
        return Pair(gram[here, there], gram[there, here].mT)
    above = gram[here, here].triu(1)
    low = above + above.mT
    low.diagonal().copy_(diagonal_low[here])
    return Pair(high_tile(gram, here, here), low)


def high_tile(gram: Tensor, here: slice, there: slice) -> Tensor:
    """Return a tile of the high parts, the whole of it where it lies on the diagonal."""
    tile = gram[here, there]
    return tile if here != there else tile.tril() + tile.tril(-1).mT


def put_tile_(gram: Tensor, diagonal_low: Tensor, here: slice, there: slice, pair: Pair) -> None:
    """Put back a tile that `tile_pair` has returned, in place."""
    if here != there:
        gram[here, there], gram[there, here] = pair.high, pair.low.mT
        return
    gram[here, here] = pair.high.tril() + pair.low.triu(1)
    diagonal_low[here] = pair.low.diagonal()


def _heads(values: Tensor) -> Tensor:
    return head(values, values.abs().amax(dim=0), _HEAD_BITS)


def tiles(gram: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield rows and columns of the tiles of a matrix on and below the diagonal."""
    for there in strips(gram):
        for here in strips(gram):
            if here.start >= there.start:
                yield here, there


def strips(gram: Tensor) -> Iterator[slice]:
    """Yield the rows of a matrix in groups as high as a tile."""
    d, side = gram.shape[0], _TILE if gram.device.type == "cpu" else _TILE_GPU
    for start in range(0, d, side):
        yield slice(start, min(start + side, d))
