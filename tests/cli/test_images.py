"""The commands for own images, end to end on small generated pictures."""

import csv
import io
import json
import random
import shutil
import signal
import time

import pytest
from rich.cells import cell_len

from acil import ImageClassifier
from acil.cli import predict
from acil.cli.shared import counted, table
from acil.core.files import describe, saving
from support.commands import acil
from support.forks import Command
from support.pictures import draw, network_file

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def counts(model):
    """Return how many samples of each class a model has learnt."""
    return dict(zip(describe(model)["classes"], describe(model)["counts"], strict=True))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    draw(folder / "train", 5)
    draw(folder / "test", 3, seed=1)
    network_file(folder / "network.onnx")
    network = f"onnx:{folder / 'network.onnx'}"
    acil("learn", folder / "train", "--model", folder / "all.acil", "--backbone", network)
    return folder


@pytest.fixture
def network(place):
    return f"onnx:{place / 'network.onnx'}"


@pytest.fixture(autouse=True)
def network_beside(place, tmp_path):
    """Put the network beside the models of a test, which name it without its folder."""
    (tmp_path / "network.onnx").symlink_to(place / "network.onnx")


@pytest.fixture
def model(place, tmp_path):
    copy = tmp_path / "m.acil"
    copy.write_bytes((place / "all.acil").read_bytes())
    return copy


def test_learn_reports_classes_time_and_speed(place, model):
    result = acil("learn", place / "test" / "red", "--class", "red", "--model", model, "--json")
    report = json.loads(result.stdout)
    assert report["counts"] == {"red": 3}
    assert report["totals"] == {"blue": 5, "green": 5, "red": 8, "white": 5}
    assert report["images_per_second"] > 0
    assert report["seconds"] > 0
    assert describe(model)["n_samples"] == 23
    again = acil("learn", place / "test" / "red", "--class", "red", "--model", model, "--json")
    assert json.loads(again.stdout)["images_per_second"] > 0, "images left out were read, too"


def test_csv_lists_and_single_files_are_learnt(place, tmp_path, network):
    rows = [f"train/{name}/0-{i}.png,{name}" for name in ("red", "blue") for i in range(3)]
    (place / "list.csv").write_text("path,label\n" + "\n".join(rows) + "\n")
    model = tmp_path / "m.acil"
    acil("learn", place / "list.csv", "--model", model, "--backbone", network)
    files = sorted((place / "train" / "green").iterdir())[:2]
    acil("learn", *files, "--class", "green", "--model", model)
    assert counts(model) == {"blue": 3, "green": 2, "red": 3}


def test_several_folders_are_learnt_at_once(place, tmp_path, network):
    model = tmp_path / "m.acil"
    linked = tmp_path / "pink"
    linked.symlink_to(place / "train" / "red")
    folders = [linked, place / "train" / "blue", draw(tmp_path / "more", 2, seed=4)]
    acil("learn", *folders, "--model", model, "--backbone", network)
    assert counts(model) == {"blue": 7, "green": 2, "pink": 5, "red": 2, "white": 2}
    acil("forget", model, *folders[:2])
    assert counts(model) == {"blue": 2, "green": 2, "red": 2, "white": 2}
    assert "no class folders" in acil("learn", folders[0], "--model", model, code=1).stderr
    image = next(folders[0].iterdir())
    assert "which class" in acil("learn", image, image, "--model", model, code=1).stderr


@pytest.mark.parametrize("command", ["learn", "forget"])
def test_a_command_that_changes_a_model_reads_its_sums_once(place, model, monkeypatch, command):
    names, read = [], saving._read
    monkeypatch.setattr(
        saving, "_read", lambda get, name, *rest: names.append(name) or read(get, name, *rest)
    )
    where = ["--model", model] if command == "learn" else [model]
    images = [place / "train" / "red", "--class", "red"]
    acil(command, *(images + where if command == "learn" else where + images))
    assert sorted(names) == ["coef", "gram", "intercept", "mixing", "moment", "total"]


