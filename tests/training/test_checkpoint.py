"""A training that is interrupted anywhere ends with the same bits."""

import dataclasses
import logging
import os

import pytest
import torch

from acil.errors import InputError, ModelFileError
from acil.training.checkpoint import Checkpoint, Position
from acil.training.loop import train
from small_training import PREPROCESSING, SHORT, make_network, problem

SETTINGS = dataclasses.replace(SHORT, learning_rate=0.1, augment=("crop", "flip", "trivialaugment"))
STEPS = 5  # of an epoch over 70 images


class Killed(BaseException):
    """Stands for Ctrl-C and everything else that ends a training."""


@pytest.fixture(autouse=True)
def report_every_step(monkeypatch):
    monkeypatch.setattr("acil.training.loop.REPORT_SECONDS", 0.0)
    # Several chunks an epoch, so that trainings are also interrupted within and between chunks.
    monkeypatch.setattr("acil.training.batches._CHUNK_BYTES", 2 * 16 * 64)


def fit(checkpoint=None, stop_after=None, settings=SETTINGS, network_seed=0, **options):
    """Train a fresh network, and give up after some reports."""
    reports = []

    def watch(report):
        reports.append(report)
        if len(reports) == stop_after:
            raise Killed

    images, labels = options.pop("data", problem(70))
    network = make_network(seed=network_seed)
    options = {"preprocessing": PREPROCESSING, "seed": 0, "device": "cpu", **options}
    train(network, images, labels, settings, checkpoint=checkpoint, progress=watch, **options)
    return network.state_dict(), reports


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


@pytest.fixture(scope="module")
def whole():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("acil.training.batches._CHUNK_BYTES", 2 * 16 * 64)
        return fit()[0]


@pytest.mark.parametrize("stop_after", [1, 2, 4, STEPS, STEPS + 1, 2 * STEPS + 3, 3 * STEPS])
def test_interrupted_training_ends_with_the_same_bits(tmp_path, whole, stop_after):
    with pytest.raises(Killed):
        fit(Checkpoint(tmp_path, every_seconds=0), stop_after)
    resumed, reports = fit(Checkpoint(tmp_path, every_seconds=0))
    assert_same(resumed, whole)
    assert len(reports) == 3 * STEPS - stop_after + 1


def test_training_interrupted_again_and_again_ends_with_the_same_bits(tmp_path, whole):
    for _ in range(6):
        with pytest.raises(Killed):
            fit(Checkpoint(tmp_path, every_seconds=0), stop_after=2)
    assert_same(fit(Checkpoint(tmp_path))[0], whole)


def test_interruption_before_the_first_checkpoint_starts_anew(tmp_path, whole):
    with pytest.raises(Killed):
        fit(Checkpoint(tmp_path, every_seconds=60), stop_after=7)
    assert not list(tmp_path.iterdir())
    assert_same(fit(Checkpoint(tmp_path))[0], whole)


def test_steps_between_checkpoints_are_done_again(tmp_path, whole, monkeypatch):
    checkpoint = Checkpoint(tmp_path)
    answers = iter([False, False, True])
    monkeypatch.setattr(checkpoint, "due", lambda: next(answers, False))
    with pytest.raises(Killed):
        fit(checkpoint, stop_after=9)
    resumed, reports = fit(Checkpoint(tmp_path))
    assert len(reports) == 3 * STEPS - 3 + 1
    assert_same(resumed, whole)


def test_finished_training_is_not_repeated(tmp_path, whole):
    first, reports = fit(Checkpoint(tmp_path))
    again, more = fit(Checkpoint(tmp_path))
    assert_same(first, whole)
    assert_same(again, whole)
    assert len(more) == 1
    assert more[0].loss == reports[-1].loss
    assert more[0].accuracy == reports[-1].accuracy


