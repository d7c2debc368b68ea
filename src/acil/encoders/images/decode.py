"""Image files to the input of a network: decoding into pixels, and their scale."""

from __future__ import annotations

import contextlib
import importlib
import io
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from acil.core.linalg import threads_for
from acil.errors import InputError, MissingExtraError
from acil.extras import install

try:
    from PIL import Image, ImageOps, UnidentifiedImageError
except ImportError:  # files of features are read without
    Image = None  # type: ignore[assignment]

#: What Pillow may open. Its other formats are rare, and one of them (EPS) starts another program.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000", "AVIF", "HEIF")
#: Where Pillow keeps those formats that it does not load by itself.
_PLUGINS = ("TiffImagePlugin", "WebPImagePlugin", "Jpeg2KImagePlugin", "AvifImagePlugin")
#: How files of the format HEIC begin, from byte 4 on.
_HEIC = tuple(b"ftyp" + brand for brand in (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1"))
#: Pixels of an image that is still decoded: 268 MB as RGB. Larger ones are taken for an attack.
MAX_PIXELS = 89_478_485
#: Pixels that are made plain at a time.
_STRIP = 2**18
#: Of longer images only the middle is resized: one of 1 x 100,000 pixels would fill the memory.
_MAX_ASPECT = 4
#: What EXIF calls how a camera was held, and the values by which width and height change places.
_ORIENTATION, _TURNED = 0x0112, (5, 6, 7, 8)
#: Left, top, right and bottom of a part of an image.
Box = tuple[float, float, float, float]
#: Path of an image file, its content, or the image itself.
#: What an image in memory is, beside an array.
PICTURES: tuple[type, ...] = () if Image is None else (Image.Image,)
if TYPE_CHECKING or Image is not None:
    Source = str | os.PathLike[str] | bytes | Image.Image | npt.NDArray[np.uint8]
else:
    Source = str | os.PathLike[str] | bytes | npt.NDArray[np.uint8]


def decode(source: Source, size: int, mode: Literal["RGB", "L"] = "RGB", crop: float = 1.0) -> Tensor:
    """Read an image file as a square of pixels: resize the shorter side, then cut out the centre.

    Returns a tensor of shape (3 or 1, size, size), uint8. A file that is missing, empty, damaged, too
    large, or of a kind whose range of values is unknown is an `InputError`.

    Parameters
    ----------
    source : str, path-like, bytes, PIL image or ndarray
        Path of a file, its content, or the image: an array of uint8 is (height, width) or (height,
        width, channels), with 3 channels (RGB) or 4 (RGBA).
    size : int
        Height and width of the result.
    mode : {"RGB", "L"}
        Colour or greyscale.
    crop : float, default=1
        Part of the shorter side that is kept: it is resized to ``size / crop``. ImageNet's protocol for
        224 pixels (resize to 256, cut out 224) is ``crop=0.875``. An image that is too small for that is
        not enlarged beyond ``size``: more of it is kept instead.

    Notes
    -----
    The orientation noted by a camera (EXIF) is applied. Transparent images are laid on white: what lies
    under full transparency is arbitrary. Of an animation the first frame counts. 16-bit greyscale is
    scaled to 8 bits, 65535 to 255. Colours are taken as sRGB: ICC profiles are not applied. Resizing is
    Pillow's bilinear filter, with antialiasing.
    """
    if Image is None:
        raise MissingExtraError(
            "Images need the package pillow, which is not installed. Install it with: "
            f"{install('images')}"
        )
    if size < 1 or not 0 < crop <= 1:
        raise InputError(f"size must be at least 1 and crop in (0, 1]. Got size={size}, crop={crop}.")
    if mode not in ("RGB", "L"):
        raise InputError(f"mode must be 'RGB' or 'L'. Got {mode!r}.")
    square = _converted(_square(_read(source, mode), size, max(size, round(size / crop))), mode)
    pixels = torch.from_numpy(np.array(square))
    with threads_for(pixels.numel()):
        return pixels.permute(2, 0, 1).contiguous() if mode == "RGB" else pixels.unsqueeze(0)


def decode_box(
    source: Source, size: int, choose: Callable[[int, int], Box], mode: Literal["RGB", "L"] = "RGB"
) -> Tensor:
    """Read an image file, and resize a part of it to a square of pixels, as training takes it.

    As `decode`, but ``choose(width, height)`` says which part: left, top, right and bottom in pixels of
    the upright image. A JPEG of which at least twice the pixels are there is decoded at a half, a
    quarter or an eighth of its size, as its format allows: that is faster.

    Examples
    --------
    >>> import numpy as np
    >>> image = np.zeros((30, 40, 3), dtype=np.uint8)
    >>> decode_box(image, 8, lambda width, height: (10, 0, width, height)).shape
    torch.Size([3, 8, 8])
    """
    box: Box = (0.0, 0.0, 0.0, 0.0)
    upright = (0, 0)

    def reduce(image: Image.Image) -> None:
        nonlocal box, upright
        turned = image.getexif().get(_ORIENTATION, 1) in _TURNED
        upright = (image.height, image.width) if turned else (image.width, image.height)
        box = choose(*upright)
        times = int(min(box[2] - box[0], box[3] - box[1])) // size
        if times > 1:
            image.draft(None, (image.width // times, image.height // times))

    image = _read(source, mode, reduce)
    across, down = image.width / upright[0], image.height / upright[1]
    part = (box[0] * across, box[1] * down, box[2] * across, box[3] * down)
    square = _converted(image.resize((size, size), Image.Resampling.BILINEAR, part), mode)
    pixels = torch.from_numpy(np.array(square))
    return pixels.permute(2, 0, 1).contiguous() if mode == "RGB" else pixels.unsqueeze(0)


def thumbnail(source: Source, size: int) -> bytes:
    """Return an image as a small JPEG for people: all of it, at most ``size`` pixels wide and high."""
    image = _read(source, "RGB")
    image.thumbnail((size, size))
    written = io.BytesIO()
    image.save(written, "JPEG", quality=80)
    return written.getvalue()


def _read(source: Source, mode: str, before: Callable[[Image.Image], None] | None = None) -> Image.Image:
    """Return an image upright and plain; ``before`` is called before its pixels are decoded."""
    name = ""
    if isinstance(source, str | os.PathLike):
        name = f" {os.fspath(source)}"
    elif isinstance(source, bytes):
        name = f" of {len(source):,} bytes"
    try:
        if isinstance(source, np.ndarray | Image.Image):
            image = _in_memory(source)
            if before is not None:
                before(image)
            return _plain(ImageOps.exif_transpose(image), mode)
        with Image.open(_opened(source), formats=_available()) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise InputError(f"it has {width} x {height} pixels, more than {MAX_PIXELS}")
            if before is not None:
                before(image)
            image.load()
            ImageOps.exif_transpose(image, in_place=True)
            return _plain(image, mode)
    except MemoryError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        cause = f"it has too many pixels ({error})"
    except UnidentifiedImageError:
        cause = f"it is not an image of a known format ({', '.join(_available())})"
        if not isinstance(source, np.ndarray | Image.Image) and _is_heic(source):
            cause = f"it is a HEIC image, which pillow-heif reads ({install('heic')})"
    except OSError as error:
        cause = error.strerror or f"it is truncated or damaged ({error})"
    except InputError as error:
        cause = str(error)
    # Decoders of damaged files fail in too many ways to list: struct.error, SyntaxError, zlib.error …
    except Exception as error:
        cause = f"it is damaged ({type(error).__name__}: {error})"
    raise InputError(f"Cannot read the image{name}: {cause}. Repair, replace or remove the file.")


def _in_memory(source: Image.Image | npt.NDArray[np.uint8]) -> Image.Image:
    if isinstance(source, Image.Image):
        if not all(source.size):
            raise InputError("it is empty")
        source.load()
        return source
    if source.dtype != np.uint8 or source.shape[2:] not in ((), (3,), (4,)) or not source.size:
        raise InputError(
            f"it is an array of {source.dtype} and shape {source.shape}, not of uint8 and (height, "
            "width), with 3 or 4 channels or none"
        )
    return Image.fromarray(source)


def _is_heic(source: str | os.PathLike[str] | bytes) -> bool:
    if isinstance(source, bytes):
        return source[4:12].startswith(_HEIC)
    with Path(source).open("rb") as file:
        return file.read(12)[4:].startswith(_HEIC)


def _opened(source: str | os.PathLike[str] | bytes) -> Path | io.BytesIO:
    """Return what Pillow may open, or say why it should not."""
    if isinstance(source, bytes):
        size = len(source)
        opened: Path | io.BytesIO = io.BytesIO(source)
    else:
        opened = Path(source)
        if opened.exists() and not opened.is_file():
            raise InputError("it is not a regular file")
        size = opened.stat().st_size
    if size == 0:
        raise InputError("it is empty")
    return opened


@cache
def _available() -> list[str]:
    """Return the formats that this build of Pillow has, and load no others."""
    Image.preinit()
    for plugin in _PLUGINS:
        with contextlib.suppress(ImportError):
            importlib.import_module(f"PIL.{plugin}")
    with contextlib.suppress(ImportError):
        importlib.import_module("pillow_heif").register_heif_opener()
    return [name for name in FORMATS if name in Image.OPEN]


def _plain(image: Image.Image, mode: str) -> Image.Image:
    """Return an image without palette, transparency or more than 8 bits; grey ones stay grey."""
    if image.mode == "F":
        raise InputError("its pixels are floating-point numbers of unknown range")
    wide = image.mode == "I" or image.mode.startswith("I;")
    clear = image.mode in ("PA", "LA", "La", "RGBA", "RGBa") or "transparency" in image.info
    if wide or image.mode in ("1", "L", "LA", "La"):
        mode = "L"
    if not wide and not clear:
        return _converted(image, mode)
    # In strips: what this takes is several times as large as the image.
    plain = Image.new(mode, image.size)
    rows = max(1, _STRIP // image.width)
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(top + rows, image.height)))
        strip = _eight_bits(strip) if wide else _on_white(strip)
        plain.paste(_converted(strip, mode), (0, top))
    return plain


def _on_white(image: Image.Image) -> Image.Image:
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, _converted(image, "RGBA"))


def _converted(image: Image.Image, mode: str) -> Image.Image:
    """Convert without the copy that Pillow makes of an image that has this mode already."""
    return image if image.mode == mode else image.convert(mode)


def _eight_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image)
    if values.min() < 0 or values.max() > 65535:
        raise InputError(f"its pixels go from {values.min()} to {values.max()}: more than 16 bits")
    # 65535 = 255 * 257
    rounded = np.add(values, 128, dtype=np.int32)
    rounded //= 257
    if "transparency" in image.info:
        # One grey value, laid on white
        rounded[values == image.info["transparency"]] = 255
    return Image.fromarray(rounded.astype(np.uint8))


def _square(image: Image.Image, size: int, shorter: int) -> Image.Image:
    width, height = image.size
    short = min(width, height)
    # Do not enlarge what is cut off again.
    shorter = max(size, min(shorter, short))
    if max(width, height) > _MAX_ASPECT * short:
        image = _centre(image, min(width, _MAX_ASPECT * short), min(height, _MAX_ASPECT * short))
        width, height = image.size
    # The longer side is cut off, not rounded, as torchvision does.
    scaled = (max(shorter, width * shorter // short), max(shorter, height * shorter // short))
    if scaled != image.size:
        image = image.resize(scaled, Image.Resampling.BILINEAR)
    return _centre(image, size, size)


def _centre(image: Image.Image, width: int, height: int) -> Image.Image:
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return image.crop((left, top, left + width, top + height))


@dataclass(frozen=True)
class Preprocessing:
    """How pixels become the input of a network.

    Examples
    --------
    >>> Preprocessing.from_dict({"mean": [0.5], "std": [0.25], "size": 8})
    Preprocessing(mean=(0.5,), std=(0.25,), size=8)
    """

    #: Of each channel, for pixels from 0 to 1.
    mean: tuple[float, ...]
    std: tuple[float, ...]
    #: Height and width of an image in pixels.
    size: int

    def __post_init__(self) -> None:
        finite = all(map(math.isfinite, self.mean)) and all(0 < s < math.inf for s in self.std)
        if not self.mean or len(self.mean) != len(self.std) or not finite:
            raise InputError(
                "A preprocessing needs a finite mean and a positive std for each channel. "
                f"Got mean={self.mean} and std={self.std}."
            )
        if self.size < 1:
            raise InputError(f"The size of an image must be at least 1 pixel. Got {self.size}.")

    def to_dict(self) -> dict[str, Any]:
        """Return the values as JSON has them."""
        return {"mean": list(self.mean), "std": list(self.std), "size": self.size}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocessing:
        """Make a preprocessing of what `to_dict` returned."""
        try:
            mean, std = (tuple(float(v) for v in values[key]) for key in ("mean", "std"))
            return cls(mean, std, int(values["size"]))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(
                f"A preprocessing has the entries mean, std and size. Got {values!r} ({error})."
            ) from None


def normalise(x: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Turn pixels into what a network was trained on: zero mean and unit deviation per channel.

    ``x`` has the shape (n, channels, height, width), uint8 or floating point from 0 to 1, on any device,
    and is not changed. The result is float32, of the same shape and memory format. A uint8 image and the
    same image divided by 255 give the same bits.

    Examples
    --------
    >>> import torch
    >>> pixels = torch.tensor([0, 255], dtype=torch.uint8).reshape(1, 1, 1, 2)
    >>> normalise(pixels, Preprocessing(mean=(0.5,), std=(0.25,), size=2)).flatten()
    tensor([-2.,  2.])
    """
    channels = len(preprocessing.mean)
    if x.ndim != 4 or x.shape[1] != channels:
        raise InputError(
            f"This preprocessing takes images of shape (n, {channels}, height, width). "
            f"Got {tuple(x.shape)}. Use images with {channels} channel(s)."
        )
    if x.dtype != torch.uint8 and not x.is_floating_point():
        raise InputError(f"Pixels must be uint8, or floating point from 0 to 1. Got {x.dtype}.")
    mean = torch.tensor(preprocessing.mean, dtype=torch.float32, device=x.device)
    std = torch.tensor(preprocessing.std, dtype=torch.float32, device=x.device)
    unit = x.to(torch.float32).div_(255) if x.dtype == torch.uint8 else x.to(torch.float32)
    return unit.sub(mean.reshape(-1, 1, 1)).div_(std.reshape(-1, 1, 1))


def centre(pixels: Tensor, size: int) -> Tensor:
    """Return the middle square of images (…, height, width), a view; smaller ones as they are."""
    top, left = (max(0, round((side - size) / 2)) for side in pixels.shape[-2:])
    return pixels[..., top : top + size, left : left + size]


def to_pixels(normalised: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Return the nearest 8-bit images of normalised ones.

    Examples
    --------
    >>> import torch
    >>> preprocessing = Preprocessing(mean=(0.5,), std=(0.25,), size=1)
    >>> to_pixels(torch.tensor([-3.0, 0.0, 2.0]).reshape(3, 1, 1, 1), preprocessing).flatten()
    tensor([  0, 128, 255], dtype=torch.uint8)
    """
    mean = torch.tensor(preprocessing.mean, device=normalised.device).reshape(-1, 1, 1)
    std = torch.tensor(preprocessing.std, device=normalised.device).reshape(-1, 1, 1)
    return ((normalised * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)
