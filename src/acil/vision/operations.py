"""Tone and colour operations on batches of uint8 images, equal to Pillow's pixel for pixel.

Each function takes images of shape (n, c, h, w), uint8, c = 1 or 3, on any device, and where it has a
strength, one number an image. It returns new images and leaves its input alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LEVELS = 256


def adjust_brightness(images: Tensor, factors: Tensor) -> Tensor:
    """Blend each image with black; factor 1 leaves it, 0 is black (``ImageEnhance.Brightness``)."""
    return _blend(torch.zeros_like(images), images, factors)


def adjust_saturation(images: Tensor, factors: Tensor) -> Tensor:
    """Blend each image with its grey version; factor 0 is grey (``ImageEnhance.Color``)."""
    return _blend(grey(images), images, factors)


def adjust_contrast(images: Tensor, factors: Tensor) -> Tensor:
    """Blend each image with its mean grey; factor 0 is flat (``ImageEnhance.Contrast``)."""
    brightness = grey(images)
    pixels = brightness.shape[2] * brightness.shape[3]
    # In integers, because the mean is rounded: a float sum that is off by an ulp moves a whole level.
    total = brightness.sum((2, 3), keepdim=True, dtype=torch.int64)
    mean = (2 * total + pixels) // (2 * pixels)
    return _blend(mean, images, factors)


def adjust_sharpness(images: Tensor, factors: Tensor) -> Tensor:
    """Blend each image with its smoothed version; above 1 sharpens (``ImageEnhance.Sharpness``)."""
    return _blend(_smooth(images), images, factors)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the given number of leading bits of each level, 1 to 8 (``ImageOps.posterize``)."""
    dropped = 2 ** (8 - bits.to(torch.int64))
    return images & (_LEVELS - dropped).to(torch.uint8)[:, None, None, None]


def solarize(images: Tensor, thresholds: Tensor) -> Tensor:
    """Invert levels at or above the threshold (``ImageOps.solarize``)."""
    below = images < thresholds[:, None, None, None]
    return torch.where(below, images, 255 - images)


def autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel to the full range (``ImageOps.autocontrast``)."""
    low, high = _range(images)
    levels = torch.arange(_LEVELS, device=images.device)
    # In float64 and in Pillow's order, so that truncation falls on the same side. A plain 255.0 / x
    # would be 255 times the rounded reciprocal in torch.
    span = (high - low).clamp_min(1).double()
    scale = torch.full_like(span, 255.0) / span
    table = (levels * scale + -low * scale).trunc().clamp(0, 255).to(torch.int64)
    return _look_up(torch.where(high > low, table, levels), images)


def equalize(images: Tensor) -> Tensor:
    """Flatten the histogram of each channel (``ImageOps.equalize``)."""
    pixels = images.flatten(2).long()
    histogram = pixels.new_zeros(*pixels.shape[:2], _LEVELS)
    histogram.scatter_add_(2, pixels, torch.ones_like(pixels))
    _, high = _range(images)
    step = (pixels.shape[2] - histogram.gather(2, high)) // 255
    below = histogram.cumsum(2) - histogram
    table = ((below + step // 2) // step.clamp_min(1)).clamp_max(255)
    # A channel of one level, or of too few pixels, has step 0 and stays.
    return _look_up(torch.where(step > 0, table, torch.arange(_LEVELS, device=images.device)), images)


def grey(images: Tensor) -> Tensor:
    """Return the brightness of each pixel, int32 (n, 1, h, w), as Pillow's mode "L" has it."""
    wide = images.int()
    if images.shape[1] == 1:
        return wide
    # ITU-R 601-2 in 16-bit fixed point, as Pillow computes it.
    return (19595 * wide[:, :1] + 38470 * wide[:, 1:2] + 7471 * wide[:, 2:] + 0x8000) >> 16


def _blend(start: Tensor, images: Tensor, factors: Tensor) -> Tensor:
    """Return start + factor (images - start), clipped and truncated, in float32 as Pillow does."""
    start = start.float()
    weight = factors.float()[:, None, None, None]
    return (images.float().sub_(start).mul_(weight).add_(start)).clamp_(0, 255).to(torch.uint8)


def _smooth(images: Tensor) -> Tensor:
    """Apply Pillow's SMOOTH filter: ones with 5 in the centre, over 13; the border stays."""
    wide = images.int()
    rows = wide[:, :, :-2] + wide[:, :, 1:-1] + wide[:, :, 2:]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * wide[:, :, 1:-1, 1:-1]
    wide[:, :, 1:-1, 1:-1] = (2 * total + 13) // 26
    return wide


def _range(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest level of each channel, int64 (n, c, 1)."""
    flat = images.flatten(2)
    return flat.amin(2, keepdim=True).long(), flat.amax(2, keepdim=True).long()


def _look_up(table: Tensor, images: Tensor) -> Tensor:
    """Replace each level by its entry in a table of shape (n, c, 256)."""
    return table.to(torch.uint8).gather(2, images.flatten(2).long()).view_as(images)
