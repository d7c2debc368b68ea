"""A training that is interrupted anywhere ends with the same bits."""

import dataclasses
import logging

import pytest
import safetensors.torch
import torch

from acil.bench.training.checkpoint import Checkpoint, Position
from acil.errors import InputError
from support import small_training
from support.small_training import PREPROCESSING, SHORT, make_network, problem, same_state

SETTINGS = dataclasses.replace(SHORT, learning_rate=0.1, augment=("crop", "flip", "trivialaugment"))
STEPS = 5  # of an epoch over 70 images


class Killed(BaseException):
    """Stands for Ctrl-C and everything else that ends a training."""


@pytest.fixture(autouse=True, scope="module")
def report_every_step():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("acil.bench.training.loop.REPORT_SECONDS", 0.0)
        # Several chunks an epoch, so that trainings are also interrupted within and between chunks.
        patch.setattr("acil.bench.training.loop._CHUNK_BYTES", 2 * 16 * 64)
        yield


def fit(checkpoint=None, stop_after=None, settings=SETTINGS, network_seed=0, **options):
    """Train a fresh network, and give up after some reports."""
    reports = []

    def watch(report):
        reports.append(report)
        if len(reports) == stop_after:
            raise Killed

    images, labels = options.pop("data", problem(70))
    network, options = make_network(seed=network_seed), {"checkpoint": checkpoint, **options}
    return small_training.fit(network, images, labels, settings, progress=watch, **options), reports


@pytest.fixture
def killed(tmp_path):
    """The checkpoint of a training that was killed after seven steps."""
    with pytest.raises(Killed):
        fit(Checkpoint(tmp_path, every_seconds=0), stop_after=7)
    return Checkpoint(tmp_path)


@pytest.fixture(scope="module")
def whole(report_every_step):
    return fit()[0]


@pytest.mark.parametrize("stop_after", [1, 2, 4, STEPS, STEPS + 1, 2 * STEPS + 3, 3 * STEPS])
def test_interrupted_training_ends_with_the_same_bits(tmp_path, whole, stop_after):
    with pytest.raises(Killed):
        fit(Checkpoint(tmp_path, every_seconds=0), stop_after)
    resumed, reports = fit(Checkpoint(tmp_path, every_seconds=0))
    assert same_state(resumed, whole)
    assert len(reports) == 3 * STEPS - stop_after + 1


def test_training_interrupted_again_and_again_ends_with_the_same_bits(tmp_path, whole):
    for _ in range(6):
        with pytest.raises(Killed):
            fit(Checkpoint(tmp_path, every_seconds=0), stop_after=2)
    assert same_state(fit(Checkpoint(tmp_path))[0], whole)


@pytest.mark.parametrize("written", [0, 3])
def test_steps_after_the_last_checkpoint_are_done_again(tmp_path, whole, monkeypatch, written):
    checkpoint, steps = Checkpoint(tmp_path), iter(range(1, 10))
    monkeypatch.setattr(checkpoint, "due", lambda: next(steps) == written)
    with pytest.raises(Killed):
        fit(checkpoint, stop_after=9)
    assert checkpoint.path.exists() == (written > 0)
    resumed, reports = fit(Checkpoint(tmp_path))
    assert len(reports) == 3 * STEPS - written + 1
    assert same_state(resumed, whole)


def test_finished_training_is_not_repeated(tmp_path, whole):
    first, reports = fit(Checkpoint(tmp_path))
    again, more = fit(Checkpoint(tmp_path))
    assert same_state(first, whole)
    assert same_state(again, whole)
    assert len(more) == 1
    assert (more[0].loss, more[0].accuracy) == (reports[-1].loss, reports[-1].accuracy)


def test_checkpoints_are_written_no_more_often_than_asked(tmp_path, monkeypatch):
    writes = []
    original = Checkpoint.save
    monkeypatch.setattr(Checkpoint, "save", lambda *a: (writes.append(a[2]), original(*a)))
    fit(Checkpoint(tmp_path, every_seconds=60))
    assert writes == [Position(epoch=2, step=STEPS, seen=70)]
    writes.clear()
    fit(Checkpoint(tmp_path / "other", every_seconds=0))
    assert len(writes) == 3 * STEPS + 1


DAMAGE = {
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "flipped": lambda data: data[:-3] + bytes([data[-3] ^ 1]) + data[-2:],
    "text": lambda data: b"hello" * 50,
    "foreign": lambda data: safetensors.torch.save({"a": torch.zeros(2)}),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_checkpoint_is_logged_and_training_starts_anew(killed, whole, caplog, damage):
    killed.path.write_bytes(DAMAGE[damage](killed.path.read_bytes()))
    with caplog.at_level(logging.WARNING):
        result, reports = fit(killed)
    assert "damaged" in caplog.text
    assert str(killed.path) in caplog.text
    assert same_state(result, whole)
    assert len(reports) == 3 * STEPS + 1
    # What was damaged has been replaced.
    assert len(fit(killed)[1]) == 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            {"settings": dataclasses.replace(SETTINGS, momentum=0.5)},
            "training.momentum was 0.9",
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
def test_checkpoint_of_another_training_is_refused(killed, change, named):
    before = killed.path.read_bytes()
    with pytest.raises(InputError, match="another training") as caught:
        fit(killed, **change)
    assert named in str(caught.value)
    assert "remove the file" in str(caught.value)
    assert killed.path.read_bytes() == before


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
