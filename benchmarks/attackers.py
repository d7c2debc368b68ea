"""Hostile clients of `acil serve`, over loopback: each attack runs until its time is over."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import os
import random
import struct
import time
import zlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

#: An answer that takes longer counts as none.
HUNG_SECONDS = 90.0
#: Addresses of this machine from which attacks come; the first is that of the honest client.
SOURCES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
#: Kinds of pictures that take most time and memory.
LARGE_MODES = ("L", "RGB", "LA", "I;16")
_EXAMPLES = 5
_BOUNDARY = "multipart/form-data; boundary=x"


@dataclass
class Tally:
    """What became of the attempts of one attack."""

    tried: int = 0
    refused: int = 0
    wrong: int = 0
    hung: int = 0
    examples: list[str] = field(default_factory=list)

    def count(self, what: str, status: int | None) -> None:
        """Count an answer: None is a connection that was closed, -1 one that never was answered."""
        if status == -1:
            self.hung += 1
        elif status is None or 400 <= status < 500 or status == 503:
            self.refused += 1
        elif status != 200:
            self.wrong += 1
        told = self.wrong + self.hung > len(self.examples)
        if told and len(self.examples) < _EXAMPLES:
            self.examples.append(f"{what}: {status}")


@dataclass
class Target:
    """A server, the chance by which attacks choose, and the time at which they end."""

    port: int
    chance: random.Random
    end: float
    tally: Tally = field(default_factory=Tally)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection from one of the addresses."""
        source = (self.chance.choice(SOURCES), 0)
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=source)

    async def ask(self, what: str, request: bytes) -> int | None:
        """Send a request, and count the status of the answer."""
        self.tally.tried += 1
        status: int | None = None
        try:
            async with asyncio.timeout(HUNG_SECONDS):
                reader, writer = await self.connect()
                try:
                    writer.write(request)
                    words = (await reader.readline()).split()
                    status = int(words[1]) if len(words) > 1 and words[1].isdigit() else None
                finally:
                    writer.transport.abort()
        except TimeoutError:
            status = -1
        except OSError:
            status = None
        self.tally.count(what, status)
        return status

    async def together(self, number: int, one: Callable[[], Awaitable[object]]) -> None:
        """Do something again and again until the end, several at a time."""

        async def again() -> None:
            while time.monotonic() < self.end:
                await one()
                # Also if everything is refused at once.
                await asyncio.sleep(0.01)

        await asyncio.gather(*(again() for _ in range(number)))

    async def held(self, number: int, first: bytes, rest: bytes) -> None:
        """Keep connections open, each sending a byte a second; those that are closed come again."""

        async def one() -> None:
            await asyncio.sleep(self.chance.uniform(0, 2))
            self.tally.tried += 1
            with contextlib.suppress(OSError):
                reader, writer = await self.connect()
                try:
                    await self._drip(reader, writer, first, rest)
                finally:
                    writer.transport.abort()

        await self.together(number, one)

    async def _drip(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytes, rest: bytes
    ) -> None:
        writer.write(first)
        for place in range(len(rest) + 10**6):
            try:
                async with asyncio.timeout(1 + self.chance.random()):
                    await writer.drain()
                    if not await reader.read(1000):
                        self.tally.count("connection", None)
                        return
            except TimeoutError:
                if time.monotonic() > self.end:
                    return
            except OSError:
                self.tally.count("connection", None)
                return
            writer.write(rest[place : place + 1])


def run(name: str, target: Target) -> Tally:
    """Run an attack to its end."""
    asyncio.run(ATTACKS[name](target))
    return target.tally


def head(path: str, length: int, extra: str = "", kind: str = _BOUNDARY) -> bytes:
    """Return the head of a request with a body."""
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {length}\r\nConnection: close\r\n{extra}\r\n"
    ).encode()


