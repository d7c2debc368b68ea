"""The benchmark of texts runs on small data, and fills its page and its plot."""

import gzip
import json
import sys
from functools import partial

import pytest

from acil import TextClassifier
from benchmarks import text
from support.texts import TOPICS, sentences, stand_in_for_minilm


def test_every_part_is_measured_and_the_page_is_filled(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    stand_in_for_minilm(monkeypatch)
    monkeypatch.setattr(text, "TextClassifier", partial(TextClassifier, expansion_size=48))
    for name, value in {"FEW": (1, 3), "SEEDS": 2, "WIDTHS": (24, 48), "FOLDS": 2, "PHASE": 1}.items():
        monkeypatch.setattr(text, name, value)
    columns = {key: text.RECALLS[key] for key in ("model", "new1", "new3", "old1", "old3")}
    monkeypatch.setattr(text, "RECALLS", columns)
    parts = {
        split: [[sentence, name] for name in TOPICS for sentence in sentences(name, n, seed)]
        for split, n, seed in (("train", 20, 0), ("test", 6, 1))
    }
    parts["oos_test"] = [[f"today tomorrow not it {number}", "oos"] for number in range(5)]
    file = tmp_path / "small.json.gz"
    with gzip.open(file, "wt") as stream:
        json.dump(parts, stream)
    page, record = tmp_path / "page.md", tmp_path / "record.json"
    page.write_text("<!-- generated: text -->\n<!-- end: text -->\n")
    given = [file, "--cache", tmp_path / "cache", "--record", record, "--page", page]
    for more in (["--plot", tmp_path / "few.png"], ["--widths"], ["--only", "few"]):
        monkeypatch.setattr(sys, "argv", ["text", *map(str, [*given, *more])])
        text.main()
    found = json.loads(record.read_text())
    assert found.keys() == {"whole", "few", "phases", "widths"}
    joint, phased = found["phases"]
    assert joint["difference"] <= 2.3e-16 * joint["condition"]
    assert joint["labels"] == 0
    assert joint["accuracy"] == phased["accuracy"] > 50  # chance is 33
    assert len(found["few"]) == 8
    shown = page.read_text()
    assert "| acil (2 draws) |" in shown
    assert "Ten intents at a time" in shown
    assert (tmp_path / "few.png").stat().st_size > 1000