def test_checkpoints_are_written_no_more_often_than_asked(tmp_path, monkeypatch):
    writes = []
    original = Checkpoint.save
    monkeypatch.setattr(Checkpoint, "save", lambda *a: (writes.append(a[2]), original(*a)))
    fit(Checkpoint(tmp_path, every_seconds=60))
    assert writes == [Position(epoch=2, step=STEPS, seen=70)]
    writes.clear()
    fit(Checkpoint(tmp_path / "other", every_seconds=0))
    assert len(writes) == 3 * STEPS + 1


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "text", "foreign"])
def test_damaged_checkpoint_is_logged_and_training_starts_anew(tmp_path, whole, caplog, damage):
    checkpoint = Checkpoint(tmp_path, every_seconds=0)
    with pytest.raises(Killed):
        fit(checkpoint, stop_after=7)
    data = bytearray(checkpoint.path.read_bytes())
    if damage == "flipped":
        data[-3] ^= 1
    elif damage == "foreign":
        from safetensors.torch import save

        data = save({"a": torch.zeros(2)})
    else:
        data = {"truncated": data[: len(data) // 2], "empty": b"", "text": b"hello" * 50}[damage]
    checkpoint.path.write_bytes(bytes(data))
    with caplog.at_level(logging.WARNING):
        result, reports = fit(Checkpoint(tmp_path))
    assert "damaged" in caplog.text
    assert str(checkpoint.path) in caplog.text
    assert_same(result, whole)
    assert len(reports) == 3 * STEPS + 1
    # What was damaged has been replaced.
    assert len(fit(Checkpoint(tmp_path))[1]) == 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            {"settings": dataclasses.replace(SETTINGS, learning_rate=0.2)},
            "training.learning_rate was 0.1",
        ),
        ({"settings": dataclasses.replace(SETTINGS, epochs=4)}, "training.epochs was 3, now 4"),
        ({"seed": 1}, "seed was 0, now 1"),
        ({"data": problem(70, seed=1)}, "images"),
        ({"network_seed": 1}, "network at the start"),
        ({"preprocessing": dataclasses.replace(PREPROCESSING, mean=(0.5,))}, "preprocessing"),
        ({"data": (problem(70)[0], problem(70)[1].flip(0))}, "labels was"),
        ({"objective": lambda n, x, y, i: torch.nn.functional.cross_entropy(n(x), y)}, "objective"),
    ],
)
def test_checkpoint_of_another_training_is_refused(tmp_path, change, named):
    with pytest.raises(Killed):
        fit(Checkpoint(tmp_path, every_seconds=0), stop_after=7)
    before = Checkpoint(tmp_path).path.read_bytes()
    with pytest.raises(InputError, match="another training") as caught:
        fit(Checkpoint(tmp_path), **change)
    assert named in str(caught.value)
    assert "remove the file" in str(caught.value)
    assert Checkpoint(tmp_path).path.read_bytes() == before


def test_failed_write_is_a_clear_error_and_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    checkpoint = Checkpoint(tmp_path, every_seconds=0)
    with pytest.raises(Killed):
        fit(checkpoint, stop_after=3)
    before = checkpoint.path.read_bytes()

    def full(*_, **__):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(ModelFileError, match="Free some space"):
        fit(checkpoint)
    assert checkpoint.path.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["training.safetensors"]


def test_folder_that_cannot_be_made_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    checkpoint = Checkpoint(tmp_path / "file" / "folder")
    with pytest.raises(ModelFileError, match="Not a directory"):
        fit(checkpoint)
    with pytest.raises(ModelFileError, match="Cannot write"):
        checkpoint.save({}, Position(0, 1, 2), {"a": torch.zeros(2)})


def test_diverged_state_is_never_written(tmp_path):
    calls = []

    def objective(network, x, y, indices):
        calls.append(len(y))
        loss = torch.nn.functional.cross_entropy(network(x), y)
        return loss * float("nan") if len(calls) == 4 else loss

    checkpoint = Checkpoint(tmp_path, every_seconds=0)
    with pytest.raises(ArithmeticError):
        fit(checkpoint, objective=objective)
    position, tensors = checkpoint.load(checkpoint._read()[0]["identity"], checkpoint._read()[1])
    assert position == Position(epoch=0, step=3, seen=48)
    assert all(tensor.isfinite().all() for tensor in tensors.values())


def test_checkpoint_of_another_training_may_be_left_aside(tmp_path, caplog):
    tensors = {"w": torch.ones(2)}
    Checkpoint(tmp_path).save({"seed": 0}, Position(1, 2, 3), tensors)
    lenient = Checkpoint(tmp_path, other="restart")
    assert lenient.load({"seed": 1}, tensors) is None
    assert "seed was 0, now 1" in caplog.text
    assert lenient.load({"seed": 0}, tensors)[0] == Position(1, 2, 3)
    with pytest.raises(InputError, match="seed was 0, now 1"):
        Checkpoint(tmp_path).load({"seed": 1}, tensors)
