"""Random changes of training images, batched and on the device that holds them.

TrivialAugmentWide applies one random operation of random strength to each image: S. G. Müller and
F. Hutter, "TrivialAugment: Tuning-free Yet State-of-the-Art Data Augmentation", 2021. The 14 operations,
ranges and 31 strengths are torchvision's (fill 0; nearest pixel, which is its default, or bilinear).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from acil.bench.training import operations
from acil.encoders.images.imagefiles import AREA, ASPECT, ATTEMPTS
from acil.errors import InputError

#: Of RandomCrop in every CIFAR recipe.
CROP_PADDING = 4
#: Of ColorJitter in PODNet's and PyCIL's CIFAR recipes.
JITTER_BRIGHTNESS = 63 / 255
#: Strengths of TrivialAugment.
BINS = 31


class Augmentation:
    """Change a batch of uint8 images at random and return floats.

    Parameters
    ----------
    names : sequence of str
        Steps, applied in this order: ``"crop"`` (4 zeros around, then a random window of the original
        size), ``"flip"`` (left and right swapped in half of the images), ``"jitter"`` (brightness
        ± 63/255), ``"resizedcrop"`` (a random box resized to ``size``, as torchvision's
        RandomResizedCrop), ``"trivialaugment"`` (TrivialAugmentWide with torchvision's defaults),
        ``"trivialaugment-bilinear"`` (the same with interpolation). Empty: only the conversion.
    size : int, optional
        Side of what ``"resizedcrop"`` returns; by default the height of its input.

    Examples
    --------
    >>> import torch
    >>> from acil.bench.training.augment import Augmentation
    >>> images = torch.full((2, 3, 32, 32), 255, dtype=torch.uint8)
    >>> augment = Augmentation(("crop", "flip"))
    >>> augment(images, torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 32, 32])
    """

    def __init__(self, names: Sequence[str], size: int | None = None) -> None:
        check_names(names)
        self.names = tuple(names)
        self.size = size

    def __call__(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        """Return changed images, (n, c, h, w), as float32 between 0 and 1.

        The generator, on the device of the images, is the only source of randomness.
        """
        for name in self.names:
            if name == "resizedcrop":
                n, _, height, width = pixels.shape
                boxes = random_boxes(n, height, width, generator)
                pixels = operations.resized_crop(pixels, *boxes, size=self.size or height)
            else:
                pixels = _STEPS[name](pixels, generator)
        return pixels.float().div_(255)


def _crop(pixels: Tensor, generator: torch.Generator) -> Tensor:
    n, places = len(pixels), 2 * CROP_PADDING + 1
    top = torch.randint(places, (n,), generator=generator, device=pixels.device)
    left = torch.randint(places, (n,), generator=generator, device=pixels.device)
    return operations.shifted_crop(pixels, top, left, CROP_PADDING)


def _flip(pixels: Tensor, generator: torch.Generator) -> Tensor:
    chosen = torch.rand(len(pixels), generator=generator, device=pixels.device) < 0.5
    return torch.where(chosen[:, None, None, None], pixels.flip(3), pixels)


def _jitter(pixels: Tensor, generator: torch.Generator) -> Tensor:
    uniform = torch.rand(len(pixels), generator=generator, device=pixels.device)
    return operations.adjust_brightness(pixels, 1 + JITTER_BRIGHTNESS * (2 * uniform - 1))


def random_boxes(
    n: int, height: int, width: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw top, left, height and width of n boxes as torchvision's RandomResizedCrop does.

    The area is uniform in 8–100 % of the image's, the logarithm of the aspect ratio in log 3/4 … log
    4/3. Of ten attempts the first that fits counts; without one, the largest central box of an
    allowed ratio.
    """
    device = generator.device
    draw = torch.rand(4, n, ATTEMPTS, generator=generator, device=device, dtype=torch.float64)
    area = height * width * (AREA[0] + (AREA[1] - AREA[0]) * draw[0])
    low, high = (math.log(ratio) for ratio in ASPECT)
    aspect = (low + (high - low) * draw[1]).exp()
    widths = (area * aspect).sqrt().round()
    heights = (area / aspect).sqrt().round()
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    first = fits.to(torch.uint8).argmax(1, keepdim=True)
    box_height, box_width, u, v = (
        values.gather(1, first).squeeze(1) for values in (heights, widths, draw[2], draw[3])
    )
    none = ~fits.any(1)
    central_height = min(height, round(width / ASPECT[0]))
    central_width = min(width, round(height * ASPECT[1]))
    box_height = torch.where(none, central_height, box_height)
    box_width = torch.where(none, central_width, box_width)
    top = torch.where(none, (height - central_height) // 2, (u * (height - box_height + 1)).floor())
    left = torch.where(none, (width - central_width) // 2, (v * (width - box_width + 1)).floor())
    return top.long(), left.long(), box_height.long(), box_width.long()


class Operation(NamedTuple):
    """One operation of TrivialAugment."""

    name: str
    #: (images, magnitudes) → images, with one magnitude an image
    apply: Callable[[Tensor, Tensor], Tensor]
    magnitudes: Tensor
    #: Whether half of the draws use the negative magnitude.
    signed: bool


def _range(first: float, last: float) -> Tensor:
    return torch.linspace(first, last, BINS, dtype=torch.float32).double()


def _space(smooth: bool) -> tuple[Operation, ...]:
    """Return the operations; ``smooth`` interpolates where images are sheared or turned."""
    none, part, far = _range(0.0, 0.0), _range(0.0, 0.99), _range(0.0, 32.0)
    # 8 down to 2
    bits = 8 - (torch.arange(BINS) / ((BINS - 1) / 6)).round().double()
    do = operations
    return (
        Operation("identity", lambda x, _: x, none, False),
        Operation("shear_x", lambda x, m: do.affine(x, [1, m, 0, 0, 1, 0], smooth), part, True),
        Operation("shear_y", lambda x, m: do.affine(x, [1, 0, 0, m, 1, 0], smooth), part, True),
        # By whole pixels
        Operation("translate_x", lambda x, m: do.affine(x, [1, 0, -m.trunc(), 0, 1, 0]), far, True),
        Operation("translate_y", lambda x, m: do.affine(x, [1, 0, 0, 0, 1, -m.trunc()]), far, True),
        Operation("rotate", partial(do.rotate, smooth=smooth), _range(0.0, 135.0), True),
        Operation("brightness", lambda x, m: do.adjust_brightness(x, 1 + m), part, True),
        Operation("colour", lambda x, m: do.adjust_saturation(x, 1 + m), part, True),
        Operation("contrast", lambda x, m: do.adjust_contrast(x, 1 + m), part, True),
        Operation("sharpness", lambda x, m: do.adjust_sharpness(x, 1 + m), part, True),
        Operation("posterize", do.posterize, bits, False),
        Operation("solarize", do.solarize, _range(255.0, 0.0), False),
        Operation("autocontrast", lambda x, _: do.autocontrast(x), none, False),
        Operation("equalize", lambda x, _: do.equalize(x), none, False),
    )


SPACE, SMOOTH_SPACE = _space(smooth=False), _space(smooth=True)


def trivial_augment(
    images: Tensor, generator: torch.Generator, space: tuple[Operation, ...] = SPACE
) -> Tensor:
    """Draw an operation, a strength and a sign for each image, and apply them."""
    n, device = len(images), images.device
    choices = torch.randint(len(space), (n,), generator=generator, device=device)
    bins = torch.randint(BINS, (n,), generator=generator, device=device)
    negative = torch.randint(2, (n,), generator=generator, device=device).bool()
    table = torch.stack([operation.magnitudes for operation in space]).to(device)
    signed = torch.tensor([operation.signed for operation in space], device=device)
    magnitudes = table[choices, bins]
    magnitudes = torch.where(negative & signed[choices], -magnitudes, magnitudes)
    result = torch.empty_like(images)
    # Sorting makes the groups contiguous and costs one transfer of 14 counts, not one for each group.
    order = choices.argsort(stable=True)
    counts = torch.bincount(choices, minlength=len(space)).tolist()
    for operation, members in zip(space, torch.split(order, counts), strict=True):
        if len(members):
            result[members] = operation.apply(images[members], magnitudes[members])
    return result


_STEPS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "crop": _crop,
    "flip": _flip,
    "jitter": _jitter,
    "trivialaugment": trivial_augment,
    "trivialaugment-bilinear": partial(trivial_augment, space=SMOOTH_SPACE),
}
#: Every step that an :class:`Augmentation` knows.
NAMES = (*_STEPS, "resizedcrop")


def check_names(names: Sequence[str]) -> None:
    """Raise InputError unless each name is a known step and none is given twice."""
    unknown = [name for name in names if name not in NAMES]
    if isinstance(names, str) or unknown or len(set(names)) != len(names):
        raise InputError(
            f"Augmentation takes a tuple of different steps out of {', '.join(NAMES)}. "
            f"Got {names!r} instead."
        )
