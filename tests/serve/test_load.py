"""Many clients at a time: no error, and no answer from a half-changed model."""

import asyncio
import json
import threading

import httpx
import pytest

from support.serving import Client, client, images_of, wired
from support.texts import TOPICS, sentences

#: Scores of a batch and of a single row go through other matrix products.
SCORES = 1e-9


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next(
        int(line.split(":")[1]) for line in head.lower().splitlines() if "content-length" in line
    )
    return int(head.split()[1]), json.loads(await reader.readexactly(length))


async def asked(port: int, request: bytes) -> tuple[int, dict]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    found = await answer(reader)
    writer.close()
    await writer.wait_closed()
    return found


def images(settings):
    """A server that knows red and blue, what teaches it a class, and requests with one image each."""

    def teach(client, name):
        return client.teach(name, images_of(name, 5 if name in ("red", "blue") else 3))

    asked_for = [image for name in ("red", "blue", *NEW[::4]) for image in images_of(name, 3, seed=1)]
    # Made beforehand, a thousand are sent at a time.
    return settings(), teach, asked_for, [wired([image], "/predict?top=100") for image in asked_for]


def texts(desk):
    """The same of texts."""

    def teach(client, name):
        topic = [*TOPICS][sum(name.encode()) % len(TOPICS)]
        return client.post(
            f"/classes/{name}", json={"texts": sentences(topic, 3, seed=sum(name.encode()))}
        )

    asked_for = [text for topic in TOPICS for text in sentences(topic, 4, seed=9)]
    requests = []
    for text in asked_for:
        made = httpx.Request("POST", "http://localhost/predict?top=100", json={"texts": [text]})
        lines = [f"{name}: {value}" for name, value in made.headers.items()]
        head = "\r\n".join(["POST /predict?top=100 HTTP/1.1", *lines, "", ""])
        requests.append(head.encode() + made.read())
    # As many of the few tokens that the small network reads may wait at a time.
    return desk(max_texts=1000), teach, asked_for, requests


NEW = [f"class {i}" for i in range(20)]


@pytest.mark.parametrize("kind", ["images", "texts"])
def test_thousand_predictions_while_twenty_classes_are_taught(kind, request):
    make, fixture = (images, "settings") if kind == "images" else (texts, "desk")
    settings, teach_one, asked_for, requests = make(request.getfixturevalue(fixture))
    with client(settings) as served:
        store = served.service.store
        states = {}
        for name in ("red", "blue"):
            assert teach_one(served, name).status_code == 200
        states[store.published.revision] = store.published
        failures = []

        def teach():
            with Client(base_url=served.base_url, timeout=120) as teacher:
                for name in NEW:
                    report = teach_one(teacher, name)
                    if report.status_code != 200:
                        failures.append(report.text)
                        return
                    # Nobody else teaches: what is published now is what this request made.
                    states[report.json()["revision"]] = store.published

        async def predict():
            port = served.base_url.port
            tasks = [asked(port, requests[i % len(requests)]) for i in range(1000)]
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
        features = store.reader.prepare(asked_for, "any").features
        above, names = served.service.settings.unknown_above, [""] * len(features)
        expected = {
            revision: states[revision].snapshot.classify(features, names, 100, above)
            for revision in revisions
        }
        for number, (_, found) in enumerate(answers):
            (prediction,) = found["predictions"]
            right = expected[found["revision"]][number % len(requests)]
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