@pytest.mark.parametrize(
    ("gamma", "words"), [("auto", "chosen from the sums (auto)"), ("2", "2, fixed")]
)
def test_gamma_is_a_number_or_auto(place, tmp_path, gamma, words, network):
    model = tmp_path / "m.acil"
    acil("learn", place / "train", "--model", model, "--backbone", network, "--gamma", gamma)
    shown = acil("inspect", model).stdout
    assert words in shown
    assert "condition κ" in shown
    assert "discriminant" in shown
    assert "measured on samples that count as 1" in shown
    result = acil("learn", place / "train", "--model", tmp_path / "n.acil", "--gamma", "best", code=2)
    assert "auto" in result.stderr


def test_what_cannot_be_learnt_is_told_before_any_work(place, model, tmp_path):
    before = model.read_bytes()
    result = acil("learn", place / "train", "--model", model, "--gamma", "2", code=1)
    assert "chosen when it was made" in result.stderr
    assert model.read_bytes() == before
    result = acil("learn", place / "train", "--model", tmp_path / "no" / "m.acil", code=1)
    assert "Create it first" in result.stderr


def test_predict_in_every_format(place, model):
    images = sorted((place / "test" / "red").iterdir())
    for options in (["--json"], ["--format", "json"]):
        found = json.loads(acil("predict", model, *images, *options, "--unknown-above", 0).stdout)
        assert [row["label"] for row in found] == ["red"] * 3
        assert [row["image"] for row in found] == [*map(str, images)]
        assert sum(top["probability"] for top in found[0]["top"]) <= 1 + 1e-9
    text = acil("predict", model, place / "test", "--format", "csv", "--top", 2).stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 12
    ranks = ("class1", "probability1", "class2", "probability2")
    assert list(rows[0]) == ["image", "label", "novelty", *ranks]
    table = acil("predict", model, images[0]).stdout
    assert "red" in table
    assert "novelty" in table
    result = acil("predict", model, place / "test", "--json", "--format", "csv", code=2)
    assert "contradicts" in result.stderr
    assert not result.stdout


def test_predictions_are_written_and_images_sorted_by_them(place, tmp_path):
    model = place / "all.acil"
    shutil.copytree(place / "test", tmp_path / "test")
    (tmp_path / "test" / "bad.png").write_bytes(b"no image")
    out, folder = tmp_path / "out.jsonl", tmp_path / "sorted"
    done = acil("predict", model, tmp_path / "test", "-o", out, "--sort-into", folder)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(lines) == 13
    expected = {line["image"]: line["label"] for line in lines if line["error"] is None}
    assert {str(p.readlink()): p.parent.name for p in folder.glob("*/*")} == expected
    assert "bad.png" in done.stderr
    assert "exists" in acil("predict", model, tmp_path / "test", "--sort-into", folder, code=1).stderr
    acil("predict", model, tmp_path / "test", "--sort-into", tmp_path / "copied", "--copy")
    assert (
        len([p for p in (tmp_path / "copied").glob("*/*") if p.is_file() and not p.is_symlink()]) == 12
    )


def test_suggested_images_are_linked_in_their_order(place, tmp_path):
    model, folder = place / "all.acil", tmp_path / "next"
    done = acil("suggest", model, place / "test", place / "train", "--top", 10, "--links", folder)
    links = sorted(folder.iterdir())
    assert [p.name.split("-")[0] for p in links] == [f"{rank:02}" for rank in range(1, 11)]
    found = json.loads(acil("suggest", model, place / "test", "--top", 10, "--json").stdout)
    assert [str(p.readlink()) for p in links] == [each["image"] for each in found]
    assert "10 links" in done.stderr
    assert "nothing to suggest: all of 20 samples" in acil("suggest", model, place / "train").stderr


