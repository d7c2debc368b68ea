"""Loads of eight connections from one other address, and how long `acil serve` lets honest clients wait.

While a load of `LOADS` runs, three honest clients ask, each over new connections: for `/health`, for a
prediction of a small image, and for one of a photograph of 12 megapixels. While a load of `TEXT_LOADS`
runs, they ask a model of texts: for `/health`, for one sentence, and for 64.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from PIL import Image

from benchmarks.attackers import encoded, head, large_picture, photograph, upload

#: Where the loads come from, and how many connections they have at a time.
SOURCE = "127.0.0.2"
CONNECTIONS = 8
#: The bars: seconds of `/health`, times the wait without a load, and bytes above the start.
MAX_HEALTH = 0.2
MAX_SMALL, MAX_LARGE = 20.0, 5.0
MAX_MEMORY = 300 * 10**6
#: An answer that has not come by then counts as one that took so long.
_GIVE_UP = 30.0
_AGAIN_SECONDS = 0.2
_PART = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'
#: Kinds of pictures; one with transparency takes 50 MB more than these.
_MODES = ("L", "RGB", "I;16")
_GET = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"


@dataclass
class Load:
    """A server, and the time at which its load ends."""

    port: int
    end: float

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection from the other address."""
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(SOURCE, 0))

    async def again(self, one: Callable[[], Awaitable[object]]) -> None:
        """Do something on all connections until the end."""

        async def each() -> None:
            while time.monotonic() < self.end:
                with contextlib.suppress(OSError, TimeoutError):
                    async with asyncio.timeout(max(0.0, self.end - time.monotonic())):
                        await one()
                await asyncio.sleep(0)

        await asyncio.gather(*(each() for _ in range(CONNECTIONS)))

    async def send(self, *parts: bytes) -> None:
        """Send a request, and wait for the first bytes of the answer."""
        reader, writer = await self.connect()
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
            await reader.read(100)
        finally:
            writer.transport.abort()

    async def pour(self, first: bytes, rest: bytes) -> None:
        """Send something without an end, and read no answer."""
        _, writer = await self.connect()
        try:
            writer.write(first)
            while True:
                writer.write(rest)
                await writer.drain()
        finally:
            writer.transport.abort()