def upload(path: str, images: list[bytes], extra: str = "") -> bytes:
    """Return a whole request with images."""
    part = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'
    body = b"".join(part + image + b"\r\n" for image in images) + b"--x--\r\n"
    return head(path, len(body), extra) + body


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    """Return an image as a file."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def photograph(kind: str = "JPEG", side: int = 320, seed: int = 0) -> bytes:
    """Return an image of ordinary size."""
    pixels = np.random.default_rng(seed).integers(0, 256, (side // 8, side // 8, 3), dtype=np.uint8)
    return encoded(Image.fromarray(pixels).resize((side, side)), kind)


def png(width: int, height: int, colour: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """Return a PNG file of chunks, of which the header is only a claim."""
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)),
        *chunks,
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )


@functools.cache
def large_picture(mode: str) -> bytes:
    """Return the largest picture that the server takes, in few bytes."""
    return encoded(Image.new(mode, (7000, 7000)))


def bomb(chance: random.Random) -> bytes:
    """Return a small file that is dear to read, or claims to be."""
    jpeg = photograph("JPEG", 64)
    side = chance.choice((100, 8000, 65535, 2**31 - 1))
    return chance.choice(
        (
            lambda: png(side, side, 2, (b"IDAT", zlib.compress(bytes(100_000)))),
            lambda: png(8, 8, 2, *[(b"teSt", b"")] * 50_000),
            lambda: png(8, 8, 2, *[(b"zTXt", b"k\0\0" + zlib.compress(bytes(1_000_000)))] * 40),
            lambda: jpeg[:2] + b"\xff\xfe\x00\x02" * 200_000 + jpeg[2:],
            lambda: photograph("GIF", 64)[:-1] + b"!\xfe" + b"\x01x" * 500_000 + b"\0;",
            lambda: b"RIFF\x16\0\0\0WEBPVP8L\x0a\0\0\0\x2f" + struct.pack("<I", 2**28 - 1) + bytes(5),
            lambda: b"BM" + struct.pack("<IHHIIiiHH", 99, 0, 0, 54, 40, side, side, 1, 24) + bytes(24),
        )
    )()


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Return a file with some bytes changed, cut off, repeated or put in."""
    made = bytearray(content)
    for _ in range(chance.choice((1, 1, 3, 20))):
        place = chance.randrange(len(made))
        change = chance.randrange(5)
        if change == 0:
            made[place] ^= 1 << chance.randrange(8)
        elif change == 1:
            made[place] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif change == 2:
            del made[place : place + chance.randrange(1, 100)]
        elif change == 3:
            made[place:place] = made[place : place + chance.randrange(1, 100)]
        else:
            made[place:place] = chance.randbytes(chance.randrange(1, 30))
        if not made:
            return b"\0"
    return bytes(made)


async def images(target: Target) -> None:
    """Send damaged pictures and bombs."""
    chance = target.chance
    kinds = [photograph(kind, 64) for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP")]

    async def one() -> None:
        content = bomb(chance) if chance.random() < 0.3 else mutated(chance.choice(kinds), chance)
        await target.ask(f"image {content[:40]!r}", upload("/predict", [content]))

    await target.together(4, one)


async def multipart(target: Target) -> None:
    """Send damaged bodies and heads."""
    chance = target.chance
    whole = upload("/predict?top=2", [photograph("PNG", 64)])
    cut = whole.index(b"\r\n\r\n") + 4

    async def one() -> None:
        start, body = whole[:cut], mutated(whole[cut:], chance)
        if chance.random() < 0.3:
            start = mutated(start[:-4], chance) + b"\r\n\r\n"
        elif chance.random() < 0.8:
            start = head("/predict", len(body), kind=chance.choice((_BOUNDARY, "multipart/form-data")))
        # A body that is shorter than its head says belongs to a slow client, which `slow` is.
        await target.ask(f"request {start[:60]!r}", start + body + bytes(len(whole)))

    await target.together(4, one)


async def guesses(target: Target) -> None:
    """Try to teach with tokens that are wrong."""

    async def one() -> None:
        token = f"Authorization: Bearer {target.chance.getrandbits(128):032x}\r\n"
        if await target.ask("guess", upload("/classes/red", [photograph("PNG", 64)], token)) == 200:
            target.tally.wrong += 1

    await target.together(4, one)


async def many(target: Target) -> None:
    """Send as many images as a request may have, in many requests at a time."""
    request = upload("/predict", [photograph("PNG", 32, seed) for seed in range(64)])
    await target.together(20, lambda: target.ask("64 images", request))


async def stay(target: Target) -> None:
    """Send the largest pictures, and wait for the answer."""
    request = upload("/predict", [large_picture("L")] * 4)
    await target.together(6, lambda: target.ask("4 large pictures", request))


async def hang_up(target: Target) -> None:
    """Send the largest pictures, and hang up before the answer."""
    requests = [upload("/predict", [large_picture(mode)] * n) for mode in LARGE_MODES for n in (1, 8)]

    async def one() -> None:
        target.tally.tried += 1
        with contextlib.suppress(OSError):
            _, writer = await target.connect()
            writer.write(target.chance.choice(requests))
            await asyncio.sleep(target.chance.uniform(0, 1))
            writer.transport.abort()

    await target.together(12, one)


async def slow(target: Target) -> None:
    """Send bodies, a byte at a time."""
    request = upload("/predict", [photograph("PNG", 640)])
    await target.held(300, request[:400], request[400:])


async def slow_heads(target: Target) -> None:
    """Send heads, a byte at a time."""
    await target.held(300, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: ", b"x" * 10_000)


async def idle(target: Target) -> None:
    """Open more connections than a server takes, and say nothing."""
    await target.held(4500, b"", b"")


async def unfinished(target: Target) -> None:
    """Send most of large bodies, and no more."""
    part = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'
    await target.held(40, head("/predict", 60 * 2**20) + part + os.urandom(20 * 2**20), b"")


#: By name, in the order of the table.
ATTACKS: dict[str, Callable[[Target], Coroutine[Any, Any, None]]] = {
    "images": images,
    "multipart": multipart,
    "large pictures": stay,
    "hang up": hang_up,
    "many images": many,
    "slow bodies": slow,
    "slow heads": slow_heads,
    "idle": idle,
    "unfinished bodies": unfinished,
    "guesses": guesses,
}
