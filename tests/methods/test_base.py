"""A method's own settings among those of a run."""

from dataclasses import dataclass
from typing import Literal

import pytest

from acil.errors import InputError
from acil.methods.base import read_settings


@dataclass(frozen=True)
class Settings:
    weight: float = 1.0
    rounds: int | None = 3
    kind: Literal["a", "b"] = "a"
    exact: bool = True

    def __post_init__(self):
        if self.weight < 0:
            raise InputError(f"weight must not be negative. Got {self.weight}.")


def test_defaults_hold_where_nothing_is_set():
    assert read_settings(Settings, {}) == Settings()


def test_text_is_read_as_the_type_of_the_field():
    values = {"weight": "2", "rounds": "none", "kind": "b", "exact": "false"}
    assert read_settings(Settings, values) == Settings(2.0, None, "b", False)


def test_settings_of_other_methods_are_left_alone():
    assert read_settings(Settings, {"weight": 2, "gamma": 0.1}) == Settings(weight=2.0)


@pytest.mark.parametrize(
    "values",
    [{"weight": "much"}, {"weight": True}, {"rounds": 1.5}, {"kind": "c"}, {"exact": 2}, {"weight": -1}],
)
def test_wrong_values_are_refused_by_name(values):
    with pytest.raises(InputError, match=next(iter(values))):
        read_settings(Settings, values)