def test_wide_letters_keep_columns_in_line(place, tmp_path, network):
    names = {"red": "日本 語", "blue": "Größe", "green": "two words"}
    for colour, name in names.items():
        (tmp_path / "images" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "images" / name).symlink_to(place / "train" / colour)
    model = tmp_path / "m.acil"
    lines = acil("learn", tmp_path / "images", "--model", model, "--backbone", network).stdout
    assert "\n日本 語          5         5\n" in lines
    assert "\ntwo words        5         5\n" in lines
    plot = tmp_path / "plot.png"
    found = acil("evaluate", model, tmp_path / "images", "--plot", plot)
    assert "\n日本 語    100.00 %\n" in found.stdout
    assert found.stderr.count("lacks a letter") == 1
    assert "Warning" not in found.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")
    texts = ["日本 語", "Größe", "e\u0301", "two words", "\x1b[2J"]
    lines = table([(text, 1) for text in texts], right=(1,)).split("\n")
    assert {cell_len(line) for line in lines} == {len("two words  1")}
    assert table([["\x1b[2J"]]) == "\\x1b[2J"


def test_every_bad_image_is_named_in_a_sentence_of_its_own(place, tmp_path, network):
    folder = tmp_path / "cat"
    folder.mkdir()
    for number in range(7):
        (folder / f"{number}.png").write_bytes(b"no image")
    shutil.copy(next((place / "train" / "red").iterdir()), folder / "good.png")
    model = tmp_path / "m.acil"
    told = acil("learn", folder, "--class", "cat", "--model", model, "--backbone", network, code=1)
    assert "7 of 8 images cannot be used; nothing was changed. Cannot read" in told.stderr
    assert told.stderr.count("Cannot read the image") == 5
    assert "the file. And 2 more. Or leave them out with --skip-bad." in told.stderr
    assert ".," not in told.stderr
    assert not model.exists()


def test_evaluate_counts_linked_folders_and_draws(place, model, tmp_path):
    for name in ("red", "blue"):
        (tmp_path / "linked" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "linked" / name).symlink_to(place / "test" / name)
    plot = tmp_path / "confusion.png"
    report = json.loads(acil("evaluate", model, tmp_path / "linked", "--json", "--plot", plot).stdout)
    assert report["accuracy"] == 100.0
    assert report["per_class"] == {"blue": 100.0, "red": 100.0}
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "exists" in acil("evaluate", model, tmp_path / "linked", "--plot", plot, code=1).stderr
    acil("evaluate", model, tmp_path / "linked", "--plot", plot, "--force")
    assert "accuracy 100.00 %" in acil("evaluate", model, tmp_path / "linked").stdout


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 classes"), (1, "1 class"), (2, "2 classes"), (12_345, "12,345 classes")]
)
def test_numbers_agree_with_their_nouns(number, words):
    assert counted(number, "class", "classes") == words
    assert counted(number, "class").endswith("s" if number != 1 else "class")


def test_forget_says_what_is_gone_and_refuses_what_was_never_learnt(place, model):
    acil("learn", place / "test", "--model", model, "--no-track")
    before, image = model.read_bytes(), min((place / "train" / "red").iterdir())
    refused = acil("forget", model, image, "--class", "blue", code=1)
    assert "under these classes" in refused.stderr
    assert model.read_bytes() == before
    acil("forget", model, place / "test" / "red", "--class", "red")
    result = acil("forget", model, place / "train" / "red", "--class", "red")
    assert "no longer known: red" in result.stdout
    # Whether the network was trained on these images is not known here.
    assert "The network in front of it forgets nothing" in result.stdout
    assert list(counts(model)) == ["blue", "green", "white"]
    again = acil("forget", model, place / "train" / "red", "--class", "red", code=1)
    assert "never learnt" in again.stderr


