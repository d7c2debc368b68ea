"""What strangers send: received within limits, and images checked before anything decodes them."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Any, NamedTuple

from PIL import Image, PngImagePlugin
from starlette.datastructures import Headers
from starlette.requests import Request

from acil.encoders.images.listing import check_class_name
from acil.errors import InputError
from acil.serve.line import BusyError
from acil.serve.settings import Settings

FIELD = "images"
#: Largest requests that are held in memory at a time.
_FULL_REQUESTS = 3
#: Uploads larger than this share so many bytes a second: reading them must leave time for others.
_LARGE, _BYTES_PER_SECOND = 2**20, 100 * 2**20

# Text that a PNG may unpack; Pillow's own limit is 64 MB an image.
PngImagePlugin.MAX_TEXT_MEMORY = 4 * PngImagePlugin.MAX_TEXT_CHUNK
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
#: A marker inside the coded data of a JPEG that is neither a stuffed byte, a restart nor a filler.
_JPEG_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_JPEG_END, _JPEG_SCAN = 0xD9, 0xDA
#: A progressive JPEG has ten, of four colours eighteen; each goes through the whole image.
_MAX_SCANS = 32
#: Bytes that are searched at a time: nothing else runs meanwhile.
_SEARCHED = 2**16
#: Markers without content: restarts, a second start, and one for private use.
_JPEG_BARE = frozenset((0x01, *range(0xD0, 0xD9)))
#: Characters of the name of a file that are shown.
_MAX_FILE_NAME = 100
#: Files that an error names; the list beside it has all.
_TOLD = 5


class Item(NamedTuple):
    """One sample of a request: an image file, or a text."""

    name: str  # of a file, as `shown_name` made it, or the number of a text
    content: Any  # bytes, or text

    @property
    def named(self) -> dict[str, str]:
        """What answers call it; a text has its place in the request alone."""
        return {"image": self.name} if isinstance(self.content, bytes) else {}


#: Makes the samples of a request of its headers and its body.
Receive = Callable[[Headers, AsyncGenerator[bytes, None]], Awaitable[list[Item]]]


class TooLargeError(InputError):
    """A request has more bytes or samples than the server takes, or larger ones."""


class RefusedError(InputError):
    """Some samples of a request cannot be used, and nothing was done with the others."""

    def __init__(self, items: Sequence[Item], faults: Mapping[int, InputError], many: str) -> None:
        self.refused = refusals(items, faults)
        self.too_large = all(isinstance(fault, TooLargeError) for fault in faults.values())
        told = " ".join(f"{items[place].name}: {faults[place]}" for place in sorted(faults)[:_TOLD])
        if len(items) > 1:
            told = f"{len(faults)} of {len(items)} {many} cannot be used; nothing was changed. {told}"
        if len(faults) > _TOLD:
            told += f" And {len(faults) - _TOLD} more."
        super().__init__(told)


@dataclass(eq=False)
class _Upload:
    """One request that is being received or worked on."""

    deadline: asyncio.Timeout
    size: int = 0
    given_up: bool = False


class Inbox:
    """Uploads of all requests, in memory.

    When there are too many bytes, the upload that has taken longest so far is given up: a fast client
    does not wait for slow ones.
    """

    def __init__(self, settings: Settings, max_bytes: int) -> None:
        """Take the settings, and the bytes of which three times as many may be held."""
        self._settings = settings
        self._limit = _FULL_REQUESTS * max_bytes
        self._seconds = settings.read_seconds
        self._held = 0
        #: The oldest first.
        self._receiving: dict[_Upload, None] = {}

    def hurry(self, seconds: float) -> None:
        """Give uploads that arrive now or later no more than so many seconds."""
        self._seconds = min(self._seconds, seconds)
        end = asyncio.get_running_loop().time() + self._seconds
        for upload in self._receiving:
            if not upload.deadline.expired():
                upload.deadline.reschedule(min(end, upload.deadline.when() or end))

    @contextlib.asynccontextmanager
    async def items(self, request: Request, receive: Receive) -> AsyncIterator[list[Item]]:
        """Receive the samples of a request; their bytes count until the end of the context."""
        upload = _Upload(asyncio.timeout(self._seconds))
        try:
            try:
                async with upload.deadline:
                    self._receiving[upload] = None
                    items = await receive(request.headers, self._counted(request, upload))
                    self._receiving.pop(upload, None)
            except TimeoutError:
                if upload.given_up:
                    raise BusyError(503) from None
                raise
            yield items
        finally:
            self._receiving.pop(upload, None)
            self._held -= upload.size

    async def _counted(self, request: Request, upload: _Upload) -> AsyncGenerator[bytes, None]:
        async for chunk in request.stream():
            upload.size += len(chunk)
            self._held += len(chunk)
            if upload.size > self._settings.max_bytes:
                raise TooLargeError(self._settings.too_many_bytes)
            if self._held > self._limit:
                self._give_up_the_slowest()
            if upload.size > _LARGE:
                large = sum(other.size > _LARGE for other in self._receiving)
                await asyncio.sleep(len(chunk) * large / _BYTES_PER_SECOND)
            yield chunk

    def _give_up_the_slowest(self) -> None:
        slowest = next(iter(self._receiving), None)
        if slowest is None:
            return
        del self._receiving[slowest]
        self._held -= slowest.size
        slowest.size, slowest.given_up = 0, True
        if not slowest.deadline.expired():
            slowest.deadline.reschedule(asyncio.get_running_loop().time())


def check_image(content: bytes, max_pixels: int) -> int:
    """Return the pixels of an upload; raise unless it is one image, and small enough to decode.

    The content decides; names and types that a client gives are not looked at.
    """
    if not content:
        raise InputError("It is empty. Send the file again.")
    kind = next((kind for kind, magic in _FORMATS.items() if content.startswith(magic)), None)
    if kind is None:
        raise InputError(
            f"It is not an image of a format that is taken here. Send {', '.join(_FORMATS)}."
        )
    # Pillow reads any number of parts, so count them before it sees the file.
    if kind in _COUNTED:
        _COUNTED[kind](content)
    try:
        with Image.open(io.BytesIO(content), formats=[kind]) as image:
            width, height = image.size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise TooLargeError(f"It has too many pixels ({error}). Make it smaller.") from None
    # Decoders of damaged files fail in too many ways to list: struct.error, SyntaxError, zlib.error …
    except Exception as error:
        raise InputError(f"It is damaged ({type(error).__name__}). Send another copy.") from None
    if width * height > max_pixels:
        raise TooLargeError(
            f"It has {width} x {height} pixels, more than {max_pixels:,}. Make it smaller."
        )
    return width * height


def shown_name(name: str | None, number: int) -> str:
    """Return what answers call a file: the name that the client gives it, without what is no text."""
    shown = (name or "").strip()
    if len(shown) > _MAX_FILE_NAME:
        shown = shown[: _MAX_FILE_NAME - 1] + "…"
    safe = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in shown)
    return safe or f"image {number}"


def refusals(items: Sequence[Item], faults: Mapping[int, InputError]) -> list[dict[str, Any]]:
    """Return what is wrong with which samples, in their order."""
    return [
        {"place": place, **items[place].named, "error": str(faults[place])} for place in sorted(faults)
    ]


def check_name(name: str) -> str:
    """Return the class name of a URL, or raise if it cannot be one."""
    if "\N{REPLACEMENT CHARACTER}" in name:
        raise InputError("The class name is not UTF-8. Encode it as such.")
    return check_class_name(name)


def _parts(content: bytes, size: int) -> Iterator[None]:
    """Count parts of a file, and raise if they are many and smaller than ``size`` on average."""
    for _ in range(1000 + len(content) // size):
        yield
    raise InputError("It consists of too many small parts. Save it again as an image.")


def _count_png(content: bytes) -> None:
    position = len(PNG_MAGIC)
    for _ in _parts(content, 512):
        if position + 12 > len(content):
            break
        length = int.from_bytes(content[position : position + 4], "big")
        name = content[position + 4 : position + 8]
        position += 12 + length
        if name == b"IEND":
            return


def _count_jpeg(content: bytes) -> None:
    position, scans = 2, 0
    for _ in _parts(content, 512):
        if position + 4 > len(content):
            break
        marker = content[position + 1]
        if marker == _JPEG_END:
            return
        if content[position] != 0xFF or marker == 0xFF:
            position += 1
            continue
        if marker in _JPEG_BARE:
            position += 2
            continue
        position += 2 + int.from_bytes(content[position + 2 : position + 4], "big")
        if marker == _JPEG_SCAN:
            scans += 1
            if scans > _MAX_SCANS:
                raise InputError(f"It has more than {_MAX_SCANS} scans. Save it again as an image.")
            position = _next_marker(content, position)


def _next_marker(content: bytes, position: int) -> int:
    """Return where the next marker of a JPEG is, or the end if there is none."""
    while position < len(content):
        # One byte more: a marker has two.
        match = _JPEG_MARKER.search(content, position, position + _SEARCHED + 1)
        if match is not None:
            return match.start()
        position += _SEARCHED
    return len(content)


def _count_gif(content: bytes) -> None:
    parts = _parts(content, 32)

    def behind_blocks(position: int) -> int:
        while position < len(content) and content[position]:
            next(parts)
            position += 1 + content[position]
        return position + 1

    def table(flags: int) -> int:
        return 3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0

    if len(content) < 13:
        return
    position = 13 + table(content[10])
    for _ in parts:
        if position >= len(content):
            break
        block = content[position]
        if block == 0x21:
            position = behind_blocks(position + 2)
        elif block == 0x2C and position + 10 < len(content):
            position = behind_blocks(position + 11 + table(content[position + 9]))
        else:
            break


#: Formats that a server takes, and how each begins.
_FORMATS = {"PNG": PNG_MAGIC, "JPEG": b"\xff\xd8", "GIF": b"GIF8", "WEBP": b"RIFF", "BMP": b"BM"}
_COUNTED = {"PNG": _count_png, "JPEG": _count_jpeg, "GIF": _count_gif}
