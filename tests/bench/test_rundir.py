"""States are written often enough to lose little, and seldom enough to cost little."""

from types import SimpleNamespace

import pytest
import torch

from acil.bench import job
from acil.bench.job import StateFile


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only when it is told to."""
    clock = SimpleNamespace(now=1000.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(job, "time", clock)
    return clock


def written(file, clock, seconds):
    """Offer a state, which takes some seconds to gather and write; say whether it was taken."""
    before = clock.now

    def gather():
        clock.now += seconds
        return {"number": 1, "tensor": torch.ones(2)}

    file.save_if_due(0, gather)
    return clock.now > before


@pytest.mark.parametrize(("seconds", "pause"), [(0.1, 60.0), (5.0, 60.0), (12.0, 120.0), (60.0, 600.0)])
def test_writing_takes_a_tenth_of_the_time_at_most(tmp_path, clock, seconds, pause):
    file = StateFile(tmp_path / "state.safetensors")
    assert not written(file, clock, seconds)
    assert file.load() is None
    clock.now += 61
    assert written(file, clock, seconds)
    assert file.load()[0] == 0
    clock.now += pause - 0.01
    assert not written(file, clock, seconds)
    clock.now += 0.02
    assert written(file, clock, seconds)


def test_zero_seconds_mean_after_every_phase(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(job, "STATE_SECONDS", 0.0)
    file = StateFile(tmp_path / "state.safetensors")
    assert all(written(file, clock, 100.0) for _ in range(3))
