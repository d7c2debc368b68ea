"""Many clients at a time: no error, no answer from a half-changed model, and batches pay."""

import asyncio
import json
import statistics
import threading
import time

import numpy as np
import pytest

from serving import Client, client, images_of, started, wired

#: Scores of a batch and of a single row go through other matrix products.
SCORES = 1e-9


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next(
        int(line.split(":")[1]) for line in head.lower().splitlines() if "content-length" in line
    )
    return int(head.split()[1]), json.loads(await reader.readexactly(length))


def predictions(images: list[bytes]) -> list[bytes]:
    """Return requests as they go over the wire: made beforehand, a thousand are sent at a time."""
    return [wired([image], "/predict?top=100") for image in images]


async def asked(port: int, requests: list[bytes], times: list[float] | None = None) -> list:
    """Send requests one after another over one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = []
    for request in requests:
        begin = time.perf_counter()
        writer.write(request)
        found.append(await answer(reader))
        if times is not None:
            times.append(time.perf_counter() - begin)
    writer.close()
    await writer.wait_closed()
    return found


def test_thousand_predictions_while_twenty_classes_are_taught(settings):
    names = [f"class {i}" for i in range(20)]
    batches = [images_of(name, 3) for name in names]
    images = [image for name in ("red", "blue", *names[::4]) for image in images_of(name, 3, seed=1)]
    requests = predictions(images)
    with client(settings()) as served:
        store = served.service.store
        states = {}
        for name in ("red", "blue"):
            served.teach(name, images_of(name, 5))
        states[store.published.revision] = store.published
        failures = []

        def teach():
            with Client(base_url=served.base_url, timeout=120) as teacher:
                for name, batch in zip(names, batches, strict=True):
                    report = teacher.teach(name, batch)
                    if report.status_code != 200:
                        failures.append(report.text)
                        return
                    # Nobody else teaches: what is published now is what this request made.
                    states[report.json()["revision"]] = store.published

        async def predict():
            port = served.base_url.port
            tasks = [asked(port, [requests[i % len(images)]]) for i in range(1000)]
            return await asyncio.gather(*tasks)

        thread = threading.Thread(target=teach)
        thread.start()
        answers = [found for (found,) in asyncio.run(predict())]
        thread.join()
        assert failures == []
        assert [status for status, _ in answers if status != 200] == []
        assert len(states) == 21
        revisions = {found["revision"] for _, found in answers}
        assert revisions <= set(states)
        assert len(revisions) > 1
        features = store.reader.prepare(images, "any").features
        above, names = served.service.settings.unknown_above, [""] * len(features)
        expected = {
            revision: states[revision].snapshot.classify(features, names, 100, above)
            for revision in revisions
        }
        for number, (_, found) in enumerate(answers):
            (prediction,) = found["predictions"]
            right = expected[found["revision"]][number % len(images)]
            assert (prediction["label"], prediction["unknown"]) == (right.label, right.unknown)
            assert prediction["novelty"] == pytest.approx(right.novelty, rel=SCORES)
            shares = {entry["label"]: entry["probability"] for entry in prediction["top"]}
            assert shares == pytest.approx(dict(right.top), rel=SCORES)


@pytest.mark.slow
def test_32_clients_get_more_than_one(tmp_path, capsys):
    """Throughput of 32 clients against one client in the same run, with the 95th percentile."""
    # Of a small network, most of the time is that of HTTP, which batches do not save.
    options, number = ["--backbone", "efficientnet-lite0"], 160
    with started(tmp_path / "m.acil", *options, "--no-token", cwd=tmp_path) as (_, address):
        with Client(base_url=address, timeout=120) as served:
            for name in ("red", "blue", "green"):
                assert served.teach(name, images_of(name, 3)).status_code == 200
        port = int(address.rpartition(":")[2])
        requests = predictions(images_of("red", number, seed=1))

        async def measured(clients):
            times, share = [], number // clients
            begin = time.perf_counter()
            tasks = [asked(port, requests[i * share : (i + 1) * share], times) for i in range(clients)]
            found = await asyncio.gather(*tasks)
            seconds = time.perf_counter() - begin
            assert all(status == 200 for part in found for status, _ in part)
            return number / seconds, 1000 * statistics.quantiles(times, n=20)[-1]

        asyncio.run(asked(port, requests[:32]))
        # Taking turns: a machine that is busy for a while slows both.
        rounds = [(asyncio.run(measured(1)), asyncio.run(measured(32))) for _ in range(3)]
        alone, together = (np.median([r[i] for r in rounds], axis=0) for i in (0, 1))
        with capsys.disabled():
            print(
                f"\none client {alone[0]:.0f} images/s (p95 {alone[1]:.1f} ms), 32 clients "
                f"{together[0]:.0f} images/s (p95 {together[1]:.1f} ms): {together[0] / alone[0]:.2f} x"
            )
        assert together[0] >= 1.3 * alone[0]
