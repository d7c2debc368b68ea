"""Images that strangers send: looked at before anything decodes them, then decoded fully."""

from __future__ import annotations

import io

from PIL import Image, UnidentifiedImageError
from torch import Tensor

from acil.app.containers import UPLOAD_FORMATS, second_type
from acil.errors import InputError
from acil.vision.decode import decode
from acil.vision.embedder import Embedder
from acil.vision.listing import check_class_name


class TooLargeError(InputError):
    """An upload has more bytes, images or pixels than the server takes."""


def check_image(content: bytes, max_pixels: int) -> None:
    """Raise unless this is one image, of a format for uploads, and small enough to decode.

    The content decides; names and types that a client gives are not looked at.

    Parameters
    ----------
    content : bytes
    max_pixels : int
    """
    if not content:
        raise InputError("It is empty. Send the file again.")
    try:
        with Image.open(io.BytesIO(content), formats=UPLOAD_FORMATS) as image:
            kind, (width, height) = str(image.format), image.size
    except UnidentifiedImageError:
        raise InputError(
            f"It is not an image of a format that is taken here. Send {', '.join(UPLOAD_FORMATS)}."
        ) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise TooLargeError(f"It has too many pixels ({error}). Make it smaller.") from None
    # Decoders of damaged files fail in too many ways to list: struct.error, SyntaxError, zlib.error …
    except Exception as error:
        raise InputError(f"It is damaged ({type(error).__name__}). Send another copy.") from None
    if width * height > max_pixels:
        raise TooLargeError(
            f"It has {width} x {height} pixels, more than {max_pixels:,}. Make it smaller."
        )
    kind = "JPEG" if kind == "MPO" else kind
    other = second_type(content, kind)
    if other is not None:
        raise InputError(f"It is a {kind} image and also {other}. Save it again as an image.")


def read_pixels(content: bytes, embedder: Embedder, max_pixels: int) -> Tensor:
    """Return the pixels of an upload as a network takes them, or raise.

    Parameters
    ----------
    content : bytes
    embedder : Embedder
    max_pixels : int
    """
    check_image(content, max_pixels)
    return decode(content, embedder.preprocessing.size, embedder.mode, embedder.crop)


def check_name(name: str) -> str:
    """Return the name of a class in an address, or say why it cannot be one."""
    if "\N{REPLACEMENT CHARACTER}" in name:
        raise InputError("The class name is not UTF-8. Encode it as such.")
    return check_class_name(name)
