"""Decoding: every odd image is handled, or refused by name."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from acil.encoders.images import decode as module
from acil.encoders.images.decode import decode
from acil.errors import InputError

RED, GREEN, WHITE = (255, 0, 0), (0, 255, 0), (255, 255, 255)
#: Colours that a JPEG gives back, and levels that rounding may cost.
JPEG_TOLERANCE = 6


def colour_of(pixels: torch.Tensor) -> tuple[int, ...]:
    """Return the colour of an image that has only one."""
    values = pixels.flatten(1)
    assert bool((values == values[:, :1]).all())
    return tuple(values[:, 0].tolist())


def saved(path, image: Image.Image, **options):
    image.save(path, **options)
    return path


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def test_image_of_the_right_size_is_read_as_it_is(tmp_path):
    image = noise(8, 8)
    pixels = decode(saved(tmp_path / "a.png", image), 8)
    assert pixels.dtype == torch.uint8
    assert pixels.is_contiguous()
    assert torch.equal(pixels, torch.from_numpy(np.array(image)).permute(2, 0, 1))
    grey = decode(tmp_path / "a.png", 8, mode="L")
    assert torch.equal(grey[0], torch.from_numpy(np.array(image.convert("L"))))


@pytest.mark.parametrize("shape", [(20, 10), (10, 20)])
def test_shorter_side_is_resized_and_the_centre_cut_out(tmp_path, shape):
    image = Image.new("RGB", shape, RED)
    image.paste(GREEN, (5, 0, 15, 10) if shape == (20, 10) else (0, 5, 10, 15))
    path = saved(tmp_path / "a.png", image)
    assert colour_of(decode(path, 10)) == GREEN
    assert colour_of(decode(path, 5)[:, 1:-1, 1:-1]) == GREEN
    assert decode(path, 40).shape == (3, 40, 40)


def test_imagenet_protocol_resizes_to_256_and_cuts_224(tmp_path):
    image = noise(300, 400)
    expected = image.resize((256, 341), Image.Resampling.BILINEAR).crop((16, 58, 240, 282))
    pixels = decode(saved(tmp_path / "a.png", image), 224, crop=0.875)
    assert torch.equal(pixels, torch.from_numpy(np.array(expected)).permute(2, 0, 1))
    stored = decode(tmp_path / "a.png", 256)
    assert torch.equal(stored[:, 16:240, 16:240], pixels)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_camera_orientation_is_applied(tmp_path, orientation):
    upright = np.zeros((16, 16, 3), np.uint8)
    upright[:8, :8], upright[:8, 8:], upright[8:, :8] = 250, 150, 70
    # What the camera must have stored so that its note turns it upright
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright),
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(np.ascontiguousarray(stored))
    pixels = decode(saved(tmp_path / "a.jpg", image, exif=exif, quality=95), 16)
    difference = pixels.permute(1, 2, 0).numpy().astype(int) - upright
    assert abs(difference).max() <= JPEG_TOLERANCE


@pytest.mark.parametrize(
    ("mode", "colour", "options", "expected"),
    [
        ("L", 77, {}, (77, 77, 77)),
        ("1", 1, {}, WHITE),
        ("P", 1, {}, (10, 20, 30)),
        # What is transparent is laid on white.
        ("P", 1, {"transparency": 1}, WHITE),
        ("P", 1, {"transparency": bytes([255, 0])}, WHITE),
        ("RGB", RED, {"transparency": RED}, WHITE),
        ("RGBA", (255, 0, 0, 0), {}, WHITE),
        ("RGBA", (255, 0, 0, 255), {}, RED),
        ("RGBA", (0, 0, 0, 51), {}, (204, 204, 204)),
        ("LA", (0, 0), {}, WHITE),
        ("LA", (9, 255), {}, (9, 9, 9)),
    ],
)
def test_every_kind_of_pixel_becomes_a_colour(tmp_path, mode, colour, options, expected):
    image = Image.new(mode, (4, 4), colour)
    if mode == "P":
        image.putpalette([0, 0, 0, 10, 20, 30])
    assert colour_of(decode(saved(tmp_path / "a.png", image, **options), 4)) == expected


def test_cmyk(tmp_path):
    image = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    pixels = decode(saved(tmp_path / "a.jpg", image, quality=95), 8)
    assert max(abs(int(a) - b) for a, b in zip(pixels[:, 4, 4], RED, strict=True)) <= JPEG_TOLERANCE


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
def test_16_bit_greyscale_is_scaled(tmp_path, name):
    values = np.array([[0, 257], [32896, 65535]], dtype=np.uint16)
    pixels = decode(saved(tmp_path / name, Image.fromarray(values)), 2)
    assert pixels[0].tolist() == [[0, 1], [128, 255]]
    assert torch.equal(pixels[0], pixels[2])


def test_transparent_grey_of_16_bits_is_laid_on_white(tmp_path):
    values = np.array([[0, 257], [32896, 65535]], dtype=np.uint16)
    pixels = decode(saved(tmp_path / "a.png", Image.fromarray(values), transparency=257), 2)
    assert pixels[0].tolist() == [[0, 255], [128, 255]]


@pytest.mark.parametrize("channels", ["RGB", "L"])
@pytest.mark.parametrize("mode", ["1", "L", "LA", "RGB", "RGBA", "P", "I;16"])
def test_strips_make_no_difference(monkeypatch, mode, channels):
    values = np.random.default_rng(0).integers(0, 2**16, (40, 30, 4))
    if mode == "I;16":
        image = Image.fromarray(values[..., 0].astype(np.uint16))
    else:
        image = Image.fromarray((values // 257).astype(np.uint8)).convert(mode)
    image.info["transparency"] = {"P": bytes(range(256)), "RGB": tuple(values[0, 0, :3] // 257)}.get(
        mode, 7
    )
    whole = decode(image, 16, channels)
    monkeypatch.setattr(module, "_STRIP", 100)
    assert torch.equal(decode(image, 16, channels), whole)


def peak() -> int:
    """Return the most memory that this process has had, and count it anew from now on."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status).group(1))


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells the most memory.")
@pytest.mark.parametrize(("mode", "limit"), [("L", 2.5), ("LA", 6.5), ("RGB", 5.5), ("I;16", 4.5)])
def test_large_images_take_little_more_memory_than_their_pixels(tmp_path, mode, limit):
    """In bytes a pixel; Pillow has one of each grey pixel, two of one of 16 bits, and four of others."""
    side = 4000
    content = saved(tmp_path / "a.png", Image.new(mode, (side, side))).read_bytes()
    decode(content, 8)
    peak()
    before = peak()
    decode(content, 8)
    assert (peak() - before) / side**2 < limit


