"""Random changes of training images, batched and on the device that holds them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from acil.errors import InputError
from acil.vision.geometry import mirror, resized_crop, shifted_crop
from acil.vision.operations import adjust_brightness
from acil.vision.trivialaugment import SMOOTH_SPACE, trivial_augment

#: Of RandomCrop in every CIFAR recipe.
CROP_PADDING = 4
#: Of ColorJitter in PODNet's and PyCIL's CIFAR recipes.
JITTER_BRIGHTNESS = 63 / 255
#: torchvision's defaults for RandomResizedCrop.
_AREA = (0.08, 1.0)
_ASPECT = (3 / 4, 4 / 3)
_ATTEMPTS = 10


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
    >>> from acil.vision.augment import Augmentation
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
        """Return changed images as float32 between 0 and 1.

        Parameters
        ----------
        pixels : Tensor of shape (n, c, h, w), uint8
        generator : torch.Generator
            On the device of the images; the only source of randomness.

        Returns
        -------
        Tensor of shape (n, c, h, w), float32
        """
        for name in self.names:
            if name == "resizedcrop":
                pixels = random_resized_crop(pixels, self.size or pixels.shape[2], generator)
            else:
                pixels = _STEPS[name](pixels, generator)
        return pixels.float().div_(255)


def random_crop(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each image by up to four pixels in both directions, filling with zeros."""
    n, places = len(pixels), 2 * CROP_PADDING + 1
    top = torch.randint(places, (n,), generator=generator, device=pixels.device)
    left = torch.randint(places, (n,), generator=generator, device=pixels.device)
    return shifted_crop(pixels, top, left, CROP_PADDING)


def random_flip(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Swap left and right in each image with probability one half."""
    chosen = torch.rand(len(pixels), generator=generator, device=pixels.device) < 0.5
    return mirror(pixels, chosen)


def random_brightness(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Multiply the brightness of each image by a factor between 1 - 63/255 and 1 + 63/255."""
    uniform = torch.rand(len(pixels), generator=generator, device=pixels.device)
    return adjust_brightness(pixels, 1 + JITTER_BRIGHTNESS * (2 * uniform - 1))


def random_resized_crop(pixels: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Cut a random box out of each image and resize it to size x size."""
    n, _, height, width = pixels.shape
    return resized_crop(pixels, *random_boxes(n, height, width, generator), size=size)


def random_boxes(
    n: int, height: int, width: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw top, left, height and width of n boxes as torchvision's RandomResizedCrop does.

    The area is uniform in 8–100 % of the image's, the logarithm of the aspect ratio in log 3/4 … log
    4/3. Of ten attempts the first that fits counts; without one, the largest central box of an
    allowed ratio.
    """
    device = generator.device
    draw = torch.rand(4, n, _ATTEMPTS, generator=generator, device=device, dtype=torch.float64)
    area = height * width * (_AREA[0] + (_AREA[1] - _AREA[0]) * draw[0])
    low, high = (math.log(ratio) for ratio in _ASPECT)
    aspect = (low + (high - low) * draw[1]).exp()
    widths = (area * aspect).sqrt().round()
    heights = (area / aspect).sqrt().round()
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    first = fits.to(torch.uint8).argmax(1, keepdim=True)
    box_height, box_width, u, v = (
        values.gather(1, first).squeeze(1) for values in (heights, widths, draw[2], draw[3])
    )
    none = ~fits.any(1)
    central_height, central_width = _central_box(height, width)
    box_height = torch.where(none, central_height, box_height)
    box_width = torch.where(none, central_width, box_width)
    top = torch.where(none, (height - central_height) // 2, (u * (height - box_height + 1)).floor())
    left = torch.where(none, (width - central_width) // 2, (v * (width - box_width + 1)).floor())
    return top.long(), left.long(), box_height.long(), box_width.long()


def _central_box(height: int, width: int) -> tuple[int, int]:
    """Return height and width of the largest box whose aspect ratio is allowed."""
    ratio = width / height
    if ratio < _ASPECT[0]:
        return round(width / _ASPECT[0]), width
    if ratio > _ASPECT[1]:
        return height, round(height * _ASPECT[1])
    return height, width


_STEPS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "crop": random_crop,
    "flip": random_flip,
    "jitter": random_brightness,
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
