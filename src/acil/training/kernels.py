"""Triton kernels of 3 x 3 convolutions with padding 1, and what starts them.

Maps are (images, height, width, channels) in memory, weights (outputs, 3, 3, channels): what PyTorch
calls channels last. Products take half precision and add in float32. No sum depends on the order in
which programs run, so the same input gives the same bits.

Only :mod:`acil.training.convolution` imports this file, when it is needed: it needs Triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from acil.training.tilings import SplitTiling, Tiling, convolve_tiling, correlate_tiling

#: Cut of the last sum of the gradient of a weight: positions for one program, parts loaded at once.
_SUM_POSITIONS, _SUM_PARTS = 32, 32


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
    y = (pixel // WIDTH % HEIGHT)[:, None]
    x = (pixel % WIDTH)[:, None]
    down = (tap // 3 - 1)[None, :]
    right = (tap % 3 - 1)[None, :]
    inside = (pixel < n_pixels)[:, None] & (term < 9 * CHANNELS)[None, :]
    if TRANSPOSED:
        y += down
        x += right
        inside &= (y >= 0) & (x >= 0)
        if STRIDE > 1:
            inside &= (y % STRIDE == 0) & (x % STRIDE == 0)
            y = y // STRIDE
            x = x // STRIDE
    else:
        y = y * STRIDE + down
        x = x * STRIDE + right
        inside &= (y >= 0) & (x >= 0)
    inside &= (y < SOURCE_HEIGHT) & (x < SOURCE_WIDTH)
    image = (pixel // (HEIGHT * WIDTH))[:, None]
    offset = ((image * SOURCE_HEIGHT + y) * SOURCE_WIDTH + x) * CHANNELS + (term % CHANNELS)[None, :]
    # The channels of one place follow each other, so they can be loaded in wide words.
    offset = tl.max_contiguous(tl.multiple_of(offset, [1, 16]), [1, 16])
    return tl.load(source + offset, mask=inside, other=0.0)


@triton.jit
def _convolve(
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
def _correlate(
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
def _add_parts(
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
    cut = tiling or convolve_tiling(channels, outputs)
    n_pixels = n_images * height * width
    grid = (triton.cdiv(n_pixels, cut.pixels), outputs // cut.columns)
    with torch.cuda.device_of(source):
        _convolve[grid](
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
    cut = tiling or correlate_tiling(channels, outputs)
    n_pixels = n_images * height * width
    n_blocks = triton.cdiv(n_pixels, cut.pixels)
    n_steps = triton.cdiv(n_blocks, cut.splits)
    n_splits = triton.cdiv(n_blocks, n_steps)
    size = 9 * channels * outputs
    partial = torch.empty(n_splits * size, dtype=torch.float32, device=gradient.device)
    with torch.cuda.device_of(source):
        _correlate[(n_splits, triton.cdiv(9 * channels, cut.rows))](
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
        _add_parts[(size // _SUM_POSITIONS,)](
            partial, target, SPLITS=n_splits, SIZE=size, POSITIONS=_SUM_POSITIONS, PARTS=_SUM_PARTS
        )
