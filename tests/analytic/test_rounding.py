"""When sums keep low parts, and when they do without."""

import numpy as np
import pytest
import torch

from acil.analytic import PRECISIONS, GramHead, rounding
from acil.analytic.factor import CorrectedFactor

CPU = torch.device("cpu")


def head_of(d, gamma, precision="float64"):
    head = GramHead(d, PRECISIONS[precision], CPU, gamma)
    head.grow(torch.zeros(0, dtype=torch.int64), 2)
    return head


def learn(head, n, spread=1.0, seed=0):
    head.learn([(samples(n, head, spread, seed), torch.arange(n) % 2, None)], n)
    return head.statistics.low is not None


def samples(n, head, spread=1.0, seed=0):
    """Rows whose spread falls to a share of the largest one, in directions oblique to the axes."""
    turn = np.linalg.qr(np.random.default_rng(9).normal(size=(head.size, head.size)))[0]
    rows = np.random.default_rng(seed).normal(size=(n, head.size)) * np.geomspace(1, spread, head.size)
    return torch.from_numpy(rows @ turn).to(head.precision.products)


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


def uneven(head, n, spread):
    """Rows as `samples` has them, around a mean of 1/2 that makes an eigenvalue of about n d / 4."""
    return samples(n, head, spread) + 0.5


def test_wide_models_beyond_the_promised_condition_do_without(wide):
    # λ is about n times the square of the spread: κ is 5e8 and 5e10 for 500 samples.
    for spread, kept in ((1e-4, True), (1e-5, False)):
        head = head_of(20, 1e-14)
        head.learn([(uneven(head, 500, spread), torch.arange(500) % 2, None)], 500)
        assert (head.statistics.low is not None) == kept, spread


def test_a_tiny_gamma_alone_drops_nothing(wide):
    # κ is 1e15 as far as γ tells, until a look at 40 samples finds what it is.
    for spread, kept in ((1e-4, True), (1e-5, False)):
        stream = head_of(20, 1e-14)
        rows = uneven(stream, 500, spread)
        for start in range(0, 500, 13):
            part = rows[start : start + 13]
            stream.learn([(part, torch.arange(len(part)) % 2, None)], len(part))
            expected = kept or start + len(part) < 40
            assert (stream.statistics.low is not None) == expected, (spread, start)


def test_a_branch_of_an_empty_head_keeps_low_parts_whatever_gamma_is(wide):
    head = head_of(20, 1e-14)
    rows, columns = uneven(head, 100, 1e-4), torch.arange(100) % 2
    branch = head.branch(2)
    branch.learn([(rows, columns, None)], 100)
    assert branch.statistics.low is not None
    head.absorb(branch, torch.arange(2))
    assert head.statistics.low is not None


def test_forgetting_keeps_the_low_parts_that_there_are(wide):
    head = head_of(20, 1e-14)
    rows, columns = uneven(head, 100, 1e-4), torch.arange(100) % 2
    head.learn([(rows, columns, None)], 100)
    head.forget([(rows[:10], columns[:10], None)])
    assert head.statistics.low is not None


def test_streams_are_given_up_only_when_more_samples_like_them_cannot_help(wide):
    # κ of n samples per dimension falls to its limit by 12 from two on, by 4 from four on.
    assert rounding.fall_to_come(40, 20) == pytest.approx(11.66, abs=0.01)
    assert rounding.fall_to_come(80, 20) == 4.0
    head, once = head_of(20, 1e-14), head_of(20, 1e-14)
    rows, columns = uneven(head, 42, 5e-5), torch.arange(42) % 2
    once.learn([(rows, columns, None)], 42)
    for part in (slice(0, 21), slice(21, 42)):
        head.learn([(rows[part], columns[part], None)], 21)
    assert head.condition() == pytest.approx(5e9, rel=0.5)
    assert (head.statistics.low is not None, once.statistics.low is not None) == (True, False)


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


def test_many_first_samples_are_added_without_them_and_again_with_them_if_needed(wide):
    for spread, needed in ((1.0, False), (1e-4, True)):
        heads = [head_of(20, 1e-6) for _ in range(2)]
        rows = samples(90, heads[0], spread)
        blocks = [(rows[i : i + 10], torch.arange(10) % 2, None) for i in range(0, 90, 10)]
        heads[0].learn(blocks, 90)
        # What can be read only once is added with low parts from the start, to be dropped later.
        heads[1].learn(iter(blocks), 90)
        assert [head.statistics.low is not None for head in heads] == [needed, needed]
        assert heads[0].counts.sum() == heads[1].counts.sum() == 90
        if needed:
            assert torch.equal(heads[0].statistics.gram, heads[1].statistics.gram)
            assert torch.equal(heads[0].statistics.moment, heads[1].statistics.moment)


@pytest.mark.parametrize("gamma", [1e-6, None])
def test_the_factor_of_a_look_serves_the_weights(wide, monkeypatch, gamma):
    calls = []
    factorize = CorrectedFactor.factorize
    monkeypatch.setattr(
        CorrectedFactor, "factorize", lambda self, *args: (calls.append(1), factorize(self, *args))
    )
    head = head_of(20, gamma)
    learn(head, 60)
    looked = len(calls)
    assert looked == 1
    W = head.coefficients()[0].clone()
    # The look cannot know a γ that is selected later.
    assert len(calls) == (1 if gamma is not None else 2)
    head.set_gamma(1.0)
    head.set_gamma(gamma or head.gamma)
    if gamma is not None:
        assert torch.equal(head.coefficients()[0], W)


def test_samples_after_a_look_do_not_use_its_factor(wide):
    head, other = head_of(20, 1e-6), head_of(20, 1e-6)
    rows = samples(70, head)
    blocks = [(rows[i : i + 10], torch.arange(10) % 2, None) for i in range(0, 70, 10)]
    head.learn(iter(blocks), 70)
    other.learn([(rows, torch.arange(70) % 2, None)], 70)
    assert torch.allclose(head.coefficients()[0], other.coefficients()[0], rtol=1e-10, atol=0)


def test_a_tiny_gamma_does_not_hide_that_samples_fill_all_directions(wide):
    # λ ≥ γ alone would call this hopeless: κ could be 1e15. The samples make it 1e8.
    head = head_of(20, 1e-13)
    rows = samples(90, head, 1e-4)
    head.learn([(rows[i : i + 10], torch.arange(10) % 2, None) for i in range(0, 90, 10)], 90)
    assert head.statistics.low is not None


def test_extended_heads_have_low_parts_from_the_first_sample_on_and_so_have_their_branches(wide):
    head = GramHead(20, PRECISIONS["float64"], CPU, 1e3, extended=True)
    head.grow(torch.zeros(0, dtype=torch.int64), 2)
    branch = head.branch(2)
    for one in (head, branch):
        assert learn(one, 1)
        assert learn(one, 200), "samples that fill all directions are not looked at"
    head.absorb(branch, torch.arange(2))
    assert head.statistics.low is not None
    assert learn(head.copy(), 1)
