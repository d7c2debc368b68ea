"""Training settings: schedules against tables written by hand, and refusals."""

import pytest

from acil.bench.training.settings import Training
from acil.errors import InputError


def test_step_schedule_follows_the_paper():
    settings = Training(epochs=160, learning_rate=0.1, schedule="step", milestones=(80, 120))
    table = {0: 0.1, 79: 0.1, 80: 0.01, 119: 0.01, 120: 0.001, 159: 0.001}
    for epoch, rate in table.items():
        assert settings.learning_rate_at(epoch) == pytest.approx(rate, rel=1e-12)


def test_cosine_schedule_warms_up_and_falls_to_its_end():
    settings = Training(epochs=300, learning_rate=0.5, schedule="cosine", warmup=10)
    # (1 + cos π/2) / 2 = 1/2 in the middle of the 290 epochs; (1 + cos π/3) / 2 = 3/4.
    table = {0: 0.05, 4: 0.25, 9: 0.5, 10: 0.5, 155: 0.2500005}
    for epoch, rate in table.items():
        assert settings.learning_rate_at(epoch) == pytest.approx(rate, rel=1e-9)
    short = Training(epochs=7, learning_rate=0.4, schedule="cosine", warmup=1)
    expected = [0.4, 0.4, 0.37320515, 0.30000025, 0.2000005, 0.10000075, 0.02679585]
    assert [short.learning_rate_at(e) for e in range(7)] == pytest.approx(expected, rel=1e-5)


def test_step_schedule_may_warm_up():
    settings = Training(epochs=6, learning_rate=0.4, milestones=(4,), decay=0.5, warmup=2)
    assert [settings.learning_rate_at(e) for e in range(6)] == pytest.approx(
        [0.2, 0.4, 0.4, 0.4, 0.2, 0.2]
    )


def test_steps_per_epoch_count_the_last_batch_only_if_kept():
    keep, drop = (Training(epochs=1, batch_size=32, keep_last_batch=kept) for kept in (True, False))
    assert [keep.steps_per_epoch(n) for n in (1, 32, 96, 100)] == [1, 1, 3, 4]
    assert [drop.steps_per_epoch(n) for n in (1, 5, 32, 96, 100)] == [1, 1, 1, 3, 3]


#: Values that are no settings.
BAD = {
    "epochs": (-1,),
    "batch_size": (0,),
    "learning_rate": (0.0, float("nan"), float("inf")),
    "decay": (0.0,),
    "warmup": (-1,),
    "momentum": (1.0,),
    "label_smoothing": (1.0,),
    "weight_decay": (-1e-4,),
    "schedule": ("linear",),
    "precision": ("float16",),
    "milestones": ((120, 80), (80, 80)),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_setting_is_an_error_that_names_it(name):
    for value in BAD[name]:
        with pytest.raises(InputError, match=f"setting {name} "):
            Training(**{"epochs": 1, name: value})


def test_settings_that_do_not_go_together_or_do_not_exist_are_refused():
    with pytest.raises(InputError, match="nesterov"):
        Training(epochs=1, nesterov=True, momentum=0.0)
    with pytest.raises(InputError, match="Augmentation"):
        Training(epochs=1, augment=("cutout",))
