"""Geometric operations on batches of uint8 images: affine maps, crops and resizing.

Images have shape (n, c, h, w), uint8, on any device; parameters are tensors with one entry an image,
on the same device. Affine maps take the nearest pixel, or with ``smooth`` interpolate between four, and
fill with 0; they agree with Pillow exactly, because they repeat its arithmetic (interpolated turns by
45 and 135 degrees are off by one level in a few pixels, where the last bit of a sum decides).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_FRACTION_BITS = 16


def shear_x(images: Tensor, slopes: Tensor, smooth: bool = False) -> Tensor:
    """Take pixel (x, y) from (x + slope y, y), with the origin in the upper left corner."""
    zero, one = torch.zeros_like(slopes), torch.ones_like(slopes)
    return affine(images, torch.stack([one, slopes, zero, zero, one, zero], 1), smooth)


def shear_y(images: Tensor, slopes: Tensor, smooth: bool = False) -> Tensor:
    """Take pixel (x, y) from (x, y + slope x), with the origin in the upper left corner."""
    zero, one = torch.zeros_like(slopes), torch.ones_like(slopes)
    return affine(images, torch.stack([one, zero, zero, slopes, one, zero], 1), smooth)


def translate_x(images: Tensor, pixels: Tensor) -> Tensor:
    """Move to the right by a whole number of pixels; fractions are cut off."""
    zero, one = torch.zeros_like(pixels), torch.ones_like(pixels)
    return affine(images, torch.stack([one, zero, -pixels.trunc(), zero, one, zero], 1))


def translate_y(images: Tensor, pixels: Tensor) -> Tensor:
    """Move down by a whole number of pixels; fractions are cut off."""
    zero, one = torch.zeros_like(pixels), torch.ones_like(pixels)
    return affine(images, torch.stack([one, zero, zero, zero, one, -pixels.trunc()], 1))


def rotate(images: Tensor, degrees: Tensor, smooth: bool = False) -> Tensor:
    """Turn counter-clockwise about the centre of the image."""
    height, width = images.shape[2:]
    angles = -torch.deg2rad(degrees.double())
    # Rounded as Pillow does, so that quarter turns are exact.
    cos, sin = angles.cos().round(decimals=15), angles.sin().round(decimals=15)
    x, y = width / 2, height / 2
    # Summed in Pillow's order
    to_x, to_y = -(cos * x) - sin * y + x, sin * x - cos * y + y
    matrices = torch.stack([cos, sin, to_x, -sin, cos, to_y], 1)
    return affine(images, matrices, smooth)


def affine(images: Tensor, matrices: Tensor, smooth: bool = False) -> Tensor:
    """Take the pixel at (x, y) from (a x + b y + c, d x + e y + f).

    Parameters
    ----------
    images : Tensor of shape (n, c, h, w), uint8
    matrices : Tensor of shape (n, 6)
        a … f for each image, as ``Image.transform(…, Transform.AFFINE, …)`` takes them; coordinates
        are those of pixel centres, at halves.
    smooth : bool
        Whether to interpolate between the four pixels around a place, or to take the nearest.

    Returns
    -------
    Tensor of shape (n, c, h, w), uint8
        0 where the source lies outside.
    """
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


def mirror(images: Tensor, chosen: Tensor) -> Tensor:
    """Swap left and right in the chosen images (a boolean each)."""
    return torch.where(chosen[:, None, None, None], images.flip(3), images)


def shifted_crop(images: Tensor, top: Tensor, left: Tensor, padding: int) -> Tensor:
    """Pad with zeros on all sides, then cut the original size out of it at (top, left)."""
    n, channels, height, width = images.shape
    padded = functional.pad(images, (padding,) * 4)
    device = images.device
    rows = top[:, None] + torch.arange(height, device=device)
    columns = left[:, None] + torch.arange(width, device=device)
    return padded[
        torch.arange(n, device=device)[:, None, None, None],
        torch.arange(channels, device=device)[None, :, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]


def resized_crop(
    images: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor, size: int
) -> Tensor:
    """Cut a box out of each image and resize it to size x size, bilinear with antialiasing.

    As Pillow's ``resize(…, BILINEAR)`` of a crop: when shrinking, the triangle widens with the scale.
    Boxes differ from image to image, so resampling is a product with one small matrix an image and
    axis. A level may differ from Pillow's by one a pass, where the exact value lies half-way between two
    levels: Pillow's weights are fixed-point numbers, which settle such ties differently.
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
    weights = (1 - (position + 0.5 - centres).abs() / scale.clamp_min(1)).clamp_min(0)
    weights = torch.where((position >= 0) & (position < length[:, None, None]), weights, 0)
    return weights / weights.sum(2, keepdim=True)
