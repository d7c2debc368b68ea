"""What a run shows of itself."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from acil.cli import bench
from acil.training.loop import Progress


@pytest.mark.parametrize(
    ("accuracy", "said"), [(12.34, "accuracy 12.3 %"), (None, "loss 1.500  99 ima")]
)
def test_epoch_is_shown_with_and_without_an_accuracy(accuracy, said, monkeypatch):
    shown = []

    @contextmanager
    def bars():
        yield lambda *values: shown.append(values)

    monkeypatch.setattr(bench, "progress_bars", bars)
    with bench.run_progress() as progress:
        progress(Progress(1, 3, 1.5, accuracy, 99.0, 7.0))
    assert said in shown[0][-1]


def test_without_a_terminal_progress_is_a_line_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(bench, "PAUSE", 0.01)
    done = SimpleNamespace(method="acil", seed=1, phase=2, phases=5, accuracy=81.25)
    with bench.run_progress() as progress:
        progress(done)
        while "acil" not in (text := capsys.readouterr().err):
            pass
    assert "s: acil, seed 1, 3 of 6, accuracy 81.25 %\n" in text
    assert capsys.readouterr().out == ""
