"""Predictions as files: tables that no spreadsheet runs, and folders by class, whole or not at all."""

import csv
import json
import time

import pandas
import pytest

from acil.cli import shared
from acil.errors import InputError, MissingExtraError
from acil.growing.outputs import link_into, quoted, sort_into, write_predictions
from acil.growing.results import Prediction
from support.commands import acil

DANGEROUS = ["=cmd|' /C calc'!A0", "+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "＝1"]


def prediction(image, label="cat", unknown=False):
    top = (("cat", 0.75), ("dog", 0.25))
    return Prediction(str(image), "unknown" if unknown else label, unknown, top, 0.5)


@pytest.fixture
def found():
    bad = Prediction("bad.png", "", False, (), None, "bad.png: no image")
    return [prediction("a.png"), bad, prediction("b.png", unknown=True)]


@pytest.fixture
def images(tmp_path):
    """Three files, two of the same name."""
    files = [tmp_path / "one" / "x.png", tmp_path / "two" / "x.png", tmp_path / "two" / "y.png"]
    for number, file in enumerate(files):
        file.parent.mkdir(exist_ok=True)
        file.write_text(str(number))
    return files


def test_tables_have_a_line_for_each_sample_and_agree(found, tmp_path):
    for kind in ("csv", "jsonl", "parquet"):
        write_predictions(found, tmp_path / f"t.{kind}")
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    header = ["image", "label", "novelty", "class1", "probability1", "class2", "probability2"]
    assert list(rows[0]) == header
    table = pandas.read_parquet(tmp_path / "t.parquet")
    assert list(table) == header
    assert table["image"].tolist() == [row["image"] for row in rows] == ["a.png", "b.png"]
    assert table["probability1"].tolist() == [float(row["probability1"]) for row in rows] == [0.75] * 2
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert lines == [p.to_dict() for p in found]


@pytest.mark.parametrize("text", DANGEROUS)
def test_no_cell_is_a_formula(text, tmp_path):
    assert quoted(text) == f"'{text}"
    assert quoted(f"a{text}") == f"a{text}"
    sample = Prediction(text, text, False, ((text, 1.0),), None, thing="text")
    write_predictions([sample], tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="") as file:
        header, row = csv.reader(file)
    assert header[0] == "text"
    cell = f"'{text}".replace("\r", "\n")
    assert row == [cell, cell, "", cell, "1.000000"]
    write_predictions([sample], tmp_path / "t.jsonl")  # which no spreadsheet runs
    assert json.loads((tmp_path / "t.jsonl").read_text())["text"] == text


def test_names_of_other_kinds_and_missing_packages_are_told(found, tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"\.parquet, not .*\.txt"):
        write_predictions(found, tmp_path / "t.txt")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="pip install pandas pyarrow"):
        write_predictions(found, tmp_path / "t.parquet")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("copy", [False, True])
def test_images_are_sorted_into_a_folder_for_each_class(images, tmp_path, copy):
    answers = [prediction(images[0]), prediction(images[1]), prediction(images[2], unknown=True)]
    assert sort_into(tmp_path / "sorted", answers, copy) == {"cat": 2, "unknown": 1}
    made = {str(p.relative_to(tmp_path / "sorted")): p for p in (tmp_path / "sorted").glob("*/*")}
    assert {name: p.read_text() for name, p in made.items()} == {
        "cat/x.png": "0",
        "cat/x (2).png": "1",
        "unknown/y.png": "2",
    }
    assert all(p.is_symlink() != copy for p in made.values())
    assert not list(tmp_path.glob(".*"))


def test_a_folder_that_is_there_is_left_alone_and_a_failure_leaves_none(images, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with pytest.raises(InputError, match="exists"):
        sort_into(tmp_path / "full", [prediction(images[0])])
    assert (tmp_path / "full" / "file").read_text() == "mine"
    with pytest.raises(InputError, match="Nothing"):
        sort_into(tmp_path / "new", [*map(prediction, images), prediction("gone.png")], copy=True)
    with pytest.raises(InputError, match="no folder"):
        sort_into(tmp_path / "none" / "new", [prediction(images[0])])
    with pytest.raises(InputError, match="path"):
        sort_into(tmp_path / "new", [prediction(images[0], "../up")])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["full", "one", "two"]


def test_names_with_a_number_are_no_trap(images, tmp_path):
    names = ["x.png", "x (2).png", "x.png", "x.png"]
    link_into(tmp_path / "new", [(name, str(images[0])) for name in names])
    assert len(list((tmp_path / "new").iterdir())) == 4


def test_commands_write_tables_of_features(tmp_path):
    rows = ["a,b,label", *(f"{i % 2 + i / 100},{i / 50},{['=x', 'y'][i % 2]}" for i in range(20))]
    table, model, out = tmp_path / "t.csv", tmp_path / "m.acil", tmp_path / "out.csv"
    table.write_text("\n".join(rows))
    acil("learn", table, "--model", model)
    done = acil("predict", model, table, "--output", out)
    assert (done.stdout, "20 samples" in done.stderr) == ("", True)
    written = out.read_text()
    assert ",'=x," in written
    assert acil("predict", model, table, "--format", "csv").stdout == written
    assert "--force" in acil("predict", model, table, "--output", out, code=1).stderr
    acil("predict", model, table, "-o", out, "--force")
    assert "--sort-into" in acil("predict", model, table, "--copy", code=2).stderr
    assert "no files" in acil("predict", model, table, "--sort-into", tmp_path / "s", code=1).stderr
    assert "--links" in acil("suggest", model, table, "--copy", code=2).stderr
    assert "no files" in acil("suggest", model, table, "--links", tmp_path / "s", code=1).stderr
    listed = acil("suggest", model, table, "--top", 3).stdout.splitlines()
    assert [line.split()[0] for line in listed[1:]] == ["1", "2", "3"]
    found = json.loads(acil("suggest", model, table, "--top", 20, "--json").stdout)
    closeness = [each["closeness"] for each in found]
    assert closeness == sorted(closeness, reverse=True)
    acil("suggest", model, table, "--top", 5, "-o", tmp_path / "next.csv")
    with (tmp_path / "next.csv").open(newline="") as file:
        assert [row["image"] for row in csv.DictReader(file)] == [p["image"] for p in found[:5]]


def test_without_a_terminal_lines_tell_how_much_time_is_left(monkeypatch, capsys):
    monkeypatch.setattr(shared, "PAUSE", 0.05)
    with shared.progress_bars() as show:
        show("images", 0, 100)
        time.sleep(0.1)
        show("images", 50, 100)
        time.sleep(0.3)
    assert "images, 50 of 100, about 0 s left" in capsys.readouterr().err
