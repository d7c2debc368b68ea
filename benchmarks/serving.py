"""Measure how many images a second `acil serve` classifies, for one client and for many at a time.

    python -m benchmarks.serving [--clients 32] [--images 160] [--rounds 5] [--backbone NAME]

A client sends its requests one after another, one image each. One and many take turns, so that both meet
the same machine; the medians over the rounds are printed, with the 95th percentile of the answers.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.attack import served, teach
from benchmarks.attackers import photograph, upload


async def asked(port: int, requests: list[bytes]) -> list[float]:
    """Send requests one after another; return how long each answer took."""
    waits = []
    for request in requests:
        begun = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        answer = await reader.read()
        writer.close()
        if answer.split(maxsplit=2)[1:2] != [b"200"]:
            raise SystemExit(f"The server has answered {answer[:200]!r}.")
        waits.append(time.perf_counter() - begun)
    return waits


async def measured(port: int, requests: list[bytes], clients: int) -> tuple[float, float]:
    """Return images a second, and the 95th percentile of the seconds of an answer."""
    begun = time.perf_counter()
    parts = await asyncio.gather(*(asked(port, requests[i::clients]) for i in range(clients)))
    seconds = time.perf_counter() - begun
    waits = [wait for part in parts for wait in part]
    return len(requests) / seconds, statistics.quantiles(waits, n=20)[-1]


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print one line for one client and one for many."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--images", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backbone", help="network of the model, by default that of acil serve")
    given = parser.parse_args(arguments)
    requests = [upload("/predict", [photograph(seed=number)]) for number in range(given.images)]
    kinds = (1, given.clients)
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder) / "m.acil", given.backbone) as (_, port),
    ):
        teach(port)
        asyncio.run(asked(port, requests[:8]))
        turns = [(n, asyncio.run(measured(port, requests, n))) for n in kinds * given.rounds]
    for clients in kinds:
        found = [figures for n, figures in turns if n == clients]
        speed, wait = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"{clients} at a time: {speed:.0f} images/s, 95 % of answers within {1000 * wait:.0f} ms")


if __name__ == "__main__":
    main()
