"""Triton kernels of 3 x 3 convolutions with padding 1.

Maps are (images, height, width, channels) in memory, weights (outputs, 3, 3, channels): what PyTorch
calls channels last. Products take half precision and add in float32. No sum depends on the order in
which programs run, so the same input gives the same bits.

Imported only when it is needed, since it needs Triton; :mod:`acil.training.launching` starts them.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: More rows than any map has, far from where 32-bit numbers end.
_FAR = tl.constexpr(2**24)


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
