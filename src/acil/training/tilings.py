"""How the convolution kernels cut their work: one table, filled by measuring."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tiling:
    """Cut of a product of patches and weights, of a map or of the gradient of its input.

    Attributes
    ----------
    pixels : int
        Pixels of the result for one program; a power of two, at least 16.
    depth : int
        How many of the 9 · channels terms of a sum are loaded at once; a power of two, at least 16.
    columns : int
        Channels of the result for one program; a power of two, at least 16.
    warps, stages : int
        Groups of 32 threads for one program; loads that are under way at once.
    """

    pixels: int
    depth: int
    columns: int
    warps: int = 4
    stages: int = 3


@dataclass(frozen=True)
class SplitTiling:
    """Cut of the gradient of a weight, which is a sum over all pixels.

    Attributes
    ----------
    pixels : int
        Pixels loaded at once; a power of two, at least 16.
    rows : int
        How many of the 9 · channels rows belong to one program; a power of two, at least 16.
    splits : int
        Parts of the sum that are computed side by side and added at the end.
    warps, stages : int
    """

    pixels: int
    rows: int
    splits: int
    warps: int = 4
    stages: int = 3


#: (channels of the source, of the result) → cut. These are the pairs of ResNet-32 for CIFAR; change them
#: only by what ``benchmarks/convolution.py --tune`` prints.
_FORWARD = {
    (16, 16): Tiling(pixels=128, depth=64, columns=16),
    (16, 32): Tiling(pixels=64, depth=64, columns=32),
    (32, 32): Tiling(pixels=64, depth=64, columns=32),
    (32, 64): Tiling(pixels=64, depth=64, columns=32, stages=4),
    (64, 64): Tiling(pixels=64, depth=64, columns=32, stages=4),
}
#: The same for the gradient of an input, whose source is the gradient of the map.
_INPUT_GRADIENT = {
    (16, 16): Tiling(pixels=128, depth=64, columns=16),
    (32, 16): Tiling(pixels=128, depth=64, columns=16),
    (32, 32): Tiling(pixels=64, depth=64, columns=32),
    (64, 32): Tiling(pixels=64, depth=64, columns=32, stages=4),
    (64, 64): Tiling(pixels=64, depth=64, columns=32, stages=4),
}
#: (channels of the input, of the output) → cut of the gradient of the weight.
_WEIGHT_GRADIENT = {
    (16, 16): SplitTiling(pixels=128, rows=64, splits=128),
    (16, 32): SplitTiling(pixels=64, rows=64, splits=128),
    (32, 32): SplitTiling(pixels=64, rows=64, splits=64),
    (32, 64): SplitTiling(pixels=64, rows=64, splits=32),
    (64, 64): SplitTiling(pixels=64, rows=64, splits=16),
}


def convolve_tiling(channels: int, outputs: int, *, transposed: bool) -> Tiling:
    """Return the cut for so many channels of the source and of the result."""
    usual = Tiling(pixels=64, depth=64, columns=min(outputs, 64))
    return (_INPUT_GRADIENT if transposed else _FORWARD).get((channels, outputs), usual)


def correlate_tiling(channels: int, outputs: int) -> SplitTiling:
    """Return the cut for the gradient of a weight of so many input and output channels."""
    return _WEIGHT_GRADIENT.get((channels, outputs), SplitTiling(pixels=64, rows=64, splits=32))
