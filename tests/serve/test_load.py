"""Many clients at a time: no error, and no answer from a half-changed model."""

import asyncio
import json
import threading

import pytest

from support.serving import Client, client, images_of, wired

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


async def asked(port: int, request: bytes) -> tuple[int, dict]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    found = await answer(reader)
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
            tasks = [asked(port, requests[i % len(images)]) for i in range(1000)]
            return await asyncio.gather(*tasks)

        thread = threading.Thread(target=teach)
        thread.start()
        answers = asyncio.run(predict())
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


def test_the_benchmark_of_the_service_runs(place, capsys):
    from benchmarks.serving import main

    main(
        [
            "--clients",
            "2",
            "--images",
            "8",
            "--rounds",
            "1",
            "--backbone",
            f"onnx:{place / 'network.onnx'}",
        ]
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" at a time")[0] for line in lines] == ["1", "2"]
