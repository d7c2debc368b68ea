"""Triton kernels of 3 x 3 convolutions with padding 1, how they cut their work, and their start.

Maps are (images, height, width, channels) in memory, weights (outputs, 3, 3, channels): what PyTorch
calls channels last. Products take half precision and add in float32. No sum depends on the order in
which programs run, so the same input gives the same bits.

Imported only when it is needed, since it needs Triton.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

#: More rows than any map has, far from where 32-bit numbers end.
_FAR = tl.constexpr(2**24)
#: Cut of the last sum of the gradient of a weight: positions for one program, most parts loaded at once.
#: With fewer parts at once a program would wait for memory again and again.
_SUM_POSITIONS, _SUM_PARTS = 32, 128


@dataclass(frozen=True)
class Tiling:
    """Cut of a product of patches and weights, of a map or of the gradient of its input.

    Pixels, depth and columns are powers of two, at least 16.
    """

    pixels: int  # of the result for one program
    depth: int  # how many of the 9 · channels terms of a sum are loaded at once
    columns: int  # channels of the result for one program
    warps: int = 4  # groups of 32 threads for one program
    stages: int = 3  # loads that are under way at once


@dataclass(frozen=True)
class SplitTiling:
    """Cut of the gradient of a weight, a sum over all pixels; pixels and rows as above."""

    pixels: int  # loaded at once
    rows: int  # how many of the 9 · channels rows belong to one program
    splits: int  # parts of the sum that are computed side by side and added at the end
    warps: int = 4
    stages: int = 3


#: (channels of the source, of the result) → cut. These are the pairs of ResNet-32 for CIFAR; change them
#: only by what ``benchmarks/convolution.py --tune`` prints.
_FORWARD = {
    (16, 16): Tiling(pixels=128, depth=16, columns=16),
    (16, 32): Tiling(pixels=256, depth=32, columns=32, warps=8),
    (32, 32): Tiling(pixels=256, depth=32, columns=32, warps=8),
    (32, 64): Tiling(pixels=64, depth=32, columns=64, stages=5),
    (64, 64): Tiling(pixels=64, depth=64, columns=64, stages=5),
}
#: The same for the gradient of an input, whose source is the gradient of the map.
_INPUT_GRADIENT = {
    (16, 16): Tiling(pixels=128, depth=16, columns=16),
    (32, 16): Tiling(pixels=256, depth=32, columns=16),
    (32, 32): Tiling(pixels=128, depth=32, columns=32, warps=8),
    (64, 32): Tiling(pixels=256, depth=64, columns=32, warps=8),
    (64, 64): Tiling(pixels=64, depth=32, columns=64, stages=5),
}
#: (channels of the input, of the output) → cut of the gradient of the weight.
_WEIGHT_GRADIENT = {
    (16, 16): SplitTiling(pixels=64, rows=64, splits=88, stages=4),
    (16, 32): SplitTiling(pixels=128, rows=64, splits=88),
    (32, 32): SplitTiling(pixels=64, rows=64, splits=52, stages=4),
    (32, 64): SplitTiling(pixels=64, rows=64, splits=32),
    (64, 64): SplitTiling(pixels=64, rows=64, splits=29),
}


@triton.jit
def _patches(
    source,
    pixel,
    term,
    n_pixels,
    SOURCE_HEIGHT: tl.constexpr,
    SOURCE_WIDTH: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    STRIDE: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):
    """Return what lies under the taps around each pixel, (pixels, terms); zero outside the map.

    Term t is channel t mod CHANNELS under tap t div CHANNELS. A transposed convolution looks from the
    larger map into the smaller one, where only every STRIDE-th place exists.
    """
    tap = term // CHANNELS
    down = tap // 3 - 1
    right = tap % 3 - 1
    # What is no pixel or no tap gets a row far outside, so that one look at row and column tells all:
    # it is done for each load. Both together must not cancel each other, hence the 2.
    y = tl.where(pixel < n_pixels, pixel // WIDTH % HEIGHT, -2 * _FAR)
    x = pixel % WIDTH
    below = tl.where(term < 9 * CHANNELS, down, _FAR)
    if TRANSPOSED and STRIDE > 1:
        y = y[:, None] + below[None, :]
        x = x[:, None] + right[None, :]
        inside = (y >= 0) & (x >= 0) & (y % STRIDE == 0) & (x % STRIDE == 0)
        y = y // STRIDE
        x = x // STRIDE
        inside &= (y < SOURCE_HEIGHT) & (x < SOURCE_WIDTH)
        place = ((pixel // (HEIGHT * WIDTH))[:, None] * SOURCE_HEIGHT + y) * SOURCE_WIDTH + x
        offset = place * CHANNELS + (term % CHANNELS)[None, :]
    else:
        y = y * STRIDE
        x = x * STRIDE
        place = pixel
        if STRIDE > 1:
            place = (pixel // (HEIGHT * WIDTH) * SOURCE_HEIGHT + y) * SOURCE_WIDTH + x
        shift = (down * SOURCE_WIDTH + right) * CHANNELS + term % CHANNELS
        offset = (place * CHANNELS)[:, None] + shift[None, :]
        y = y[:, None] + below[None, :]
        x = x[:, None] + right[None, :]
        inside = (y >= 0) & (y < SOURCE_HEIGHT) & (x >= 0) & (x < SOURCE_WIDTH)
    # The channels of one place follow each other, so they can be loaded in wide words.
    offset = tl.max_contiguous(tl.multiple_of(offset, [1, 16]), [1, 16])
    return tl.load(source + offset, mask=inside, other=0.0)


@triton.jit
def convolve_kernel(
    source,
    weight,
    target,
    n_pixels,
    SOURCE_HEIGHT: tl.constexpr,
    SOURCE_WIDTH: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STRIDE: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    PIXELS: tl.constexpr,
    DEPTH: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Compute one tile of a convolution, or of the gradient of its input."""
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((PIXELS, COLUMNS), dtype=tl.float32)
    for start in range(0, 9 * CHANNELS, DEPTH):
        term = start + tl.arange(0, DEPTH)
        patch = _patches(
            source,
            pixel,
            term,
            n_pixels,
            SOURCE_HEIGHT,
            SOURCE_WIDTH,
            HEIGHT,
            WIDTH,
            CHANNELS,
            STRIDE,
            TRANSPOSED,
        )
        if TRANSPOSED:
            # Seen from the input the taps are reversed, and the weight's outputs are summed over.
            row = (term % CHANNELS) * (9 * OUTPUTS) + (8 - term // CHANNELS) * OUTPUTS
            offset = row[:, None] + column[None, :]
        else:
            offset = column[None, :] * (9 * CHANNELS) + term[:, None]
        taps = tl.load(weight + offset, mask=(term < 9 * CHANNELS)[:, None], other=0.0)
        total = tl.dot(patch, taps, total)
    place = target + pixel[:, None] * OUTPUTS + column[None, :]
    tl.store(place, total.to(target.dtype.element_ty), mask=(pixel < n_pixels)[:, None])


@triton.jit
def correlate_kernel(
    gradient,
    source,
    partial,
    n_pixels,
    SOURCE_HEIGHT: tl.constexpr,
    SOURCE_WIDTH: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STRIDE: tl.constexpr,
    STEPS: tl.constexpr,
    PIXELS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Compute one part of the sum over pixels that is the gradient of a weight."""
    split = tl.program_id(0)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, OUTPUTS)
    total = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    for step in range(STEPS):
        pixel = (split * STEPS + step) * PIXELS + tl.arange(0, PIXELS)
        patch = _patches(
            source,
            pixel,
            row,
            n_pixels,
            SOURCE_HEIGHT,
            SOURCE_WIDTH,
            HEIGHT,
            WIDTH,
            CHANNELS,
            STRIDE,
            False,
        )
        place = gradient + pixel[:, None] * OUTPUTS + column[None, :]
        change = tl.load(place, mask=(pixel < n_pixels)[:, None], other=0.0)
        total = tl.dot(tl.trans(patch), change, total)
    first = partial + split * (9 * CHANNELS * OUTPUTS)
    place = first + column[None, :] * (9 * CHANNELS) + row[:, None]
    tl.store(place, total, mask=(row < 9 * CHANNELS)[:, None])


@triton.jit
def add_parts_kernel(
    partial,
    target,
    SPLITS: tl.constexpr,
    SIZE: tl.constexpr,
    POSITIONS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Add the parts in their order; SIZE is a multiple of POSITIONS."""
    position = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)
    total = tl.zeros((POSITIONS,), dtype=tl.float32)
    for start in range(0, SPLITS, PARTS):
        part = start + tl.arange(0, PARTS)
        place = partial + part[:, None] * SIZE + position[None, :]
        total += tl.sum(tl.load(place, mask=(part < SPLITS)[:, None], other=0.0), axis=0)
    tl.store(target + position, total.to(target.dtype.element_ty))


def convolve(
    source: Tensor,
    weight: Tensor,
    target: Tensor,
    stride: int,
    *,
    transposed: bool,
    tiling: Tiling | None = None,
) -> None:
    """Write the convolution of ``source`` into ``target``; transposed, the gradient of its input.

    All tensors are channels last, in one half precision, on one device. ``weight`` is that of the
    convolution in both cases.
    """
    n_images, outputs, height, width = target.shape
    _, channels, source_height, source_width = source.shape
    usual = Tiling(pixels=64, depth=64, columns=min(outputs, 64))
    cut = tiling or (_INPUT_GRADIENT if transposed else _FORWARD).get((channels, outputs), usual)
    n_pixels = n_images * height * width
    grid = (triton.cdiv(n_pixels, cut.pixels), outputs // cut.columns)
    with torch.cuda.device_of(source):
        convolve_kernel[grid](
            source,
            weight,
            target,
            n_pixels,
            SOURCE_HEIGHT=source_height,
            SOURCE_WIDTH=source_width,
            HEIGHT=height,
            WIDTH=width,
            CHANNELS=channels,
            OUTPUTS=outputs,
            STRIDE=stride,
            TRANSPOSED=transposed,
            PIXELS=cut.pixels,
            DEPTH=cut.depth,
            COLUMNS=cut.columns,
            num_warps=cut.warps,
            num_stages=cut.stages,
        )


def correlate(
    gradient: Tensor, source: Tensor, target: Tensor, stride: int, *, tiling: SplitTiling | None = None
) -> None:
    """Write the gradient of a weight into ``target``, from that of the map and the map's input."""
    n_images, outputs, height, width = gradient.shape
    _, channels, source_height, source_width = source.shape
    usual = SplitTiling(pixels=64, rows=64, splits=32)
    cut = tiling or _WEIGHT_GRADIENT.get((channels, outputs), usual)
    n_pixels = n_images * height * width
    n_blocks = triton.cdiv(n_pixels, cut.pixels)
    n_steps = triton.cdiv(n_blocks, cut.splits)
    n_splits = triton.cdiv(n_blocks, n_steps)
    size = 9 * channels * outputs
    partial = torch.empty(n_splits * size, dtype=torch.float32, device=gradient.device)
    with torch.cuda.device_of(source):
        correlate_kernel[(n_splits, triton.cdiv(9 * channels, cut.rows))](
            gradient,
            source,
            partial,
            n_pixels,
            SOURCE_HEIGHT=source_height,
            SOURCE_WIDTH=source_width,
            HEIGHT=height,
            WIDTH=width,
            CHANNELS=channels,
            OUTPUTS=outputs,
            STRIDE=stride,
            STEPS=n_steps,
            PIXELS=cut.pixels,
            ROWS=cut.rows,
            num_warps=cut.warps,
            num_stages=cut.stages,
        )
        add_parts_kernel[(size // _SUM_POSITIONS,)](
            partial,
            target,
            SPLITS=n_splits,
            SIZE=size,
            POSITIONS=_SUM_POSITIONS,
            PARTS=min(_SUM_PARTS, triton.next_power_of_2(n_splits)),
        )
