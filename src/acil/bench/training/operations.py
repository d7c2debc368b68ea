"""Operations on batches of uint8 images, with the arithmetic of Pillow: geometry, tone and colour.

Images have shape (n, c, h, w), uint8, c = 1 or 3, on any device. Parameters are tensors with one entry
an image, on the same device. Results are new images, equal to Pillow's pixel for pixel with two
exceptions: `resized_crop`, and turns by 45 and 135 degrees with ``smooth``, where the last bit of a sum
decides.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

_FRACTION_BITS = 16
_LEVELS = 256


def rotate(images: Tensor, degrees: Tensor, smooth: bool = False) -> Tensor:
    """Turn counter-clockwise about the centre of the image."""
    height, width = images.shape[2:]
    angles = -torch.deg2rad(degrees.double())
    # Rounded as Pillow does, so that quarter turns are exact.
    cos, sin = angles.cos().round(decimals=15), angles.sin().round(decimals=15)
    x, y = width / 2, height / 2
    # Summed in Pillow's order
    to_x, to_y = -(cos * x) - sin * y + x, sin * x - cos * y + y
    return affine(images, [cos, sin, to_x, -sin, cos, to_y], smooth)


def affine(images: Tensor, entries: Sequence[Tensor | int], smooth: bool = False) -> Tensor:
    """Take the pixel at (x, y) from (a x + b y + c, d x + e y + f); outside of the image is 0.

    The entries are a … f, as ``Image.transform(…, Transform.AFFINE, …)`` takes them: one for each image,
    or one for all. ``smooth`` interpolates between the four pixels around a place; otherwise the nearest
    counts.
    """
    like = next(entry for entry in entries if isinstance(entry, Tensor))
    filled = [e if isinstance(e, Tensor) else torch.full_like(like, e) for e in entries]
    matrices = torch.stack(filled, 1)
    return _bilinear(images, matrices) if smooth else _nearest(images, matrices)


def _nearest(images: Tensor, matrices: Tensor) -> Tensor:
    height, width = images.shape[2:]
    a, b, c, d, e, f = matrices.double().unbind(1)
    a, b, c, d, e, f = (
        (value * 2**_FRACTION_BITS + 0.5).floor().long()[:, None, None]
        for value in (a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5)
    )
    x = torch.arange(width, device=images.device)
    y = torch.arange(height, device=images.device)[:, None]
    source_x = (c + b * y + a * x) >> _FRACTION_BITS
    source_y = (f + e * y + d * x) >> _FRACTION_BITS
    inside = (source_x >= 0) & (source_x < width) & (source_y >= 0) & (source_y < height)
    index = torch.where(inside, source_y * width + source_x, 0)
    return _pixels(images, index).mul_(inside[:, None])


def _bilinear(images: Tensor, matrices: Tensor) -> Tensor:
    height, width = images.shape[2:]
    a, b, c, d, e, f = matrices.double()[:, :, None, None].unbind(1)
    x = torch.arange(width, device=images.device, dtype=torch.float64) + 0.5
    y = (torch.arange(height, device=images.device, dtype=torch.float64) + 0.5)[:, None]
    source_x, source_y = a * x + b * y + c, d * x + e * y + f
    inside = (source_x >= 0) & (source_x < width) & (source_y >= 0) & (source_y < height)
    left, top = (source_x - 0.5).floor(), (source_y - 0.5).floor()
    # In float32 the result, which is cut to a whole number, would now and then be one less.
    to_right, down = (source_x - 0.5 - left)[:, None], (source_y - 0.5 - top)[:, None]
    columns = [(left + shift).clamp(0, width - 1).long() for shift in (0, 1)]
    rows = [(top + shift).clamp(0, height - 1).long() for shift in (0, 1)]
    corners = [[_pixels(images, row * width + column).double() for column in columns] for row in rows]
    upper, lower = (torch.lerp(first, second, to_right) for first, second in corners)
    return torch.lerp(upper, lower, down).to(torch.uint8).mul_(inside[:, None])


def _pixels(images: Tensor, index: Tensor) -> Tensor:
    """Take the pixels at these positions, (n, h, w), in flattened images."""
    chosen = index.flatten(1)[:, None].expand(-1, images.shape[1], -1)
    return images.flatten(2).gather(2, chosen).view_as(images)


def shifted_crop(images: Tensor, top: Tensor, left: Tensor, padding: int) -> Tensor:
    """Pad with zeros on all sides, then cut the original size out of it at (top, left)."""
    n, channels, height, width = images.shape
    device = images.device
    rows = top[:, None] + torch.arange(height, device=device)
    columns = left[:, None] + torch.arange(width, device=device)
    return functional.pad(images, (padding,) * 4)[
        torch.arange(n, device=device)[:, None, None, None],
        torch.arange(channels, device=device)[None, :, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]


def resized_crop(
    images: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor, size: int
) -> Tensor:
    """Cut a box out of each image and resize it to size x size, bilinear with antialiasing.

    As Pillow's ``resize(…, BILINEAR)`` of a crop, but for ties: a value half-way between two levels may
    be rounded to the other one, once a pass, because Pillow's weights are fixed-point numbers.
    """
    across = _triangle_weights(left, width, images.shape[3], size)
    down = _triangle_weights(top, height, images.shape[2], size)
    narrow = _to_levels(images.float() @ across.transpose(1, 2)[:, None])
    return _to_levels(down[:, None] @ narrow).to(torch.uint8)


def _to_levels(values: Tensor) -> Tensor:
    return (values + 0.5).floor_().clamp_(0, 255)


def _triangle_weights(start: Tensor, length: Tensor, full: int, size: int) -> Tensor:
    """Return the (n, size, full) weights that resample [start, start + length) to ``size`` points."""
    scale = (length.float() / size)[:, None, None]
    centres = (torch.arange(size, device=start.device)[None, :, None] + 0.5) * scale
    position = torch.arange(full, device=start.device)[None, None, :] - start[:, None, None]
    # When shrinking, the triangle widens with the scale.
    weights = (1 - (position + 0.5 - centres).abs() / scale.clamp_min(1)).clamp_min(0)
    weights = torch.where((position >= 0) & (position < length[:, None, None]), weights, 0)
    return weights / weights.sum(2, keepdim=True)


def adjust_brightness(images: Tensor, factors: Tensor) -> Tensor:
    """Blend each image with black; factor 1 leaves it, 0 is black (``ImageEnhance.Brightness``)."""
    return _blend(torch.zeros_like(images), images, factors)


def adjust_saturation(images: Tensor, factors: Tensor) -> Tensor:
    """Blend each image with its grey version; factor 0 is grey (``ImageEnhance.Color``)."""
    return _blend(_grey(images), images, factors)


def adjust_contrast(images: Tensor, factors: Tensor) -> Tensor:
    """Blend each image with its mean grey; factor 0 is flat (``ImageEnhance.Contrast``)."""
    brightness = _grey(images)
    pixels = brightness.shape[2] * brightness.shape[3]
    # In integers, because the mean is rounded: a float sum that is off by an ulp moves a whole level.
    total = brightness.sum((2, 3), keepdim=True, dtype=torch.int64)
    return _blend((2 * total + pixels) // (2 * pixels), images, factors)


def adjust_sharpness(images: Tensor, factors: Tensor) -> Tensor:
    """Blend each image with its smoothed version; above 1 sharpens (``ImageEnhance.Sharpness``)."""
    smooth = images.int()
    rows = smooth[:, :, :-2] + smooth[:, :, 1:-1] + smooth[:, :, 2:]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * smooth[:, :, 1:-1, 1:-1]
    # Ones with 5 in the centre, over 13; the border stays.
    smooth[:, :, 1:-1, 1:-1] = (2 * total + 13) // 26
    return _blend(smooth, images, factors)


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
    flat = images.flatten(2)
    low, high = flat.amin(2, keepdim=True).long(), flat.amax(2, keepdim=True).long()
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
    step = (pixels.shape[2] - histogram.gather(2, pixels.amax(2, keepdim=True))) // 255
    below = histogram.cumsum(2) - histogram
    table = ((below + step // 2) // step.clamp_min(1)).clamp_max(255)
    # A channel of one level, or of too few pixels, has step 0 and stays.
    return _look_up(torch.where(step > 0, table, torch.arange(_LEVELS, device=images.device)), images)


def _grey(images: Tensor) -> Tensor:
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


def _look_up(table: Tensor, images: Tensor) -> Tensor:
    """Replace each level by its entry in a table of shape (n, c, 256)."""
    return table.to(torch.uint8).gather(2, images.flatten(2).long()).view_as(images)
