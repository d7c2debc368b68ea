"""Images that strangers send: checked before anything decodes them, then decoded fully."""

from __future__ import annotations

import io
import re

from PIL import Image, UnidentifiedImageError
from torch import Tensor

from acil.errors import InputError
from acil.vision.decode import decode
from acil.vision.embedder import Embedder
from acil.vision.listing import check_class_name

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
#: A marker inside the coded data of a JPEG that is neither a stuffed byte, a restart nor a filler.
_JPEG_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_JPEG_END, _JPEG_SCAN = 0xD9, 0xDA
#: Markers without content: restarts, a second start, and one for private use.
_JPEG_BARE = frozenset((0x01, *range(0xD0, 0xD9)))
#: Anywhere behind the end of an image: archives are found from their end, scripts anywhere.
_FOREIGN_ANYWHERE = {
    b"pk\x03\x04": "ZIP",
    b"pk\x05\x06": "ZIP",
    b"%pdf-": "PDF",
    b"<script": "HTML",
    b"<html": "HTML",
    b"<!doctype": "HTML",
    b"<svg": "SVG",
    b"<?php": "PHP",
}
#: Directly behind the end of an image, or behind padding.
_FOREIGN_FIRST = {
    b"\x7felf": "ELF program",
    b"mz": "Windows program",
    b"rar!": "RAR",
    b"7z\xbc\xaf\x27\x1c": "7-Zip",
    b"\x1f\x8b": "gzip",
    b"\xca\xfe\xba\xbe": "Java class",
    b"#!": "script",
    b"gif8": "GIF",
    b"\x89png": "PNG",
    b"\xff\xd8\xff": "JPEG",
    b"riff": "RIFF",
}
#: PDF and HTML readers look for their signature in this many bytes at the start.
_HEAD = 1024
#: Cameras put further JPEGs (previews, depth) behind the first.
_SAME = {"JPEG": "JPEG", "PNG": "PNG", "GIF": "GIF", "WEBP": "RIFF"}


class TooLargeError(InputError):
    """An upload has more bytes, images or pixels than the server takes."""


def check_image(content: bytes, max_pixels: int) -> None:
    """Raise unless this is one image, of a format for uploads, and small enough to decode.

    The content decides; names and types that a client gives are not looked at.
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
    """Return the pixels of an upload as a network takes them, or raise."""
    check_image(content, max_pixels)
    return decode(content, embedder.preprocessing.size, embedder.mode, embedder.crop)


def check_name(name: str) -> str:
    """Return the class name of a URL, or raise if it cannot be one."""
    if "\N{REPLACEMENT CHARACTER}" in name:
        raise InputError("The class name is not UTF-8. Encode it as such.")
    return check_class_name(name)


def second_type(content: bytes, kind: str) -> str | None:
    """Return what else an image file claims to be, None if nothing.

    Parameters
    ----------
    content : bytes
    kind : str
        As Pillow names it: JPEG, PNG, GIF, WEBP or BMP.

    Notes
    -----
    What stands behind the end of an image is refused only if it says that it is something else: cameras
    put previews and short films there.
    """
    head = content[:_HEAD].lower()
    for signature in (b"%pdf-", b"<script", b"<html", b"<!doctype", b"<?php"):
        if signature in head:
            return _FOREIGN_ANYWHERE[signature]
    tail = content[_ENDS[kind](content) :].lower()
    for signature, name in _FOREIGN_ANYWHERE.items():
        if signature in tail:
            return name
    first = tail.lstrip(b"\0 \t\r\n")
    for signature, name in _FOREIGN_FIRST.items():
        if first.startswith(signature) and name != _SAME.get(kind):
            return name
    return None


def _end_of_png(content: bytes) -> int:
    position = len(PNG_MAGIC)
    while position + 12 <= len(content):
        length = int.from_bytes(content[position : position + 4], "big")
        name = content[position + 4 : position + 8]
        position += 12 + length
        if name == b"IEND":
            return position
    return len(content)


def _end_of_jpeg(content: bytes) -> int:
    position = 2
    while position + 4 <= len(content):
        marker = content[position + 1]
        if marker == _JPEG_END:
            return position + 2
        if content[position] != 0xFF or marker == 0xFF:
            position += 1
            continue
        if marker in _JPEG_BARE:
            position += 2
            continue
        position += 2 + int.from_bytes(content[position + 2 : position + 4], "big")
        if marker == _JPEG_SCAN:
            found = _JPEG_MARKER.search(content, position)
            if found is None:
                return len(content)
            position = found.start()
    return len(content)


def _end_of_gif(content: bytes) -> int:
    def behind_blocks(position: int) -> int:
        while position < len(content) and content[position]:
            position += 1 + content[position]
        return position + 1

    def table(flags: int) -> int:
        return 3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0

    if len(content) < 13:
        return len(content)
    position = 13 + table(content[10])
    while position < len(content):
        block = content[position]
        if block == 0x3B:
            return position + 1
        if block == 0x21:
            position = behind_blocks(position + 2)
        elif block == 0x2C and position + 10 < len(content):
            position = behind_blocks(position + 11 + table(content[position + 9]))
        else:
            return position
    return len(content)


def _end_of_webp(content: bytes) -> int:
    length = int.from_bytes(content[4:8], "little")
    return 8 + length + length % 2


def _end_of_bmp(content: bytes) -> int:
    # Some programs write 0 there.
    return int.from_bytes(content[2:6], "little") or len(content)


_ENDS = {
    "PNG": _end_of_png,
    "JPEG": _end_of_jpeg,
    "GIF": _end_of_gif,
    "WEBP": _end_of_webp,
    "BMP": _end_of_bmp,
}
#: Formats that a server takes: those whose end is known.
UPLOAD_FORMATS = tuple(_ENDS)
