"""When sums keep low parts, and when they do without."""

import numpy as np
import pytest
import torch

from acil.analytic import PRECISIONS, GramHead, rounding

CPU = torch.device("cpu")


def head_of(d, gamma, precision="float64"):
    head = GramHead(d, PRECISIONS[precision], CPU, gamma)
    head.grow(torch.zeros(0, dtype=torch.int64), 2)
    return head


def learn(head, n, spread=1.0, seed=0):
    rows = np.random.default_rng(seed).normal(size=(n, head.size)) * np.linspace(1, spread, head.size)
    rows = torch.from_numpy(rows).to(head.precision.products)
    head.learn([(rows, torch.arange(n) % 2, None)], n)
    return head.statistics.low is not None


@pytest.fixture
def wide(monkeypatch):
    """Treat every width as a wide one."""
    monkeypatch.setattr(rounding, "_NARROW", 0)


def test_a_strong_ridge_needs_no_low_parts():
    assert not learn(head_of(20, 1.0), 15)
    assert learn(head_of(20, 1e-6), 15)


@pytest.mark.parametrize("gamma", [0.0, None])
def test_without_a_ridge_low_parts_are_kept(gamma):
    assert learn(head_of(20, gamma), 15)


@pytest.mark.parametrize("precision", ["float32", "mixed"])
def test_lower_precision_has_none(precision):
    assert not learn(head_of(20, 1e-9, precision), 15)


def test_narrow_models_keep_them_for_good():
    assert learn(head_of(20, 1e-6), 400)


def test_wide_models_beyond_the_promised_condition_do_without(wide):
    # Rows with a mean of 1/2 in every dimension have an eigenvalue of about n d / 4 = 75.
    rows = torch.rand(15, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for gamma, kept in ((1e-6, True), (1e-8, False)):
        head = head_of(20, gamma)
        for _ in range(2):
            head.learn([(rows, torch.arange(15) % 2, None)], 15)
            assert (head.statistics.low is not None) == kept, gamma


def test_samples_that_fill_all_directions_make_them_needless(wide):
    head = head_of(20, 1e-6)
    assert learn(head, 39)
    assert not learn(head, 1), "looked at when there are twice as many samples as dimensions"
    assert not learn(head, 1), "and it stays so"


def test_directions_that_stay_thin_keep_them(wide):
    head = head_of(20, 1e-6)
    assert learn(head, 400, spread=1e-4)
    assert learn(head, 10, spread=1e-4)


def test_they_come_back_when_sums_outgrow_the_ridge(wide):
    head = head_of(20, 1e-2)
    assert not learn(head, 45, spread=1e-6)
    assert learn(head, 40_000, spread=1e-6)


def test_looks_are_at_each_doubling(wide):
    looks = [n for n in range(1, 900) if rounding.worth_a_look(n - 1, n, 20)]
    assert looks == [40, 80, 160, 320, 640]
    assert rounding.worth_a_look(50, 700, 20)
    assert not rounding.worth_a_look(50, 79, 20)


def test_a_look_does_not_choose_gamma(wide):
    head = head_of(20, None)
    learn(head, 100)
    assert head.gamma is None
