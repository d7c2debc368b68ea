"""What a busy machine costs: commands on the machine as it is, and beside processes that compute.

    python -m benchmarks.busy [--rounds 3] [--neighbours 4] [--images FOLDER] [--out FILE]

A run of the benchmark on digits, learning 30 photographs as one class more, predicting one, and one
answer of the server. Both kinds take turns; printed are the medians, seconds of the clock and of the
processor. A neighbour is a loop in Python. FOLDER has photographs in JPEG, also in folders below;
without it, they are made up.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from acil.machine import cpu_name
from benchmarks.attack import served, teach
from benchmarks.attackers import photograph, upload
from benchmarks.serving import asked
from benchmarks.timing import run_python

PHOTOGRAPHS = 30
#: Requests of which the median counts.
REQUESTS = 15
#: Several processes that compute, until the one that began them is gone.
_LOOPS = """
import os, sys
parent = os.getppid()
for _ in range(int(sys.argv[1]) - 1):
    if not (child := os.fork()):
        parent = os.getppid()
        break
while os.getppid() == parent:
    sum(range(100_000))
"""


class Taken(NamedTuple):
    """Seconds of the clock, and of the processor where they can be told."""

    wall: float
    cpu: float


@contextlib.contextmanager
def neighbours(number: int) -> Iterator[int]:
    """Keep processes computing, and yield their process group; they are gone in the end.

    Linux may divide a processor among sessions first, so they have one of their own: as programs of
    others do, and unlike threads of ours.
    """
    leader = subprocess.Popen([sys.executable, "-c", _LOOPS, str(number)], start_new_session=True)
    try:
        yield leader.pid
    finally:
        os.killpg(leader.pid, signal.SIGKILL)
        leader.wait()


def photographs(folder: Path | None, number: int) -> list[bytes]:
    """Return photographs of a folder and those below, or made up ones."""
    if folder is None:
        return [photograph(side=480, seed=seed) for seed in range(number)]
    found = sorted(
        itertools.chain(folder.rglob("*.jpg"), folder.rglob("*.jpeg"), folder.rglob("*.JPEG"))
    )
    if len(found) < number:
        raise SystemExit(f"{folder} has {len(found)} photographs, and {number} are needed.")
    # From all of them, as folders may be classes
    return [path.read_bytes() for path in found[:: len(found) // number][:number]]


def command(*arguments: str) -> Taken:
    """Run `acil` in a process of its own."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    run_python("-m", "acil", *arguments)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Taken(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


@contextlib.contextmanager
def cases(folder: Path, images: list[bytes]) -> Iterator[dict[str, Callable[[], Taken]]]:
    """Yield what is measured, by name; each may be called again and again."""
    for name, part in {"first": images[:10], "second": images[10:20], "third": images[20:]}.items():
        kind = folder / ("more" if name == "third" else "base") / name
        kind.mkdir(parents=True)
        for number, content in enumerate(part):
            (kind / f"{number}.jpg").write_bytes(content)
    base, model, out = folder / "base.acil", folder / "model.acil", folder / "run"
    command("learn", str(folder / "base"), "--model", str(base))
    first = str(next((folder / "more" / "third").iterdir()))

    def digits() -> Taken:
        shutil.rmtree(out, ignore_errors=True)
        return command("bench", "run", "--dataset", "digits", "--out", str(out))

    def learn() -> Taken:
        shutil.copy(base, model)
        return command("learn", str(folder / "more"), "--model", str(model))

    with served(folder / "served.acil") as (process, port):
        teach(port)
        request = upload("/predict", [images[0]])
        asyncio.run(asked(port, [request] * REQUESTS))

        def answer() -> Taken:
            before = _processor_seconds(process.pid)
            waits = asyncio.run(asked(port, [request] * REQUESTS))
            taken = _processor_seconds(process.pid) - before
            return Taken(statistics.median(waits), taken / REQUESTS)

        yield {
            "acil bench run, digits": digits,
            f"acil learn, {PHOTOGRAPHS} photographs": learn,
            "acil predict, one": lambda: command("predict", str(base), first),
            "POST /predict, one": answer,
        }


def _processor_seconds(pid: int) -> float:
    # Behind the name, which may have spaces: user and system time are the fields 14 and 15.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print one line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--neighbours", type=int, default=4)
    parser.add_argument("--images", type=Path, help="folder of photographs")
    parser.add_argument("--only", help="cases whose names contain this")
    parser.add_argument("--out", type=Path, help="JSON file of what was measured")
    given = parser.parse_args(arguments)
    images, found = photographs(given.images, 20 + PHOTOGRAPHS), {}
    with tempfile.TemporaryDirectory() as folder, cases(Path(folder), images) as known:
        print(f"{'':32} {'idle, s':>9} {'busy, s':>9} {'times':>6} {'CPU, s':>8} {'busy':>8}")
        for name, case in known.items():
            if given.only is not None and given.only not in name:
                continue
            idle, busy = [], []
            for _ in range(given.rounds):
                idle.append(case())
                with neighbours(given.neighbours):
                    busy.append(case())
            wall, cpu = (statistics.median(column) for column in zip(*idle, strict=True))
            slow, used = (statistics.median(column) for column in zip(*busy, strict=True))
            line = f"{name:32} {wall:9.3f} {slow:9.3f} {slow / wall:6.2f} {cpu:8.3f} {used:8.3f}"
            print(line, flush=True)
            seconds = {"alone": wall, "busy": slow, "cpu_alone": cpu, "cpu_busy": used}
            found[name] = {**seconds, "times": slow / wall}
    if given.out is not None:
        facts = {"machine": cpu_name(), "rounds": given.rounds, "neighbours": given.neighbours}
        facts["photographs"] = PHOTOGRAPHS
        given.out.write_text(json.dumps({**facts, "cases": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
