"""Measure how many images a second `acil serve` classifies, for one client and for many at a time.

    python -m benchmarks.serving [--clients 32] [--images 160] [--rounds 5] [--backbone NAME]
    python -m benchmarks.serving --texts [--rounds 5]

A client sends its requests one after another, one image each. One and many take turns, so that both meet
the same machine; the medians over the rounds are printed, with the 95th percentile of the answers.

With --texts: CPU of the server for a request of one sentence, to a model of 150 classes with the default
network, beside that of the network and of the products of the head alone.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from benchmarks.attack import served, teach
from benchmarks.attackers import photograph, upload

#: Of the model of texts, and that it is asked about.
CLASSES, SENTENCES = 150, 100


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


def cpu_seconds(pid: int) -> float:
    """Return what all threads of a process have used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def of_texts(rounds: int) -> str:
    """Return the CPU of a request of one sentence, and of what it needs in any case, in words."""
    from acil import TextClassifier

    chosen = random.Random(0)
    words = ["card", "cash", "flight", "hotel", "rain", "snow", "pay", "book", "lost", "my", "the", "is"]
    sentences = [" ".join(chosen.choices(words, k=9)) for _ in range(4 * CLASSES + SENTENCES)]
    learnt, asked_for = sentences[SENTENCES:], sentences[:SENTENCES]
    model = TextClassifier()
    model.learn(learnt, [f"class {i % CLASSES}" for i in range(len(learnt))])
    encoder, head = model.embedder, model.snapshot.solved()
    rows = [encoder.encode([text]).features for text in asked_for]

    def each(work: Callable[[], object]) -> float:
        begun = time.process_time()
        work()
        return (time.process_time() - begun) / SENTENCES

    network, product, server = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "m.acil")
        with served(Path(folder) / "m.acil") as (process, port):
            address = f"http://127.0.0.1:{port}/predict"
            for _ in range(rounds + 1):  # the first warms up
                network.append(each(lambda: [encoder.encode([text]) for text in asked_for]))
                product.append(each(lambda: [head.decision_function(row) for row in rows]))
                begun = cpu_seconds(process.pid)
                for text in asked_for:
                    httpx.post(address, json={"texts": [text]}).raise_for_status()
                server.append((cpu_seconds(process.pid) - begun) / SENTENCES)
    found = [1000 * statistics.median(column[1:]) for column in (server, network, product)]
    return "one sentence: {:.1f} ms of CPU, network {:.1f} ms, products {:.1f} ms".format(*found)


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print one line for one client and one for many."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--images", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backbone", help="network of the model, by default that of acil serve")
    parser.add_argument("--texts", action="store_true", help="CPU of a request of one sentence")
    given = parser.parse_args(arguments)
    if given.texts:
        print(of_texts(given.rounds))
        return
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
