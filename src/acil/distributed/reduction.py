"""One reduction of the sums over all processes: a triangle of the matrix, packed.

Sums that are kept as pairs (see `acil.analytic.pairs`) must not be rounded on the way. No collective
adds pairs, so each number is cut in two before it travels: a head on a grid that all processes share, so
coarse that heads add up without rounding, and a tail, whose rounding is far below the last digit.

The grid follows from the Cauchy-Schwarz inequality: with D the diagonal of the sum over all processes,
|g_ij| ≤ √(D_i D_j), and so is the sum of their magnitudes over processes.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from acil.analytic.exact import high_tile, put_tile_, tile_pair, tiles
from acil.analytic.pairs import Pair, head, two_sum
from acil.analytic.statistics import Statistics
from acil.distributed.collectives import BLOCK_BYTES, all_reduce_
from acil.distributed.group import Group

#: Bits of a head: with these, sums that the inequality bounds have room to spare in 53.
_HEAD_BITS = 50

#: A tile of the matrix, rows and columns.
Tile = tuple[slice, slice]


def reduce_(sums: Statistics, group: Group) -> None:
    """Replace sums by those over the samples of all processes; the bits are the same on all.

    Parameters
    ----------
    sums : Statistics
        Of the same width and classes on all processes.
    group : Group
    """
    sums.keep_pairs(any(group.exchange(sums.low is not None)))
    if sums.low is None:
        for batch in _batches(sums):
            _reduce_tiles_(sums.gram, batch, group)
        all_reduce_(sums.moment, group)
        all_reduce_(sums.weights, group)
    else:
        # Magnitudes that bound elements: √D for a row of the matrix, √(Σ w) for a class
        scale = all_reduce_(sums.gram.diagonal().clone(), group).sqrt_()
        weights = all_reduce_(sums.weights.clone(), group)
        for batch in _batches(sums):
            _reduce_pair_tiles_(sums.gram, sums.low.diagonal, batch, scale, group)
        bound = torch.outer(scale, weights.sqrt().to(scale))
        sums.moment, sums.low.moment = _reduced(sums.moment_pair, bound, group)
        sums.weights, sums.low.weights = _reduced(sums.weights_pair, weights, group)
    all_reduce_(sums.counts, group)


def _reduce_tiles_(gram: Tensor, batch: list[Tile], group: Group) -> None:
    """Reduce some tiles of a matrix in place, as one vector."""
    total = all_reduce_(torch.cat([_packed(high_tile(gram, *tile), tile) for tile in batch]), group)
    for (here, there), part in _split(total, batch):
        gram[here, there] = _unpacked(part, (here, there))


def _reduce_pair_tiles_(
    gram: Tensor, diagonal_low: Tensor, batch: list[Tile], scale: Tensor, group: Group
) -> None:
    """Reduce some tiles of a matrix of pairs in place, as one pair of vectors."""
    pairs = [tile_pair(gram, diagonal_low, *tile) for tile in batch]
    vectors = [
        torch.cat([_packed(pair[i], tile) for pair, tile in zip(pairs, batch, strict=True)])
        for i in range(2)
    ]
    bounds = [_packed(torch.outer(scale[here], scale[there]), (here, there)) for here, there in batch]
    total = _reduced(Pair(*vectors), torch.cat(bounds), group)
    parts = zip(_split(total.high, batch), _split(total.low, batch), strict=True)
    for (tile, high), (_, low) in parts:
        put_tile_(gram, diagonal_low, *tile, Pair(_unpacked(high, tile), _unpacked(low, tile)))


def _reduced(pair: Pair, bound: Tensor, group: Group) -> Pair:
    """Return the sum of a pair over all processes; ``bound`` is the same on all."""
    heads = head(pair.high, bound, _HEAD_BITS)
    tails = (pair.high - heads).add_(pair.low)
    both = all_reduce_(torch.stack([heads, tails]), group)
    return two_sum(both[0], both[1])


def _batches(sums: Statistics) -> Iterator[list[Tile]]:
    """Yield tiles that fill a block together."""
    room = BLOCK_BYTES // (sums.gram.element_size() * (1 if sums.low is None else 2))
    batch: list[Tile] = []
    filled = 0
    for tile in tiles(sums.gram):
        batch.append(tile)
        filled += _length(tile)
        if filled >= room:
            yield batch
            batch, filled = [], 0
    if batch:
        yield batch


def _split(vector: Tensor, batch: list[Tile]) -> Iterator[tuple[Tile, Tensor]]:
    lengths = [_length(tile) for tile in batch]
    return zip(batch, torch.split(vector, lengths), strict=True)


def _shape(tile: Tile) -> tuple[int, int]:
    here, there = tile
    return here.stop - here.start, there.stop - there.start


def _length(tile: Tile) -> int:
    rows, columns = _shape(tile)
    return rows * columns if tile[0] != tile[1] else rows * (rows + 1) // 2


def _packed(values: Tensor, tile: Tile) -> Tensor:
    """Return a tile as a vector; of one on the diagonal, what is on and below the diagonal."""
    return values.reshape(-1) if tile[0] != tile[1] else values[_below(values)]


def _unpacked(vector: Tensor, tile: Tile) -> Tensor:
    if tile[0] != tile[1]:
        return vector.reshape(_shape(tile))
    values = vector.new_zeros(_shape(tile))
    values[_below(values)] = vector
    return values + values.tril(-1).mT


def _below(values: Tensor) -> Tensor:
    return torch.ones_like(values, dtype=torch.bool).tril()