async def small_chunks(load: Load) -> None:
    """Send a body of chunks of one byte."""
    start = head("/predict", 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    first = start + b"%x\r\n%s\r\n" % (len(_PART), _PART)
    await load.again(lambda: load.pour(first, b"1\r\nx\r\n" * 10_000))


async def pipelining(load: Load) -> None:
    """Ask for a file of the page again and again, and read no answer."""
    await load.again(lambda: load.pour(b"", _GET % b"/static/page.js" * 1000))


async def short(load: Load) -> None:
    """Open a connection for each request."""
    await load.again(lambda: load.send(_GET % b"/health"))


async def markers(load: Load) -> None:
    """Send JPEGs that are slow to search: of stuffed bytes, or with much behind their end."""
    jpeg = photograph("JPEG", 64)
    stuffed = jpeg[:-2] + b"\xff\0" * (30 * 2**20)
    behind = jpeg + b"<svg" * (15 * 2**20)
    chance = random.Random(0)
    requests = [upload("/predict", [content]) for content in (stuffed, behind)]
    await load.again(lambda: load.send(chance.choice(requests)))


async def scans(load: Load) -> None:
    """Send large JPEGs of 99 scans."""
    request = upload("/predict", [many_scans(7000)])
    await load.again(lambda: load.send(request))


async def bombs(load: Load) -> None:
    """Send the largest pictures."""
    chance = random.Random(0)
    requests = [upload("/predict", [large_picture(mode)] * n) for mode in _MODES for n in (1, 4)]
    await load.again(lambda: load.send(chance.choice(requests)))


async def dear_texts(load: Load) -> None:
    """Send as many texts as a request may have, each of as many tokens as the network reads."""
    request = texts("/predict", ["?!" * 128] * 256)
    await load.again(lambda: load.send(request))


async def long_texts(load: Load) -> None:
    """Send as many characters as fit into the memory of the server together."""
    request = texts("/predict", ["my card was swallowed " * 225] * 256)
    await load.again(lambda: load.send(request))


async def many_texts(load: Load) -> None:
    """Send as many short texts as a request may have."""
    request = texts("/predict", [f"my card {number} was swallowed" for number in range(256)])
    await load.again(lambda: load.send(request))


async def slow_json(load: Load) -> None:
    """Send the longest JSON, of what is slow to read or is refused late."""
    escaped = b'{"texts": ["' + b"\\u00e9" * (600 * 2**10) + b'"]}'
    many = b'{"texts": [' + b'"a",' * (900 * 2**10) + b'"a"]}'
    chance = random.Random(0)
    requests = [_json("/predict", content) for content in (escaped, many)]
    await load.again(lambda: load.send(chance.choice(requests)))


def texts(path: str, sentences: list[str]) -> bytes:
    """Return a whole request with texts."""
    return _json(path, json.dumps({"texts": sentences}).encode())


def _json(path: str, content: bytes) -> bytes:
    return head(path, len(content), kind="application/json") + content


#: By name, in the order of the table: those on a model of images, and on one of texts.
LOADS: dict[str, Callable[[Load], Awaitable[None]]] = {
    "small chunks": small_chunks,
    "pipelining": pipelining,
    "short connections": short,
    "slow searches": markers,
    "99 scans": scans,
    "bombs": bombs,
}
TEXT_LOADS: dict[str, Callable[[Load], Awaitable[None]]] = {
    "texts of 256 tokens": dear_texts,
    "long texts": long_texts,
    "short texts": many_texts,
    "slow JSON": slow_json,
}


@functools.cache
def many_scans(side: int) -> bytes:
    """Return a progressive JPEG of 99 scans, each of which goes through a whole empty picture."""
    plain = encoded(Image.new("L", (side, side)), "JPEG", progressive=True)
    start = plain.rindex(b"\xff\xda")
    again = plain[start:-2]
    return plain[:-2] + again * (99 - plain.count(b"\xff\xda")) + plain[-2:]


@functools.cache
def large_photograph() -> bytes:
    """Return a photograph of 12 megapixels."""
    pixels = np.random.default_rng(0).integers(0, 256, (375, 500, 3), dtype=np.uint8)
    return encoded(Image.fromarray(pixels).resize((4000, 3000)), "JPEG", quality=90)


class Asked(NamedTuple):
    """Requests of honest clients."""

    small: bytes
    large: bytes


def asked(of_texts: bool) -> Asked:
    """Return what honest clients ask a model of texts, or of images."""
    if of_texts:
        sentences = [f"when is train {number} to the airport, please" for number in range(64)]
        return Asked(*(texts("/predict", part) for part in (sentences[:1], sentences)))
    pictures = photograph("JPEG", 320), large_photograph()
    return Asked(*(upload("/predict", [picture]) for picture in pictures))


@dataclass
class Waits:
    """How long honest clients waited under one load, by what they asked for."""

    name: str
    health: list[float] = field(default_factory=list)
    small: list[float] = field(default_factory=list)
    large: list[float] = field(default_factory=list)
    memory: int = 0

    @property
    def p99(self) -> tuple[float, float, float]:
        """Return what one of a hundred waits exceeds, of each."""
        found = []
        for waits in (self.health, self.small, self.large):
            many = [*waits, *waits] if len(waits) == 1 else waits
            found.append(statistics.quantiles(many, n=100, method="inclusive")[-1] if many else 0.0)
        return found[0], found[1], found[2]


def run_load(name: str, port: int, end: float) -> None:
    """Run a load to its end."""
    asyncio.run({**LOADS, **TEXT_LOADS}[name](Load(port, end)))  # type: ignore[arg-type]


async def _answered(port: int, request: bytes, patience: float) -> bool:
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(patience):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(request)
                return (await reader.read()).split(maxsplit=2)[1:2] == [b"200"]
            finally:
                writer.transport.abort()
    return False


async def live(
    port: int, seconds: float, waits: Waits, requests: Asked, memory: Callable[[], int]
) -> None:
    """Ask as honest clients until the time is over; what was asked by then is waited for."""
    end = time.monotonic() + seconds

    async def ask(request: bytes, found: list[float], pause: float) -> None:
        while time.monotonic() < end:
            begun = time.monotonic()
            while not await _answered(port, request, _GIVE_UP):
                if time.monotonic() - begun > _GIVE_UP:
                    break
                await asyncio.sleep(_AGAIN_SECONDS)
            found.append(time.monotonic() - begun)
            waits.memory = max(waits.memory, memory())
            await asyncio.sleep(pause)

    await asyncio.gather(
        ask(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", waits.health, 0.05),
        ask(requests.small, waits.small, 0.1),
        ask(requests.large, waits.large, 0.5),
    )


def measure(
    pool: ProcessPoolExecutor, port: int, names: list[str], seconds: float, memory: Callable[[], int]
) -> Iterator[Waits]:
    """Yield the waits without a load, and under each load of so many seconds."""
    requests = asked(names[0] in TEXT_LOADS)
    asyncio.run(live(port, 2, Waits("warm"), requests, memory))
    base = memory()
    for name in ("none", *names):
        waits = Waits(name)
        if name != "none":
            running = pool.submit(run_load, name, port, time.monotonic() + seconds)
        asyncio.run(live(port, seconds, waits, requests, memory))
        if name != "none":
            running.result()
        waits.memory -= base
        yield waits


def prepare() -> None:
    """Make the large pictures, so that processes of loads inherit them."""
    for mode in _MODES:
        large_picture(mode)
    many_scans(7000)
    large_photograph()


def loads_table(rows: list[Waits]) -> str:
    """Return the waits as a table in Markdown; those without a load come first."""
    lines = [
        "| load | /health p99 (s) | small p99 (s) | times | large p99 (s) | times | memory (MB) |",
        "| --- | --: | --: | --: | --: | --: | --: |",
    ]
    _, small, large = rows[0].p99
    for row in rows:
        health, a, b = row.p99
        lines.append(
            f"| {row.name} | {health:.3f} | {a:.3f} | {a / small:.1f} | {b:.2f} | {b / large:.1f} "
            f"| {row.memory // 10**6} |"
        )
    return "\n".join(lines)


def loads_missed(rows: list[Waits]) -> list[str]:
    """Return the bars that are missed, in words."""
    _, small, large = rows[0].p99
    found = []
    for row in rows[1:]:
        health, a, b = row.p99
        if health > MAX_HEALTH:
            found.append(f"{row.name}: /health took {health:.2f} s")
        if a > MAX_SMALL * small:
            found.append(f"{row.name}: a small prediction took {a / small:.1f} times as long")
        if b > MAX_LARGE * large:
            found.append(f"{row.name}: a large prediction took {b / large:.1f} times as long")
        if row.memory > MAX_MEMORY:
            found.append(f"{row.name}: {row.memory // 10**6} MB more memory")
    return found
