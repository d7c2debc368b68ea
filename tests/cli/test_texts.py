"""The commands for own texts, end to end with a small network."""

import csv
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from acil import ImageClassifier, TextClassifier
from acil.cli import app, predict
from acil.core.files import describe
from acil.encoders.text import networks
from acil.growing import load_classifier
from support.commands import acil
from support.pictures import draw, network
from support.texts import TOPICS, sentences, stand_in_for_minilm, tiny_encoder

EACH = 12


@pytest.fixture(autouse=True)
def small_network(monkeypatch):
    stand_in_for_minilm(monkeypatch)


def write_table(path, n=EACH, seed=0, names=tuple(TOPICS)):
    """Write sentences of topics as a table."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows([text, name] for name in names for text in sentences(name, n, seed))
    return path


def counts(model):
    header = describe(model)
    return dict(zip(header["classes"], header["counts"], strict=True))


@pytest.fixture
def tickets(tmp_path):
    return write_table(tmp_path / "tickets.csv")


@pytest.fixture
def desk(tickets, tmp_path):
    acil("learn", tickets, "--model", tmp_path / "desk.acil", "--expansion-size", 48)
    return tmp_path / "desk.acil"


def test_learn_makes_a_model_of_texts_and_says_what_was_taken(tickets, tmp_path):
    path = tmp_path / "new.acil"
    result = acil("learn", tickets, "--model", path, "--expansion-size", 48)
    assert "tickets.csv: 36 texts from column 'text', labels from column 'label'" in result.stderr
    assert "a digest of each call of ten texts or more" in result.stderr
    assert describe(path)["encoder"] == "text"
    assert counts(path) == dict.fromkeys(sorted(TOPICS), EACH)
    report = json.loads(acil("learn", tickets, "--model", path, "--json").stdout)
    assert (report["counts"], len(report["repeated"])) == ({}, 36)
    again = acil("learn", tickets, "--model", path)
    assert "they were learnt together before" in again.stderr
    assert "nothing new" in again.stdout
    report = json.loads(acil("learn", tickets, "--model", path, "--no-track", "--json").stdout)
    assert report["totals"]["card"] == 2 * EACH
    assert report["texts_per_second"] > 0
    assert describe(path)["images"]["tracked"] == []


def test_one_class_of_a_folder_and_of_a_table_without_labels(desk, tmp_path):
    folder = tmp_path / "refund"
    folder.mkdir()
    for number, text in enumerate(sentences("card", 3, seed=4)):
        (folder / f"{number}.txt").write_text(text)
    acil("learn", folder, "--class", "refund", "--model", desk)
    (tmp_path / "lines.csv").write_text("text\nmy flight\nmy train\n")
    acil("learn", tmp_path / "lines.csv", "--class", "trip", "--model", desk)
    assert (counts(desk)["refund"], counts(desk)["trip"]) == (3, 2)
    result = acil("learn", tmp_path / "lines.csv", "--model", desk, code=1)
    assert "has no column of labels" in result.stderr
    result = acil("learn", tmp_path / "tickets.csv", "--class", "a", "--model", desk, code=1)
    assert "names the classes itself" in result.stderr
    # Folders inside are classes, and so are several folders.
    topics = tmp_path / "topics"
    for name in TOPICS:
        (topics / name).mkdir(parents=True)
        (topics / name / "a.txt").write_text(sentences(name, 1)[0])
    acil("learn", topics, "--model", tmp_path / "f.acil")
    acil("learn", *(topics / name for name in TOPICS), "--model", tmp_path / "g.acil")
    assert counts(tmp_path / "f.acil") == counts(tmp_path / "g.acil") == dict.fromkeys(sorted(TOPICS), 1)


def test_columns_are_named_and_tables_are_never_guessed(desk, tmp_path):
    odd = tmp_path / "odd.csv"
    odd.write_text("subject,body,queue\na,my card,card\nb,the rain,weather\n")
    result = acil("learn", odd, "--model", desk, code=1)
    assert "has no column 'text'; its columns are 'subject', 'body', 'queue'" in result.stderr
    # Without a model that says that it is of texts, such a table is one of features.
    result = acil("learn", odd, "--model", tmp_path / "new.acil", code=1)
    assert "is not of numbers" in result.stderr
    assert "--text-column" in result.stderr
    options = ("--text-column", "body", "--label-column", "queue")
    for model in (desk, tmp_path / "new.acil"):
        acil("learn", odd, *options, "--model", model)
    assert counts(tmp_path / "new.acil") == {"card": 1, "weather": 1}
    assert "accuracy" in acil("evaluate", desk, odd, *options).stdout


def test_a_bad_line_is_told_with_its_number_and_left_out_if_asked(desk, tmp_path):
    table = tmp_path / "bad.csv"
    table.write_bytes(b"text,label\nmy card,card\n,card\nsn\xffow,weather\nthe rain,weather\n")
    before = desk.read_bytes()
    result = acil("learn", table, "--model", desk, code=1)
    for told in ("Line 3: it is empty", "Line 4: it has bytes that are not UTF-8", "--skip-bad"):
        assert told in result.stderr
    assert desk.read_bytes() == before
    result = acil("learn", table, "--model", desk, "--skip-bad")
    assert result.stderr.count("left out: ") == 2
    assert counts(desk)["card"] == EACH + 1
    assert "accuracy" in acil("evaluate", desk, table).stdout
    assert "Line 3" in acil("evaluate", desk, table, "--strict", code=1).stderr
    report = json.loads(acil("evaluate", desk, table, "--json").stdout)
    assert (report["texts"], len(report["skipped"])) == (2, 2)
    assert "images" not in report
    assert {"class", "text", "label"} <= [*report["right"], *report["wrong"]][0].keys()


def test_duplicates_and_contradictions_are_told(desk, tmp_path):
    table = tmp_path / "twice.csv"
    table.write_text("text,label\nmy card,card\nmy card ,card\nthe rain,card\nthe rain,weather\n")
    result = acil("learn", table, "--model", desk)
    assert "2 texts come more than once, and count each time (my card, the rain)" in result.stderr
    assert "1 text comes under several classes, and counts for each (the rain)" in result.stderr
    assert counts(desk)["card"] == EACH + 3


def test_predict_takes_typed_texts_lines_and_tables(desk, tickets, tmp_path, monkeypatch):
    typed = json.loads(acil("predict", desk, "--text", "my card", "--text", "the rain", "--json").stdout)
    assert [found["text"] for found in typed] == ["my card", "the rain"]
    for where in (["-"], ["--text", "-"]):
        lines = {"input": b"my card\n\nthe rain\r\n"}
        piped = CliRunner().invoke(app, ["predict", str(desk), *where, "--json"], **lines)
        assert json.loads(piped.stdout) == typed
    # Only ends of lines divide texts.
    divided = {"input": "my\x0ccard\nthe\u2028rain".encode()}
    piped = CliRunner().invoke(app, ["predict", str(desk), "-", "--json"], **divided)
    assert [found["text"] for found in json.loads(piped.stdout)] == ["my\x0ccard", "the\u2028rain"]
    piped = CliRunner().invoke(app, ["predict", str(desk), "-"], input=b"\n\n")
    assert (piped.exit_code, "has no texts" in piped.stderr) == (1, True)
    out = tmp_path / "answers.csv"
    acil("predict", desk, tickets, "--output", out)
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 36
    assert {"text", "label", "novelty", "probability1"} <= rows[0].keys()
    # Labels are not looked at, so that a line needs none.
    (tmp_path / "open.csv").write_text("text,label\nmy card,\nthe rain,weather\n")
    assert len(json.loads(acil("predict", desk, tmp_path / "open.csv", "--json").stdout)) == 2
    long = acil("predict", desk, "--text", "rain " * 500).stdout
    assert len(long) < 200
    assert "--text" in acil("predict", desk, code=2).stderr
    assert "--text" in acil("predict", desk, tickets, "--text", "a", code=2).stderr
    assert "no files" in acil("predict", desk, tickets, "--sort-into", tmp_path / "s", code=1).stderr


def test_images_and_texts_are_not_mixed_up(desk, tmp_path):
    draw(tmp_path / "pictures", 2)
    result = acil("predict", desk, tmp_path / "pictures", code=1)
    assert "is a model of texts, and" in result.stderr
    of_images = ImageClassifier(network())
    of_images.learn(tmp_path / "pictures")
    of_images.save(tmp_path / "i.acil")
    for arguments in (
        ["learn", tmp_path / "tickets.csv", "--model", tmp_path / "i.acil"],
        ["predict", tmp_path / "i.acil", "--text", "a"],
    ):
        assert "is a model of images" in acil(*arguments, code=1).stderr


def test_forget_undo_history_and_classes_work_as_for_images(desk, tmp_path):
    part = write_table(tmp_path / "part.csv", 4, names=("card",))
    result = acil("forget", desk, part)
    assert "forgot 4 samples" in result.stdout
    assert "a model of texts, which does not track each of them, cannot always tell" in result.stderr
    assert counts(desk)["card"] == EACH - 4
    acil("undo", desk)
    assert counts(desk)["card"] == EACH
    acil("learn", tmp_path / "part.csv", "--model", desk, "--no-undo")
    assert not desk.with_name(f".{desk.name}.undo").exists()
    assert "nothing to undo" in acil("undo", desk, code=1).stderr
    acil("forget", desk, part)
    acil("rename", desk, "card", "bank")
    acil("merge-classes", desk, "bank", "travel", "--into", "other")
    assert counts(desk) == {"other": 2 * EACH, "weather": EACH}
    assert [e["action"] for e in json.loads(acil("history", desk, "--json").stdout)["changes"]] == [
        *("learn", "learn", "forget", "rename", "merge-classes"),
    ]
    result = acil("forget", desk, write_table(tmp_path / "gone.csv", 2, names=("travel",)), code=1)
    assert "travel" in result.stderr


def test_gate_suggest_audit_merge_and_checks(desk, tickets, tmp_path):
    wrong = tmp_path / "wrong.csv"
    held = write_table(tmp_path / "held.csv", 5, seed=8)
    wrong.write_text("text,label\n" + "".join(f"{t},weather\n" for t in sentences("card", 40, seed=2)))
    result = acil("learn", wrong, "--model", desk, "--gate", held, "--max-drop", 1, code=3)
    assert "refused" in result.stderr
    suggested = json.loads(acil("suggest", desk, held, "--top", 3, "--json").stdout)
    assert "text" in suggested[0]
    audited = json.loads(acil("audit", desk, "--images", tickets, "--others", held, "--json").stdout)
    assert audited["membership"]
    other = tmp_path / "other.acil"
    acil("learn", held, "--model", other, "--expansion-size", 48)
    acil("merge", desk, other, "-o", tmp_path / "both.acil")
    assert counts(tmp_path / "both.acil")["card"] == EACH + 5
    assert "ok" in acil("verify", desk).stdout
    shown = acil("inspect", desk).stdout
    assert "calls tracked: 1" in shown
    acil("export", desk, "--private", tmp_path / "p.acil", "--epsilon", 5, code=1)  # not clipped
    acil("export", desk, "--inference", tmp_path / "small.acil")
    found = acil("predict", tmp_path / "small.acil", "--text", "my card", "--unknown-above", 0)
    assert "my card" in found.stdout
    found = acil("evaluate", tmp_path / "small.acil", held)
    assert "cannot tell what is unknown" in found.stderr
    assert "called unknown" not in found.stdout


def test_evaluate_names_wrong_and_doubtful_texts(desk, tmp_path, monkeypatch):
    table = tmp_path / "mixed.csv"
    (text,) = sentences("card", 1)
    rest = "".join(f"{one},travel\n" for one in sentences("travel", 5))
    table.write_text(f"text,label\n{text},travel\n{rest}")
    line = acil("evaluate", desk, table).stdout.splitlines()[1]
    assert " ".join(line.split()).startswith(f"wrong {text} travel taken for card")
    monkeypatch.setattr(predict, "_SURE", 1.1)
    assert "doubtful" in acil("evaluate", desk, table).stdout


def test_features_of_texts_have_no_text_in_them_and_become_a_model_of_texts(desk, tickets, tmp_path):
    out = tmp_path / "tickets.npz"
    assert "36 rows of 16 features, labels" in acil("embed", tickets, "-o", out).stdout
    with np.load(out) as file:
        assert file["paths"][0] == "tickets.csv: Line 2"
        whole = b"".join(file[name].tobytes() for name in file.files)
    assert sentences("card", 1)[0].encode("utf-32-le") not in whole
    made = tmp_path / "f.acil"
    acil("learn", out, "--model", made, "--expansion-size", 48)
    assert isinstance(load_classifier(made), TextClassifier)
    texts = sentences("travel", 5, seed=3)
    expected = load_classifier(desk)
    assert load_classifier(made).predict(texts, None) == expected.predict(texts, None)
    assert "accuracy" in acil("evaluate", made, out).stdout


def test_another_network_learns_anew_from_all_files_or_not_at_all(desk, tickets, tmp_path, monkeypatch):
    monkeypatch.setitem(networks._KINDS, "onnx", lambda _: tiny_encoder(seed=5, name="onnx"))
    monkeypatch.setattr("acil.encoders.stored._is_there", lambda path: True)
    before = desk.read_bytes()
    part = write_table(tmp_path / "part.csv", 5)
    result = acil("learn", part, "--model", desk, "--network", "onnx:other", code=1)
    assert "too few are given (card: 5 of 12" in result.stderr
    assert desk.read_bytes() == before
    extra = write_table(tmp_path / "extra.csv", 2, seed=9, names=("card",))
    result = acil("learn", tickets, extra, "--model", desk, "--network", "onnx:other")
    assert "learnt anew with the network onnx:other" in result.stderr
    header = describe(desk)
    assert (header["backbone"]["name"], header["size"]) == ("onnx", 48)
    assert counts(desk) == {"card": EACH + 2, "travel": EACH, "weather": EACH}
    actions = [entry["action"] for entry in header["history"]]
    assert actions == ["learn", "learn-anew"]
    # The same network again is an ordinary call.
    acil("learn", part, "--model", desk, "--network", "onnx:other")
    assert counts(desk)["card"] == EACH + 7
    acil("undo", desk)
    acil("undo", desk)
    assert desk.read_bytes() == before


def test_classes_whose_names_turn_the_line_around_are_refused(desk, tmp_path):
    table = tmp_path / "rtl.csv"
    table.write_text("text,label\nmy card,ab\u202ecd\n", encoding="utf-8")
    before = desk.read_bytes()
    result = acil("learn", table, "--model", desk, code=1)
    assert "characters that cannot be printed" in result.stderr
    assert "\u202e" not in result.stderr
    assert desk.read_bytes() == before
