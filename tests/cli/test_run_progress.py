"""What a run shows of itself."""

import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from acil.bench.training.loop import Progress
from acil.cli import bench, shared
from acil.cli.shared import shown_progress
from support.commands import acil
from support.pictures import draw, network_file


@pytest.mark.parametrize(
    ("accuracy", "said"), [(12.34, "accuracy 12.3 %"), (None, "loss 1.500  99 ima")]
)
def test_epoch_is_shown_with_and_without_an_accuracy(accuracy, said, monkeypatch):
    shown = []

    @contextmanager
    def bars(beginning):
        yield lambda *values: shown.append(values)

    monkeypatch.setattr(bench, "progress_bars", bars)
    with bench.run_progress() as progress:
        progress(Progress(1, 3, 1.5, accuracy, 99.0, 7.0))
    assert said in shown[0][-1]


def waited_for(capsys, said):
    """Wait until something was said on stderr, and return that."""
    text, end = capsys.readouterr().err, time.monotonic() + 60
    while said not in text:
        assert time.monotonic() < end, f"{said!r} was not said, but {text!r}"
        time.sleep(0.001)
        text += capsys.readouterr().err
    return text


def test_without_a_terminal_progress_is_a_line_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(shared, "PAUSE", 0.01)
    done = SimpleNamespace(method="acil", seed=1, phase=2, phases=5, accuracy=81.25)
    with bench.run_progress() as progress:
        progress(done)
        text = waited_for(capsys, "acil")
    assert "s: acil, seed 1, 3 of 6, accuracy 81.25 %\n" in text
    assert capsys.readouterr().out == ""


def test_without_a_terminal_every_stage_is_told_and_a_short_one_is_not(capsys, monkeypatch):
    with shown_progress() as begin:
        begin("images")(1, 2)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(shared, "PAUSE", 0.01)
    with shown_progress() as begin:
        progress = begin("images", "computing the head")
        for done, said in (
            (0, "s: images\n"),
            (1, "s: images, 1 of 2, about 0 s left\n"),
            (2, "s: computing the head\n"),
        ):
            if done:
                progress(done, 2)
            waited_for(capsys, said)


@pytest.mark.parametrize("command", ["learn", "forget", "predict", "evaluate", "embed", "merge"])
def test_commands_without_a_terminal_tell_what_they_do(command, tmp_path, monkeypatch):
    """The head of a model of features takes long, and images: so both are told."""
    told = []

    @contextmanager
    def lines(beginning):
        yield lambda what, done, total, note="": told.append((what, done, total))

    rows, one, network = (tmp_path / name for name in ("rows.csv", "one.csv", "network.onnx"))
    rows.write_text("f,g,label\n1,2,a\n2,1,a\n3,5,b\n5,3,b\n")
    one.write_text("f,g,label\n1,2,a\n")
    model = tmp_path / "m.acil"
    acil("learn", rows, "--model", model)
    monkeypatch.setattr(shared, "_lines", lines)
    if command == "embed":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
        images = draw(tmp_path / "images", 1)
        acil("embed", images, "-o", tmp_path / "x.npz", "--backbone", f"onnx:{network_file(network)}")
        assert told == [("images", 0, None), *(("images", i, 4) for i in range(1, 5))]
    elif command == "merge":
        acil("merge", model, model, "-o", tmp_path / "both.acil")
        assert told == [("merging", 0, None)]
    else:
        acil(command, *([one, "--model", model] if command == "learn" else [model, one]))
        assert told == [("computing the head", 0, None)]
