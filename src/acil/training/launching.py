"""Start the kernels of :mod:`acil.training.kernels` on tensors that are channels last."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from acil.training import kernels
from acil.training.tilings import SplitTiling, Tiling, convolve_tiling, correlate_tiling

#: Cut of the last sum of the gradient of a weight: positions for one program, most parts loaded at once.
#: With fewer parts at once a program would wait for memory again and again.
_SUM_POSITIONS, _SUM_PARTS = 32, 128


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
    cut = tiling or convolve_tiling(channels, outputs, transposed=transposed)
    n_pixels = n_images * height * width
    grid = (triton.cdiv(n_pixels, cut.pixels), outputs // cut.columns)
    with torch.cuda.device_of(source):  # type: ignore[no-untyped-call]
        kernels.convolve_kernel[grid](
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
    with torch.cuda.device_of(source):  # type: ignore[no-untyped-call]
        kernels.correlate_kernel[(n_splits, triton.cdiv(9 * channels, cut.rows))](
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
        kernels.add_parts_kernel[(size // _SUM_POSITIONS,)](
            partial,
            target,
            SPLITS=n_splits,
            SIZE=size,
            POSITIONS=_SUM_POSITIONS,
            PARTS=min(_SUM_PARTS, triton.next_power_of_2(n_splits)),
        )
