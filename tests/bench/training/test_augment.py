"""Augmentation against Pillow, image by image, and its determinism."""

import math
import random

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from acil.bench.training import operations
from acil.bench.training.augment import (
    BINS,
    CROP_PADDING,
    JITTER_BRIGHTNESS,
    NAMES,
    SMOOTH_SPACE,
    SPACE,
    Augmentation,
    random_boxes,
    trivial_augment,
)
from acil.errors import InputError


def photographs(n=6, height=32, width=32, channels=3, seed=0):
    """Smooth images, noise, few levels, a narrow range, a flat channel: what histograms care about."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, channels, 5, 5, generator=generator) * 255
    images = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic").clamp(0, 255)
    images = images.to(torch.uint8)
    images[1] = torch.randint(256, images.shape[1:], generator=generator, dtype=torch.uint8)
    images[2] = images[2] // 64 * 64
    images[3] = 90 + images[3] // 8
    images[4, 0] = 17
    images[5, :, :, : width // 2] = 255
    return images


def to_pillow(image):
    array = image.permute(1, 2, 0).numpy()
    return Image.fromarray(array if array.shape[2] == 3 else array[..., 0])


def from_pillow(picture):
    array = np.array(picture)
    return torch.from_numpy(array[..., None] if array.ndim == 2 else array).permute(2, 0, 1)


def geometric(resampling):
    def transform(picture, *matrix):
        return picture.transform(picture.size, Image.Transform.AFFINE, matrix, resampling)

    return {
        "shear_x": lambda picture, m: transform(picture, 1, m, 0, 0, 1, 0),
        "shear_y": lambda picture, m: transform(picture, 1, 0, 0, m, 1, 0),
        "translate_x": lambda picture, m: transform(picture, 1, 0, -int(m), 0, 1, 0),
        "translate_y": lambda picture, m: transform(picture, 1, 0, 0, 0, 1, -int(m)),
        "rotate": lambda picture, m: picture.rotate(m, resampling),
    }


REFERENCES = {
    "identity": lambda picture, m: picture,
    **geometric(Image.Resampling.NEAREST),
    "brightness": lambda picture, m: ImageEnhance.Brightness(picture).enhance(1 + m),
    "colour": lambda picture, m: ImageEnhance.Color(picture).enhance(1 + m),
    "contrast": lambda picture, m: ImageEnhance.Contrast(picture).enhance(1 + m),
    "sharpness": lambda picture, m: ImageEnhance.Sharpness(picture).enhance(1 + m),
    "posterize": lambda picture, m: ImageOps.posterize(picture, int(m)),
    "solarize": lambda picture, m: ImageOps.solarize(picture, m),
    "autocontrast": lambda picture, m: ImageOps.autocontrast(picture),
    "equalize": lambda picture, m: ImageOps.equalize(picture),
}
SMOOTH_REFERENCES = geometric(Image.Resampling.BILINEAR)
COLOUR = [(3, 32, 32), (3, 20, 33)]
SHAPES = [*COLOUR, (1, 32, 32)]


def test_space_is_that_of_trivial_augment_wide():
    by_name = {operation.name: operation for operation in SPACE}
    assert list(by_name) == list(REFERENCES)
    assert (len(SPACE), BINS) == (14, 31)
    largest = {"shear_x": 0.99, "translate_y": 32.0, "rotate": 135.0, "sharpness": 0.99}
    for name, value in largest.items():
        magnitudes = by_name[name].magnitudes
        assert magnitudes[0] == 0
        torch.testing.assert_close(magnitudes[-1].item(), value, rtol=1e-6, atol=0)
        assert by_name[name].signed
    bits = by_name["posterize"].magnitudes.tolist()
    assert bits == [8 - round(i / 5) for i in range(31)]  # ties to even, as torch rounds
    assert by_name["solarize"].magnitudes[[0, -1]].tolist() == [255, 0]
    signed = {operation.name for operation in SPACE if operation.signed}
    assert not signed & {"identity", "posterize", "solarize", "autocontrast", "equalize"}


@pytest.mark.parametrize(
    ("space", "references", "name", "shape"),
    [(SPACE, REFERENCES, name, shape) for name in REFERENCES for shape in SHAPES]
    + [(SMOOTH_SPACE, SMOOTH_REFERENCES, name, shape) for name in SMOOTH_REFERENCES for shape in COLOUR],
)
def test_operation_equals_pillow_at_every_magnitude_and_sign(space, references, name, shape):
    (operation,) = (o for o in space if o.name == name)
    magnitudes = operation.magnitudes.unique()
    if operation.signed:
        magnitudes = torch.cat([magnitudes, -magnitudes])
    channels, height, width = shape
    images = photographs(channels=channels, height=height, width=width)
    for image in images:
        batch = image.expand(len(magnitudes), -1, -1, -1)
        ours = operation.apply(batch, magnitudes)
        picture = to_pillow(image)
        expected = [from_pillow(references[name](picture, m)) for m in magnitudes.tolist()]
        assert ours.dtype == torch.uint8
        difference = (ours.int() - torch.stack(expected).int()).abs()
        if (space, name) == (SMOOTH_SPACE, "rotate"):
            # At 45 and 135 degrees the last bit of a sum decides between two levels.
            assert difference.max() <= 1
            assert difference.float().mean() < 1e-4
        else:
            assert difference.max() == 0


def test_each_image_gets_its_own_operation():
    images = photographs()[:1].expand(200, -1, -1, -1)
    ours = trivial_augment(images, torch.Generator().manual_seed(0))
    possible = torch.cat(
        [
            operation.apply(images[:BINS], sign * operation.magnitudes)
            for operation in SPACE
            for sign in ((1, -1) if operation.signed else (1,))
        ]
    ).flatten(1)
    assert all((possible == image.flatten()).all(1).any() for image in ours)
    assert len(ours.unique(dim=0)) > 50


def test_operations_leave_their_input_alone():
    images = photographs()
    before = images.clone()
    for operation in SPACE:
        operation.apply(images, operation.magnitudes[: len(images)])
    trivial_augment(images, torch.Generator().manual_seed(0))
    Augmentation(("crop", "flip", "jitter", "trivialaugment"))(images, torch.Generator().manual_seed(0))
    assert torch.equal(images, before)


def test_operations_are_drawn_evenly_with_both_signs():
    n = 14 * 31 * 20
    images = torch.zeros(n, 1, 1, 67, dtype=torch.uint8)
    images[..., 33] = 255  # only a translation along x moves this dot, and shows by how much
    ours = trivial_augment(images, torch.Generator().manual_seed(0))[:, 0, 0]
    moves = [(ours.argmax(1) == 33 + move).sum().item() for move in range(-32, 33) if move]
    expected = n / 14 / 31 / 2
    # 31 strengths up to 32 leave out two numbers of pixels, on both sides alike.
    assert moves.count(0) == 4
    assert all(0.2 * expected < count < 2.5 * expected for count in moves if count)
    assert 0.8 < sum(moves[:32]) / sum(moves[32:]) < 1.25


def test_shifted_crop_equals_pillow_crop_of_padded_image():
    images = photographs()
    top = torch.tensor([0, 8, 4, 1, 7, 3])
    left = torch.tensor([8, 0, 4, 6, 2, 3])
    ours = operations.shifted_crop(images, top, left, CROP_PADDING)
    for image, y, x, result in zip(images, top.tolist(), left.tolist(), ours, strict=True):
        padded = ImageOps.expand(to_pillow(image), CROP_PADDING, fill=0)
        assert torch.equal(result, from_pillow(padded.crop((x, y, x + 32, y + 32))))


def test_crop_uses_every_offset():
    images = torch.zeros(3000, 1, 9, 9, dtype=torch.uint8)
    images[:, :, 4, 4] = 255
    ours = Augmentation(("crop",))(images, torch.Generator().manual_seed(0))
    assert ours.flatten(1).sum(1).eq(1).all()
    assert ours.sum(0).gt(0).all()


def test_flip_mirrors_half_of_the_images():
    images = photographs()[:1].expand(400, -1, -1, -1)
    ours = Augmentation(("flip",))(images, torch.Generator().manual_seed(0))
    mirrored = from_pillow(ImageOps.mirror(to_pillow(images[0]))) / 255
    flipped = (ours == mirrored).flatten(1).all(1)
    assert torch.equal(ours[~flipped], images[~flipped] / 255)
    assert 150 < flipped.sum() < 250


def test_jitter_stays_within_its_range():
    images = torch.full((2000, 3, 2, 2), 100, dtype=torch.uint8)
    ours = Augmentation(("jitter",))(images, torch.Generator().manual_seed(0))[:, 0, 0, 0] * 255
    assert abs(ours.min().item() - 100 * (1 - JITTER_BRIGHTNESS)) < 1.1
    assert abs(ours.max().item() - 100 * (1 + JITTER_BRIGHTNESS)) < 1.1
    assert abs(ours.mean().item() - 99.5) < 1  # half a level below 100, because levels are truncated


@pytest.mark.parametrize("size", [16, 24, 64])
def test_resized_crop_equals_pillow_but_for_ties(size):
    images = photographs(height=40, width=48)
    boxes = torch.tensor(
        [[0, 0, 40, 48], [3, 7, 20, 11], [39, 47, 1, 1], [10, 0, 30, 40], [0, 8, 8, 40], [5, 5, 24, 24]]
    )
    ours = operations.resized_crop(images, *boxes.unbind(1), size=size)
    assert ours.shape == (6, 3, size, size)
    for image, (top, left, height, width), result in zip(images, boxes.tolist(), ours, strict=True):
        crop = to_pillow(image).crop((left, top, left + width, top + height))
        expected = from_pillow(crop.resize((size, size), Image.Resampling.BILINEAR))
        difference = (result.int() - expected.int()).abs()
        # One level for each of the two passes; ties are common where 20 pixels become 16.
        assert difference.max() <= 2
        assert difference.float().mean() < 0.3


def test_random_boxes_follow_torchvision():
    height, width = 60, 80
    top, left, box_height, box_width = random_boxes(
        20_000, height, width, torch.Generator().manual_seed(0)
    )
    assert min(top.min(), left.min()) >= 0
    assert (top + box_height).max() <= height
    assert (left + box_width).max() <= width
    share = (box_height * box_width / (height * width)).double()
    assert 0.07 < share.min() < 0.09
    assert share.max() <= 1.0
    ratio = box_width / box_height
    assert ratio.min() > 0.7
    assert ratio.max() < 1.4
    # The same rule drawn one at a time with Python's numbers.
    reference = random.Random(0)
    shares = []
    for _ in range(20_000):
        for _ in range(10):
            area = height * width * reference.uniform(0.08, 1)
            aspect = math.exp(reference.uniform(math.log(3 / 4), math.log(4 / 3)))
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                break
        else:
            w, h = width, height
        shares.append(w * h / (height * width))
    assert abs(share.mean().item() - sum(shares) / len(shares)) < 0.01


def test_boxes_of_extreme_images_fall_back_to_the_centre():
    top, left, height, width = random_boxes(50, 1, 100, torch.Generator().manual_seed(0))
    assert top.unique().tolist() == [0]
    assert height.unique().tolist() == width.unique().tolist() == [1]
    assert (left + width).max() <= 100


@pytest.mark.parametrize(
    "names",
    [
        (),
        ("crop", "flip"),
        ("crop", "flip", "jitter"),
        ("crop", "flip", "trivialaugment"),
        ("resizedcrop", "flip"),
    ],
)
def test_same_generator_state_gives_the_same_images(names):
    images = photographs()
    augment = Augmentation(names)
    first = augment(images, torch.Generator().manual_seed(3))
    torch.rand(7)  # the global generator has no part in it
    second = augment(images, torch.Generator().manual_seed(3))
    assert torch.equal(first, second)
    assert first.dtype == torch.float32
    assert first.shape == images.shape
    assert first.min() >= 0
    assert first.max() <= 1
    if names:
        assert not torch.equal(first, augment(images, torch.Generator().manual_seed(4)))
    else:
        assert torch.equal(first, images / 255)


def test_steps_are_applied_in_the_order_given_and_to_the_size_asked_for():
    images = photographs(height=40, width=48)
    ours, other = (
        Augmentation(names, size=24)(images, torch.Generator().manual_seed(0))
        for names in (("flip", "resizedcrop"), ("resizedcrop", "flip"))
    )
    assert ours.shape == other.shape == (6, 3, 24, 24)
    assert not torch.equal(ours, other)


@pytest.mark.parametrize("names", [("crop", "cutout"), "crop", ("flip", "flip")])
def test_unknown_or_repeated_step_is_an_error_that_names_the_known(names):
    with pytest.raises(InputError, match="trivialaugment") as caught:
        Augmentation(names)
    assert all(name in str(caught.value) for name in NAMES)
