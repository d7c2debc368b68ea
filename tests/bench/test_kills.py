"""Killed without warning, where it hurts most: the plain command goes on to the same records."""

import signal

import pytest

from acil.bench.methods import available
from support.killing import killed
from support.running import DIGITS, command, timeless

pytestmark = pytest.mark.usefixtures("without_plots")

#: Each is started five times. One stands for the others, whose states tests/bench/methods compares.
QUICK = ("ds-al",)
#: Makes what other methods train in each phase short.
SHORT = [
    part
    for setting in (
        "increment.epochs",
        "podnet_balanced_epochs",
        "eeil_balanced_epochs",
        "dgr_generator_epochs",
        "mergan_generator_epochs",
    )
    for part in ("--set", f"settings.{setting}=1")
]
METHODS = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name in (*available(), "lucir+mnemonics", "podnet+aanets+rmm")
    if name != "acil"
]
#: Where the first job of a seed on digits is killed, in the order in which it passes there.
PLACES = [
    ("checkpoint", 1),
    ("network", 1),
    ("extraction", 2),
    ("features", 1),
    ("records", 3),
    ("state", 2),
]


def kill(place, nth, *arguments):
    """Start the command, resumed if it was there, and see that it kills itself."""
    assert killed(place, nth, *arguments, "--resume") == signal.SIGKILL


def test_killed_in_every_place_one_after_the_other(undisturbed, tmp_path):
    arguments = (*DIGITS, "--out", tmp_path / "run")
    for place, nth in PLACES:
        kill(place, nth, *arguments)
    assert command(*arguments, "--resume").exit_code == 0
    assert timeless(tmp_path / "run") == undisturbed
    assert not list((tmp_path / "run").rglob("state-*"))


@pytest.mark.slow
@pytest.mark.parametrize("nth", [1, 2, 5])
@pytest.mark.parametrize("place", ["checkpoint", "extraction", "state", "records"])
def test_killed_in_one_place(undisturbed, tmp_path, place, nth):
    arguments = (*DIGITS, "--set", "recipe.training.epochs=3", "--out", tmp_path / "run")
    assert command(*arguments[:-1], tmp_path / "whole").exit_code == 0
    kill(place, nth, *arguments)
    assert command(*arguments, "--resume").exit_code == 0
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")


@pytest.mark.parametrize("method", METHODS)
def test_every_other_method_killed_three_times(tmp_path, method):
    arguments = (*DIGITS, *SHORT, "--method", method, "--out")
    assert command(*arguments, tmp_path / "whole").exit_code == 0
    for place, nth in (("extraction", 1), ("records", 3), ("state", 1)):
        kill(place, nth, *arguments, tmp_path / "run")
    assert command(*arguments, tmp_path / "run", "--resume").exit_code == 0
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")
