"""The benchmarks of suggested labels and of the report: what they count, on small generated data."""

import numpy as np
import pytest
from benchmarks.vectors import Vectors

from benchmarks import report, suggest


@pytest.fixture(scope="module")
def data():
    """Four classes of 100 rows, every second for testing."""
    generator = np.random.default_rng(0)
    y = np.arange(400) % 4
    X = generator.normal(size=(4, 8))[y] + generator.normal(size=(400, 8))
    return Vectors(X, y, np.arange(400) // 4 % 2 == 0)


def test_both_rules_begin_with_the_same_labels_and_take_so_many_a_step(data):
    curves = {
        rule: list(suggest.curve(data, rule, 0, 5, 24)) for rule in (suggest.SUGGESTED, suggest.RANDOM)
    }
    assert [labels for labels, _ in curves["random"]] == [4, 9, 14, 19, 24]
    assert curves["random"][0] == curves["suggested"][0]
    assert curves["random"] != curves["suggested"]
    assert curves["suggested"][-1][1] > 50


def test_labels_that_random_choice_needs_are_read_between_its_steps():
    found = {
        "data": "x",
        "suggested": {"labels": [10, 20, 30], "accuracy": [[50, 65, 80], [50, 75, 80]]},
        "random": {"labels": [10, 20, 30, 40], "accuracy": [[50, 60, 70, 80], [50, 60, 70, 76]]},
    }
    middle, end = suggest.rows(found)
    assert (middle["labels"], middle["suggested"], middle["needed"]) == (20, 70, "30")
    assert middle["gain"] == "+10.0 ± 5.0"
    assert (end["random"], end["needed"]) == (70, "more than 40")


def test_wrong_labels_that_are_found_are_counted(data):
    found = report.mislabelled("x", data, 3)
    assert (found["samples"], found["flipped"]) == (200, 4)
    assert float(found["found"].split()[0]) > 70
