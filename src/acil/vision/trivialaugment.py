"""TrivialAugmentWide: one random operation of random strength an image.

S. G. Müller and F. Hutter, "TrivialAugment: Tuning-free Yet State-of-the-Art Data Augmentation", 2021,
with the 14 operations, ranges and 31 strengths of torchvision's ``TrivialAugmentWide`` (fill 0; nearest
pixel, which is its default, or bilinear).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from acil.vision import geometry, operations

BINS = 31


class Operation(NamedTuple):
    """One operation of the space.

    Attributes
    ----------
    name : str
    apply : callable
        (images, magnitudes) → images, with one magnitude an image.
    magnitudes : Tensor of shape (31,), float64
    signed : bool
        Whether half of the draws use the negative magnitude.
    """

    name: str
    apply: Callable[[Tensor, Tensor], Tensor]
    magnitudes: Tensor
    signed: bool


def _up_to(largest: float) -> Tensor:
    return torch.linspace(0.0, largest, BINS, dtype=torch.float32).double()


_NONE = torch.zeros(BINS, dtype=torch.float64)
#: Bits kept: 8 down to 2.
_BITS = 8 - (torch.arange(BINS) / ((BINS - 1) / 6)).round().double()
_THRESHOLDS = torch.linspace(255.0, 0.0, BINS, dtype=torch.float32).double()

#: Operations that interpolate between pixels when asked to.
_INTERPOLATING = {"shear_x": geometry.shear_x, "shear_y": geometry.shear_y, "rotate": geometry.rotate}

SPACE: tuple[Operation, ...] = (
    Operation("identity", lambda images, _: images, _NONE, False),
    Operation("shear_x", geometry.shear_x, _up_to(0.99), True),
    Operation("shear_y", geometry.shear_y, _up_to(0.99), True),
    Operation("translate_x", geometry.translate_x, _up_to(32.0), True),
    Operation("translate_y", geometry.translate_y, _up_to(32.0), True),
    Operation("rotate", geometry.rotate, _up_to(135.0), True),
    Operation("brightness", lambda x, m: operations.adjust_brightness(x, 1 + m), _up_to(0.99), True),
    Operation("colour", lambda x, m: operations.adjust_saturation(x, 1 + m), _up_to(0.99), True),
    Operation("contrast", lambda x, m: operations.adjust_contrast(x, 1 + m), _up_to(0.99), True),
    Operation("sharpness", lambda x, m: operations.adjust_sharpness(x, 1 + m), _up_to(0.99), True),
    Operation("posterize", operations.posterize, _BITS, False),
    Operation("solarize", operations.solarize, _THRESHOLDS, False),
    Operation("autocontrast", lambda images, _: operations.autocontrast(images), _NONE, False),
    Operation("equalize", lambda images, _: operations.equalize(images), _NONE, False),
)


#: The same operations, with interpolation where images are sheared or turned.
SMOOTH_SPACE = tuple(
    operation._replace(apply=partial(_INTERPOLATING[operation.name], smooth=True))
    if operation.name in _INTERPOLATING
    else operation
    for operation in SPACE
)


def apply_each(
    images: Tensor, choices: Tensor, magnitudes: Tensor, space: tuple[Operation, ...] = SPACE
) -> Tensor:
    """Apply to each image the operation chosen for it.

    Parameters
    ----------
    images : Tensor of shape (n, c, h, w), uint8
    choices : Tensor of shape (n,), int64
        Positions in :data:`SPACE`.
    magnitudes : Tensor of shape (n,), float64
        Signed, in the operation's own unit.
    space : tuple of Operation

    Returns
    -------
    Tensor of shape (n, c, h, w), uint8
    """
    result = torch.empty_like(images)
    # Sorting makes the groups contiguous and costs one transfer of 14 counts, not one for each group.
    order = choices.argsort(stable=True)
    counts = torch.bincount(choices, minlength=len(space)).tolist()
    for operation, members in zip(space, torch.split(order, counts), strict=True):
        if len(members):
            result[members] = operation.apply(images[members], magnitudes[members])
    return result


def trivial_augment(
    images: Tensor, generator: torch.Generator, space: tuple[Operation, ...] = SPACE
) -> Tensor:
    """Draw an operation, a strength and a sign for each image, and apply them.

    Parameters
    ----------
    images : Tensor of shape (n, c, h, w), uint8
    generator : torch.Generator
        On the device of the images.
    space : tuple of Operation

    Returns
    -------
    Tensor of shape (n, c, h, w), uint8
    """
    n, device = len(images), images.device
    choices = torch.randint(len(space), (n,), generator=generator, device=device)
    bins = torch.randint(BINS, (n,), generator=generator, device=device)
    negative = torch.randint(2, (n,), generator=generator, device=device).bool()
    table = torch.stack([operation.magnitudes for operation in space]).to(device)
    signed = torch.tensor([operation.signed for operation in space], device=device)
    magnitudes = table[choices, bins]
    magnitudes = torch.where(negative & signed[choices], -magnitudes, magnitudes)
    return apply_each(images, choices, magnitudes, space)