def test_merge_adds_models_and_overwrites_nothing(place, model, tmp_path, network):
    out, other = tmp_path / "merged.acil", tmp_path / "other.acil"
    assert "common past" in acil("merge", model, place / "all.acil", "-o", out, code=1).stderr
    acil("learn", place / "train", "--model", other, "--backbone", network)
    report = json.loads(acil("merge", model, other, "-o", out, "--json").stdout)
    assert report["totals"] == dict.fromkeys(("blue", "green", "red", "white"), 10)
    image = next((place / "train" / "red").glob("*.png"))
    # Both had learnt it.
    assert "still has" in acil("forget", out, image, "--class", "red").stdout
    assert "never learnt it" in acil("forget", out, image, "--class", "red").stdout
    assert "exists" in acil("merge", model, model, "-o", out, code=1).stderr
    assert "at least two" in acil("merge", model, "-o", tmp_path / "x.acil", code=1).stderr
    small = tmp_path / "small.acil"
    acil("export", model, "--inference", small)
    for pair in ((model, small), (small, model)):
        refused = acil("merge", *pair, "-o", tmp_path / "x.acil", code=1).stderr
        assert f"{small} can only predict" in refused
    rows, full = tmp_path / "rows.csv", tmp_path / "rows.acil"
    rows.write_text("f,g,label\n1,2,a\n3,4,b\n")
    acil("learn", rows, "--model", full)
    acil("export", full, "--inference", small, "--force")
    assert f"{small} can only predict" in acil("merge", full, small, "-o", out, "--force", code=1).stderr
    assert json.loads(acil("merge", full, full, "-o", rows.with_suffix(".both"), "--json").stdout) == {
        "model": str(rows.with_suffix(".both")),
        "totals": {"a": 2, "b": 2},
        "held_out": None,
    }
    before = counts(other)
    acil("merge", other, model, "-o", other, "--force")
    assert counts(other) != before
    acil("undo", other)
    assert counts(other) == before
    shown = acil("merge", model, other, "-o", tmp_path / "again.acil").stdout
    assert shown.startswith("blue   10\ngreen  10\nred    10\n")