def test_image_without_pixels_is_refused():
    with pytest.raises(InputError, match="empty"):
        decode(Image.new("RGB", (0, 3)), 2)


def test_32_bit_values_of_16_bit_range_are_scaled_and_others_refused(tmp_path):
    values = np.array([[0, 65535]] * 2, dtype=np.int32)
    path = saved(tmp_path / "a.tif", Image.fromarray(values))
    assert decode(path, 2)[0, 0].tolist() == [0, 255]
    saved(path, Image.fromarray(values + 1))
    with pytest.raises(InputError, match="16 bits"):
        decode(path, 2)
    saved(path, Image.fromarray(np.zeros((2, 2), np.float32)))
    with pytest.raises(InputError, match="floating-point"):
        decode(path, 2)


@pytest.mark.parametrize(("width", "size"), [(1, 32), (1, 1), (60_000, 224)])
def test_tiny_and_very_long_images_do_not_fill_the_memory(tmp_path, width, size):
    path = saved(tmp_path / "a.png", Image.new("RGB", (width, 1), RED))
    assert colour_of(decode(path, size)) == RED


@pytest.mark.parametrize("name", ["a.gif", "a.png", "a.webp", "a.tif"])
def test_first_frame_of_an_animation_counts(tmp_path, name):
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, GREEN, WHITE)]
    options = {"lossless": True} if name == "a.webp" else {}
    path = saved(tmp_path / name, frames[0], save_all=True, append_images=frames[1:], **options)
    assert colour_of(decode(path, 8)) == RED


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.gif", "a.bmp", "a.tif", "a.webp", "a.ppm"])
def test_truncated_files_are_refused_by_name(tmp_path, name):
    path = saved(tmp_path / name, noise(64, 64))
    content = path.read_bytes()
    for kept in (1, 10, 60, len(content) // 2):
        path.write_bytes(content[:kept])
        with pytest.raises(InputError, match=f"Cannot read .*{name}"):
            decode(path, 32)


@pytest.mark.parametrize("name", ["a.png", "a.gif", "a.tif", "a.webp"])
def test_damaged_bytes_give_pixels_or_one_kind_of_error(tmp_path, name):
    path = saved(tmp_path / name, noise(16, 16))
    content, random = path.read_bytes(), np.random.default_rng(0)
    for _ in range(60):
        damaged = bytearray(content)
        for place in random.integers(0, min(len(content), 400), 3):
            damaged[place] = random.integers(0, 256)
        path.write_bytes(damaged)
        said = name
        try:
            assert decode(path, 8).shape == (3, 8, 8)
        except InputError as error:
            said = str(error)
        assert name in said


def test_own_bound_holds_where_pillow_has_none(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    monkeypatch.setattr(module, "MAX_PIXELS", 63)
    with pytest.raises(InputError, match="8 x 8 pixels"):
        decode(saved(tmp_path / "a.png", noise(8, 8)), 8)


@pytest.mark.parametrize("values", [{"size": 0}, {"crop": 0.0}, {"crop": 1.5}, {"mode": "CMYK"}])
def test_arguments_that_make_no_sense_are_refused(tmp_path, values):
    with pytest.raises(InputError):
        decode(saved(tmp_path / "a.png", noise(8, 8)), **{"size": 8, **values})


@pytest.mark.parametrize("side", [16, 17, 18])
def test_small_image_is_not_enlarged_in_order_to_be_cropped(tmp_path, side):
    """size / crop is 18: an image of 16 is taken whole, one of 17 loses a pixel, one of 18 two."""
    image = noise(side, side)
    pixels = decode(saved(tmp_path / "a.png", image), 16, crop=16 / 18)
    expected = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    start = round((side - 16) / 2)
    assert torch.equal(pixels, expected[:, start : start + 16, start : start + 16])
