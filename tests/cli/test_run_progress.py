"""What a run shows of itself."""

import pytest

from acil.cli.bench import RunProgress
from acil.training.loop import Progress


@pytest.mark.parametrize(
    ("accuracy", "said"), [(12.34, "accuracy 12.3 %"), (None, "loss 1.500  99 ima")]
)
def test_epoch_is_shown_with_and_without_an_accuracy(accuracy, said):
    shown = []
    bars = RunProgress()
    bars._show = lambda *values: shown.append(values)
    bars(Progress(1, 3, 1.5, accuracy, 99.0, 7.0))
    assert said in shown[0][-1]