def test_torchrun_is_refused(place, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused = acil("learn", place / "train", "--model", tmp_path / "x.acil", code=1)
    assert "acil merge" in refused.stderr
    assert not (tmp_path / "x.acil").exists()


def test_image_that_was_learnt_is_left_out_and_told(place, model):
    before = model.read_bytes()
    result = acil("learn", place / "train" / "red", "--class", "red", "--model", model)
    assert "left out: 5 images learnt already" in result.stderr
    assert "another class" not in result.stderr
    assert result.stdout == f"nothing new: {model} is unchanged\n"
    other = acil("learn", place / "train" / "red", "--class", "pink", "--model", model)
    assert "nothing learnt of pink: all its images were learnt under another class" in other.stderr
    assert model.read_bytes() == before
    assert json.loads(acil("inspect", model, "--json").stdout)["images"]["tracked"] == 20
    image = next((place / "train" / "red").iterdir())
    moved = acil("learn", image, "--class", "blue", "--model", model, "--json")
    hint = f"1 of them was learnt as another class: to correct that, acil forget {model} IMAGE"
    assert hint in moved.stderr
    assert json.loads(moved.stdout)["misplaced"] == [str(image)]
    refused = acil("forget", model, image, "--class", "blue", code=1)
    assert "learnt as another class than 'blue'" in refused.stderr
    assert model.read_bytes() == before
    assert "This holds if" not in acil("forget", model, image, "--class", "red").stderr


def test_an_image_that_is_there_twice_names_its_twin(place, tmp_path, network):
    folder, model = tmp_path / "cat", tmp_path / "m.acil"
    shutil.copytree(place / "train" / "red", folder)
    first = min(folder.iterdir())
    shutil.copy(first, folder / "same.png")
    new = ["learn", folder, "--class", "cat", "--model", model]
    report = acil(*new, "--backbone", network)
    assert f"left out: 1 image given twice ({folder / 'same.png'} is {first})" in report.stderr
    assert "learnt already" not in report.stderr
    assert "another class" not in report.stderr
    # Learnt before, both are known, whatever lies beside them.
    shutil.copy(min((place / "test" / "red").iterdir()), folder / "new.png")
    report = acil(*new, "--json")
    assert "left out: 6 images learnt already" in report.stderr
    assert "given twice" not in report.stderr
    assert json.loads(report.stdout)["twins"] == []


def test_what_two_states_give_away_is_told_once_after_the_result(place, model):
    told = f"Whoever has {model} as it was and as it is can recover the features of 1 sample: docs/pri"
    images = sorted((place / "test" / "red").iterdir())
    first, *others = (acil("learn", image, "--class", "red", "--model", model) for image in images)
    assert first.stderr.count(told) == first.stderr.count("recover") == 1
    assert first.output.index("in model") < first.output.index(told)
    assert not any("recover" in result.stderr for result in others)


def test_classes_that_are_numbers_are_shown_as_numbers(tmp_path):
    rows, model = tmp_path / "rows.csv", tmp_path / "m.acil"
    names = ["100", "9", "10", "-1"]
    rows.write_text(
        "f,g,label\n" + "".join(f"{i},{i * i},{n}\n{i + 1},{i},{n}\n" for i, n in enumerate(names))
    )
    commands = (
        *(("learn", rows, "--model", model), ("inspect", model), ("evaluate", model, rows)),
        *(("merge", model, model, "-o", tmp_path / "both.acil"), ("learn", rows, "--model", model)),
        ("undo", model),
    )
    for command in commands:
        words = [line.split() for line in acil(*command).stdout.splitlines() if line]
        assert [first for first, *_ in words if first in names] == ["-1", "9", "10", "100"], command
    totals = json.loads(acil("learn", rows, "--model", model, "--json").stdout)["totals"]
    assert [*totals] == ["-1", "9", "10", "100"]
    assert ImageClassifier.load(model).classes_ == describe(model)["classes"] == sorted(names)


def test_commands_to_copy_quote_paths(place, model):
    spaced = model.with_name("my model.acil")
    shutil.copy(model, spaced)
    learnt = acil("learn", place / "test" / "red", "--class", "red", "--model", spaced)
    assert f"acil undo '{spaced}' takes" in learnt.stderr
    image = next((place / "test" / "red").iterdir())
    moved = acil("learn", image, "--class", "blue", "--model", spaced)
    assert f"acil forget '{spaced}' IMAGE" in moved.stderr
    forgot = acil("forget", spaced, image, "--class", "red")
    assert f"acil undo '{spaced}' takes" in forgot.stderr
    assert f"acil undo '{spaced}' --remove" in forgot.stderr
    private = ("--private", model.with_name("my release.acil"), "--epsilon", 1)
    refused = acil("export", spaced, *private, "--onnx", model.with_name("x.onnx"), code=1)
    assert f"acil export '{private[1]}' --onnx FILE" in refused.stderr


def test_a_new_model_says_what_it_stores_of_images_and_may_store_nothing(place, tmp_path, network):
    learn = ["learn", place / "train", "--backbone", network, "--model"]
    assert "salted hash of each image" in acil(*learn, tmp_path / "a.acil").stderr
    model = tmp_path / "b.acil"
    assert "hash" not in acil(*learn, model, "--no-track").stderr
    acil(*learn, model)
    assert describe(model)["n_samples"] == 40
    result = acil("forget", model, place / "train" / "red", "--class", "red")
    assert "This holds if they had been learnt under the class given" in result.stderr


def test_undo_takes_back_learning_and_forgetting(place, model):
    states = [model.read_bytes()]
    told = acil("learn", place / "test" / "red", "--class", "red", "--model", model)
    assert f"acil undo {model} takes this back" in told.stderr
    states.append(model.read_bytes())
    told = acil("forget", model, place / "train" / "blue", "--class", "blue")
    assert "they still have these images" in told.stderr
    for state, left in zip(reversed(states), (1, 0), strict=True):
        found = json.loads(acil("undo", model, "--json").stdout)
        assert (found["undo_left"], model.read_bytes()) == (left, state)
    assert "nothing to undo" in acil("undo", model, code=1).stderr
    acil("forget", model, place / "train" / "blue", "--class", "blue")
    table = acil("undo", model).stdout
    assert "blue         5         5" in table
    assert "green" not in table


def test_no_earlier_state_stays_where_none_may(place, model):
    acil("learn", place / "test" / "red", "--class", "red", "--model", model)
    folder = model.with_name(f".{model.name}.undo")
    assert folder.exists()
    images = sorted((place / "test" / "red").iterdir())
    found = acil("forget", model, images[0], "--class", "red", "--json").stdout
    assert json.loads(found)["undo_left"] == 2
    told = acil("forget", model, *images[1:], "--class", "red", "--no-undo")
    assert "undo" not in told.stderr
    assert not folder.exists()
    acil("learn", place / "test" / "red", "--class", "red", "--model", model)
    assert "removed 1 earlier state" in acil("undo", model, "--remove").stderr
    assert not folder.exists()
    acil("learn", place / "test" / "blue", "--class", "blue", "--model", model, "--no-undo")
    assert not folder.exists()


def test_inference_file_is_small_and_predicts(place, model, tmp_path):
    small = tmp_path / "small.acil"
    acil("export", model, "--inference", small)
    assert small.stat().st_size < model.stat().st_size / 2
    found = acil("predict", small, place / "test" / "red", "--json")
    assert [row["label"] for row in json.loads(found.stdout)] == ["red"] * 3
    assert "cannot tell what is unknown" in found.stderr
    found = acil("evaluate", small, place / "test")
    assert "cannot tell what is unknown" in found.stderr
    assert "called unknown" not in found.output
    assert "exists" in acil("export", model, "--inference", small, code=1).stderr
    assert "Say what to write" in acil("export", model, code=1).stderr


def test_bad_image_is_named_and_may_be_left_out(place, model, tmp_path):
    folder = tmp_path / "mixed"
    folder.mkdir()
    (folder / "good.png").write_bytes((place / "test" / "red" / "1-0.png").read_bytes())
    (folder / "bad.png").write_bytes(b"")
    before = model.read_bytes()
    result = acil("learn", folder, "--class", "red", "--model", model, code=1)
    assert "bad.png" in result.stderr
    assert "--skip-bad" in result.stderr
    assert model.read_bytes() == before
    refused = acil("forget", model, folder, "--class", "red", code=1).stderr
    assert "bad.png" in refused
    assert "--skip-bad" not in refused
    result = acil("learn", folder, "--class", "red", "--model", model, "--skip-bad")
    assert "left out" in result.stderr
    assert describe(model)["n_samples"] == 21


def test_missing_files_of_a_list_are_counted_and_may_be_left_out(place, model, tmp_path):
    folder, before = tmp_path / "listed", model.read_bytes()
    shutil.copytree(place / "test" / "red", folder)
    names = ["gone.png", *sorted(path.name for path in folder.iterdir()), "lost.png"]
    (folder / "list.csv").write_text("".join(f"{name},red\n" for name in names))
    told = acil("learn", folder / "list.csv", "--model", model, code=1).stderr
    assert "2 of 5 images are missing; nothing was changed. The first is" in told
    assert "gone.png" in told
    assert "--skip-bad" in told
    assert "2 of 5" in acil("evaluate", model, folder / "list.csv", "--strict", code=1).stderr
    assert model.read_bytes() == before
    for command in (
        *(("predict", model, folder / "list.csv"), ("evaluate", model, folder / "list.csv")),
        ("learn", folder / "list.csv", "--model", model, "--skip-bad"),
    ):
        told = acil(*command).stderr
        assert told.count("left out: Cannot read the image") == 2
        assert "gone.png" in told
        assert "lost.png" in told
    assert describe(model)["n_samples"] == 23


def test_predict_and_evaluate_go_on_past_a_bad_file(place, model, tmp_path):
    folder = tmp_path / "images" / "red"
    shutil.copytree(place / "test" / "red", folder)
    (folder / "bad.png").write_bytes(b"")
    for command, images in (("predict", folder), ("evaluate", folder.parent)):
        for options in ([], ["--skip-bad"]):
            found = acil(command, model, images, *options)
            assert "left out: Cannot read the image" in found.stderr
            assert "bad.png" in found.stderr
            assert (found.stdout.count(".png") == 3) == (command == "predict")
            assert ("of 3 samples" in found.stdout) == (command == "evaluate")
        assert "bad.png" in acil(command, model, images, "--strict", code=1).stderr
    errors = [row["error"] for row in json.loads(acil("predict", model, folder, "--json").stdout)]
    assert [error is None for error in errors] == [True, True, True, False]
    report = json.loads(acil("evaluate", model, folder.parent, "--json").stdout)
    assert (report["images"], len(report["skipped"])) == (3, 1)
    assert "1 of 1 images cannot be used" in acil("predict", model, folder / "bad.png", code=1).stderr


def test_evaluate_names_wrong_and_doubtful_images(place, model, tmp_path, monkeypatch):
    images = tmp_path / "images"
    shutil.copytree(place / "test", images)
    for name in ("1-0.png", "1-1.png"):
        shutil.move(images / "red" / name, images / "blue" / f"not-{name}")
    table = acil("evaluate", model, images, "--show", 1).stdout.splitlines()
    assert "taken for red" in table[4]
    assert "not-1-" in table[4]
    assert table[5] == "… and 1 more wrong"
    assert table[-1].startswith("accuracy 83.33 %")
    monkeypatch.setattr(predict, "_SURE", 1.1)
    table = acil("evaluate", model, images, "--show", 1).stdout.splitlines()
    assert table[6].startswith("doubtful")
    assert table[7:] == table[-1:]
    monkeypatch.setattr(predict, "_SURE", 0.0)
    assert "doubtful" not in acil("evaluate", model, images).stdout
    report = json.loads(acil("evaluate", model, images, "--json").stdout)
    wrong = [row["top"][0]["probability"] for row in report["wrong"]]
    right = [row["top"][0]["probability"] for row in report["right"]]
    assert (len(wrong), len(right)) == (2, 10)
    assert (wrong, right) == (sorted(wrong, reverse=True), sorted(right))
    assert {row["class"] for row in report["wrong"]} == {"blue"}


def learning(folder, model, *options):
    """Start `acil learn` of one class as a process."""
    arguments = ("learn", folder, "--class", folder.name, "--model", model, *options)
    return Command(*arguments, cwd=model.parent, said=model.parent / f"said of {folder.name}")


def test_two_commands_at_once_give_both_results(place, tmp_path, network):
    model = tmp_path / "m.acil"
    folders = [place / "train" / name for name in ("red", "blue")]
    for process in [learning(folder, model, "--backbone", network) for folder in folders]:
        assert process.wait() == 0, process.stderr.read_text()
    assert counts(model) == {"blue": 5, "red": 5}


@pytest.mark.slow
def test_kill_at_any_moment_leaves_the_old_or_the_new_model(place, model):
    """Twenty kills, spread over the time the command takes."""
    red = place / "test" / "red", model
    learning(*red, "--no-track").wait()  # which also starts the server of forks
    begin = time.perf_counter()
    learning(*red).wait()
    duration = time.perf_counter() - begin
    chance = random.Random(0)
    outcomes = set()
    for _ in range(20):
        before = describe(model)["n_samples"]
        process = learning(*red)
        time.sleep(duration * chance.uniform(0.3, 1.1))
        process.send_signal(signal.SIGKILL)
        process.wait()
        after = ImageClassifier.load(model).snapshot.head.n_samples_
        assert after in (before, before + 3)
        outcomes.add(after - before)
    assert 0 in outcomes
    learning(*red).wait()
    assert not list(model.parent.glob(".acil-*.tmp"))
