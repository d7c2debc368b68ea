"""Attack `acil serve` and the readers of model files, and see what an honest client feels.

    python -m benchmarks.attack --minutes 10 --seed 0
    python -m benchmarks.attack --minutes 1 --only idle,many

Starts a server of its own on loopback, and attacks nothing else. While an attack of `attackers.py` runs,
an honest client asks for predictions, `/health` and `/metrics`, each over a new connection. A third of
the attacks come from its own address. Then eight connections of one other address send what is dear
(`attackloads.py`), files are attacked, and servers killed (`attackfiles.py`). Prints tables, and fails
if a bar is missed:

- nothing wrong: no answer 5xx but 503, no traceback, no control character, no change lost or half made;
- nothing hung;
- p99 of the honest client at most 20 times that without an attack;
- memory of server and readers at most 1 GB above what it was;
- under each load, p99 of `/health` at most 0.2 s, of a small image or one sentence at most 20 times, and
  of a photograph of 12 megapixels or 64 sentences at most 5 times that without a load, memory at most
  300 MB above the start.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import random
import re
import resource
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.attackers import (
    ATTACKS,
    LARGE_MODES,
    Tally,
    Target,
    large_picture,
    photograph,
    run,
    upload,
)
from benchmarks.attackfiles import attack_by_killing, attack_files, memory
from benchmarks.attackloads import (
    LOADS,
    TEXT_LOADS,
    Waits,
    loads_missed,
    loads_table,
    measure,
    prepare,
)

MAX_SLOWER = 20.0
MAX_MEMORY = 10**9
#: An honest client that was refused asks again so soon; all of that is its wait.
_AGAIN_SECONDS = 0.2
#: Shares of the time: without an attack, attacks on the server, loads, files. The rest is for kills.
_SHARES = (0.05, 0.45, 0.2, 0.2)
_TOKEN = secrets.token_urlsafe(24)


@dataclass
class Row:
    """One line of the table."""

    name: str
    tally: Tally
    memory: int = 0
    waits: list[float] = field(default_factory=list)

    @property
    def p99(self) -> float:
        """Return the wait that one of a hundred requests exceeds."""
        return statistics.quantiles(self.waits, n=100)[-1] if len(self.waits) > 1 else 0.0


@contextlib.contextmanager
def served(
    model: Path, backbone: str | None = None, of_texts: bool = False
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Serve a model in a process; yield it and its port."""
    options = [] if backbone is None else ["--backbone", backbone]
    options += ["--texts"] if of_texts else []
    process = subprocess.Popen(
        [sys.executable, "-m", "acil", "serve", str(model), "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "ACIL_TOKEN": _TOKEN},
    )
    try:
        line = process.stdout.readline() if process.stdout else ""
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
        if found is None:
            raise SystemExit("The server does not start. Try: acil serve m.acil")
        yield process, int(found.group(1))
    finally:
        process.kill()
        process.communicate()


class Honest:
    """A client that asks for predictions, health and metrics, and notes how long each takes."""

    def __init__(self, port: int, pid: int) -> None:
        self._port = port
        self._pid = pid
        ask = "GET {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        predict = upload("/predict", [photograph("JPEG", 320)])
        self._requests = [
            predict,
            predict,
            *(ask.format(path).encode() for path in ("/health", "/metrics")),
        ]

    async def live(self, row: Row, seconds: float) -> None:
        """Ask until the time is over; note how long answers took, and the memory of the server."""
        end, number = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            begun = time.perf_counter()
            while await self._status(self._requests[number % len(self._requests)]) != 200:
                row.memory = max(row.memory, memory(self._pid))
                await asyncio.sleep(_AGAIN_SECONDS)
            row.waits.append(time.perf_counter() - begun)
            row.memory = max(row.memory, memory(self._pid))
            number += 1
            await asyncio.sleep(0.02)

    async def _status(self, request: bytes) -> int:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                writer.write(request)
                words = (await reader.read()).split(maxsplit=2)
                return int(words[1]) if len(words) > 1 else 0
            finally:
                writer.transport.abort()
        return 0


def attack_service(
    model: Path, backbone: str | None, names: list[str], chance: random.Random, seconds: float
) -> list[Row]:
    """Return a row without an attack, and one for each attack."""
    quiet = _SHARES[0] / sum(_SHARES[:2]) * seconds
    rows = [Row("none", Tally()), *(Row(name, Tally()) for name in names)]
    for mode in LARGE_MODES:
        # The process of the attacks inherits them.
        large_picture(mode)
    attackers = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
    with attackers as pool, served(model, backbone) as (process, port):
        pool.submit(int).result()
        teach(port)
        honest = Honest(port, process.pid)
        asyncio.run(honest.live(Row("warm", Tally()), 1))
        asyncio.run(honest.live(rows[0], quiet))
        rows[0].memory = base = memory(process.pid)
        for row in chance.sample(rows[1:], len(names)):
            # In a process of its own: the honest client must not wait for the attacker.
            length = (seconds - quiet) / len(names)
            target = Target(port, random.Random(chance.random()), time.monotonic() + length)
            attack = pool.submit(run, row.name, target)
            asyncio.run(honest.live(row, length))
            row.tally = attack.result()
        for row in rows:
            row.memory -= base
        if process.poll() is not None:
            raise SystemExit("The server has ended.")
    return rows


def attack_by_loads(
    model: Path, backbone: str | None, names: list[str], seconds: float
) -> Iterator[Waits]:
    """Yield how long honest clients wait without a load, and under each load: of images, or of texts."""
    prepare()
    of_texts = names[0] in TEXT_LOADS
    loads = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
    with loads as pool, served(model, backbone, of_texts) as (process, port):
        pool.submit(int).result()
        teach(port, of_texts)
        yield from measure(pool, port, names, seconds / (len(names) + 1), lambda: memory(process.pid))


def teach(port: int, of_texts: bool = False) -> None:
    """Teach two classes."""
    import httpx

    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
        for number, name in enumerate(("red", "blue")):
            if of_texts:
                given = {"json": {"texts": [f"{name} sentence {i}" for i in range(5)]}}
            else:
                pictures = [photograph("PNG", 64, 10 * number + i) for i in range(5)]
                files = [("images", (f"{i}.png", p, "image/png")) for i, p in enumerate(pictures)]
                given = {"files": files}
            headers = {"Authorization": f"Bearer {_TOKEN}"}
            client.post(f"/classes/{name}", headers=headers, **given).raise_for_status()


def table(rows: list[Row]) -> str:
    """Return the rows as a table in Markdown."""
    base = rows[0].p99
    lines = [
        "| attack | tried | refused | wrong | hung | memory (MB) | longest wait (s) | p99 (s) | times |",
        "| --- | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for row in rows:
        tally = row.tally
        waited = ["", "", ""]
        if row.waits:
            waited = [f"{max(row.waits):.3f}", f"{row.p99:.3f}", f"{row.p99 / base:.1f}"]
        counts = [tally.tried, tally.refused, tally.wrong, tally.hung, row.memory // 10**6]
        lines.append(f"| {row.name} | {' | '.join(map(str, [*counts, *waited]))} |")
    return "\n".join(lines)


def missed(rows: list[Row]) -> list[str]:
    """Return the bars that are missed, in words."""
    found = [f"{row.name}: {text}" for row in rows for text in row.tally.examples]
    for row in rows:
        if row.tally.wrong or row.tally.hung:
            found.append(f"{row.name}: {row.tally.wrong} wrong, {row.tally.hung} hung")
        if row.p99 > MAX_SLOWER * rows[0].p99:
            found.append(
                f"{row.name}: the honest client waited {row.p99 / rows[0].p99:.1f} times as long"
            )
        if row.memory > MAX_MEMORY:
            found.append(f"{row.name}: {row.memory / 1e9:.2f} GB more memory")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Attack, print the table, and return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    names = [*ATTACKS, *LOADS, *TEXT_LOADS, "files", "kills"]
    parser.add_argument("--only", default=",".join(names), help="attacks, separated by commas")
    parser.add_argument("--backbone", help="network of the model, by default that of acil serve")
    given = parser.parse_args(arguments)
    chosen = [name.strip() for name in given.only.split(",")]
    if unknown := set(chosen) - set(names):
        parser.error(f"there is no attack {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    # Thousands of connections at a time.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    chance, seconds = random.Random(given.seed), 60 * given.minutes
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "m.acil"
        on_service = [name for name in ATTACKS if name in chosen]
        rows = attack_service(model, given.backbone, on_service, chance, sum(_SHARES[:2]) * seconds)
        waits = []
        by_kind = [[name for name in loads if name in chosen] for loads in (LOADS, TEXT_LOADS)]
        places = (model, given.backbone), (Path(folder) / "texts.acil", None)
        for loads, place in zip(by_kind, places, strict=True):
            if loads:
                length = len(loads) / sum(map(len, by_kind)) * _SHARES[2] * seconds
                waits.append([*attack_by_loads(*place, loads, length)])
        if "files" in chosen:
            for name, (tally, taken) in attack_files(model, chance, _SHARES[3] * seconds).items():
                rows.append(Row(name, tally, taken))
        if "kills" in chosen:
            left = (1 - sum(_SHARES)) * seconds
            rows.append(Row("kills", attack_by_killing(model, served, _TOKEN, chance, left)))
    print(table(rows))
    faults = missed(rows)
    for rows_of_loads in waits:
        print(f"\n{loads_table(rows_of_loads)}")
        faults += loads_missed(rows_of_loads)
    print("\n".join(["", *faults]) if faults else "\nAll bars are met.")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
