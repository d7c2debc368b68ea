"""Generalized cross-validation from the sums, against the hat matrix itself."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acil.core import gcv
from acil.core.gcv import GRID, choose_gamma, criterion, most_freedom
from acil.core.sums import Sums
from support.regressions import sums_of, weights_for


def samples(n, d, c, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) @ np.diag(np.geomspace(1, 0.05, d)) + 0.3
    y = rng.integers(0, c, n)
    X[np.arange(n), y % d] += 1.0
    return torch.from_numpy(X), torch.from_numpy(y)


def by_hat_matrix(X, y, c, gamma, weights=None, centred=False):
    """The criterion from the hat matrix H of the (weighted, centred) regression."""
    weights = np.ones(len(X)) if weights is None else weights.numpy()
    n, root = weights.sum(), np.sqrt(weights)[:, None]
    Z, Y = X.numpy(), np.eye(c)[y.numpy()]
    if centred:
        Z, Y = Z - weights @ Z / n, Y - weights @ Y / n
    Z, Y = Z * root, Y * root
    H = Z @ np.linalg.solve(Z.T @ Z + gamma * np.eye(Z.shape[1]), Z.T)
    left = n - np.trace(H) - float(centred)
    return n * np.sum((Y - H @ Y) ** 2) / left**2


@pytest.mark.usefixtures("library")
@given(
    n=st.integers(40, 120),
    d=st.integers(1, 20),
    c=st.integers(2, 5),
    seed=st.integers(0, 999),
    centred=st.booleans(),
    weighted=st.booleans(),
)
def test_criterion_is_that_of_the_hat_matrix(n, d, c, seed, centred, weighted):
    X, y = samples(n, d, c, seed)
    weights = weights_for(n, seed) if weighted else None
    sums = sums_of(X, y, c, weights)
    for gamma in (0.0, *np.geomspace(1e-3, 1e4, 5).tolist()):
        expected = by_hat_matrix(X, y, c, gamma, weights, centred)
        assert criterion(sums, gamma, centred) == pytest.approx(expected, rel=1e-9)


def test_what_fits_the_samples_all_but_exactly_cannot_be_judged():
    X, y = samples(50, 60, 3)
    sums, values = sums_of(X, y, 3), np.linalg.svd(X.numpy(), compute_uv=False) ** 2
    for gamma in np.geomspace(1e-9, 10, 30).tolist():
        left = 1 - (values / (values + gamma)).sum() / 50
        assert math.isinf(criterion(sums, gamma, False)) == (left < 0.01), gamma
    assert math.isinf(criterion(sums, 0.0, False)), "singular"


def test_a_perfect_fit_is_a_rounding_error_and_cannot_be_judged():
    y = torch.arange(90) % 3
    # Features that are the targets
    sums = sums_of(torch.eye(3, dtype=torch.float64)[y], y, 3)
    assert math.isinf(criterion(sums, 1e-9, False))
    assert math.isfinite(criterion(sums, 1.0, False))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("tridiagonal", [False, True])
def test_the_choice_is_the_best_of_the_grid_and_takes_eight_factors(
    seed, intercept, tridiagonal, factors, monkeypatch
):
    if not tridiagonal:
        monkeypatch.setattr(gcv, "_TRIDIAGONAL_UP_TO", 0)
    X, y = samples(60 + 40 * seed, 30, 3, seed)
    sums, unit = sums_of(X, y, 3), float((X**2).sum()) / 30
    assert np.allclose(GRID, np.logspace(-6, 1, 15), rtol=1e-12)
    chosen = choose_gamma(sums, intercept)
    assert not factors if tridiagonal else 0 < len(factors) <= 8
    assert len(set(factors)) == len(factors)
    found = [criterion(sums, unit * share, intercept) for share in GRID]
    best = int(np.argmin(found))
    assert best < len(GRID) - 1
    assert chosen == pytest.approx(unit * GRID[best], rel=1e-12)


def test_where_samples_tell_nothing_the_largest_candidate_is_not_taken():
    # One sample of each class: without it, nothing is known of its class.
    sums = sums_of(*samples(4, 20, 4), 4)
    unit = float(sums.gram.diagonal().mean())
    found = [criterion(sums, unit * share, False) for share in GRID]
    assert int(np.argmin(found)) == len(GRID) - 1
    assert choose_gamma(sums, False) == unit


def test_candidates_below_the_least_are_left_out(factors):
    X, y = samples(300, 20, 3)
    sums = sums_of(X, y, 3)
    free, unit = choose_gamma(sums, False), float((X**2).sum()) / 20
    bounded = choose_gamma(sums, False, least=30 * free)
    assert 30 * free <= bounded <= 100 * free
    factors.clear()
    assert choose_gamma(sums, False, least=1e9 * unit) == 1e9 * unit
    assert not factors


@pytest.mark.parametrize("n", [1, 2])
def test_without_anything_to_judge_it_is_the_mean_of_the_diagonal(n, monkeypatch):
    X, y = samples(n, 20, 2)
    monkeypatch.setattr(gcv, "_LEAST_LEFT", 1.1)
    assert choose_gamma(sums_of(X, y, 2), False) == pytest.approx(float((X**2).sum()) / 20)


@pytest.mark.parametrize("intercept", [False, True])
def test_sums_of_zeros_have_a_gamma(intercept):
    sums = sums_of(torch.zeros(4, 3, dtype=torch.float64), torch.tensor([0, 1, 0, 1]), 2)
    assert choose_gamma(sums, intercept) == 1.0


def test_sums_are_not_changed():
    X, y = samples(50, 8, 3)
    sums = sums_of(X, y, 3)
    before = sums.clone()
    for intercept in (False, True):
        choose_gamma(sums, intercept)
    assert torch.equal(sums.gram, before.gram)
    assert torch.equal(sums.moment, before.moment)


def test_the_choice_depends_on_the_sums_alone():
    X, y = samples(300, 20, 3)
    whole, parts = sums_of(X, y, 3), Sums(20, 3, torch.float64)
    chosen = choose_gamma(whole, False)
    for start in range(300, 0, -1):
        parts.add([(X[start - 1 : start], y[start - 1 : start], None)])
        if start % 50 == 0:
            choose_gamma(parts, True)
    assert choose_gamma(parts, False) == pytest.approx(chosen, rel=1e-12)
    assert choose_gamma(whole, False) == chosen


def hat_trace(X, gamma, centred):
    Z = X.numpy() - X.numpy().mean(0) * centred
    return np.trace(Z @ np.linalg.solve(Z.T @ Z + gamma * np.eye(Z.shape[1]), Z.T)) + centred


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_basis_of_few_samples_judges_as_a_factor_does(centred, weighted):
    X, y = samples(30, 120, 4)
    sums = sums_of(X, y, 4, weights_for(30, 0) if weighted else None)
    reduced, unit = gcv._Reduced.of(sums, centred), float(sums.gram.diagonal().mean())
    for gamma in (GRID[3] * unit, GRID[8] * unit, 100 * unit):
        expected = gcv._judged(sums, gamma, centred)
        assert reduced.judged(gamma) == pytest.approx(expected, rel=1e-7)
    assert reduced.judged(reduced.least) == (math.inf, math.inf)


def test_most_freedom_counts_classes_as_their_means_are_known():
    def most(*counts):
        return most_freedom(torch.tensor(counts), 0.5)

    assert most(50, 50) == 2 + 50  # the same as with all samples, if classes are equal
    assert most(50, 50, 0) == most(50, 50)  # a class without samples is none
    assert most(6, 6, 6, 6) == 2 * 3 + 12  # two for each direction between classes
    assert most(6) == 1 + 3  # one class has its intercept
    # 4 / (1 / 1000 + 1 / 2), however many there are of the other
    assert most(1000, 2) == pytest.approx(2 + 0.5 * 4 / 0.501)
    assert most(10**9, 2) < 2 + 0.5 * 8


@pytest.mark.parametrize("d", [8, 120])  # of many samples, and of few
@pytest.mark.parametrize("centred", [False, True])
def test_gamma_leaves_no_more_freedom_than_is_allowed(d, centred):
    X, y = samples(35, d, 3)
    sums = sums_of(X, y, 3)
    free = choose_gamma(sums, centred)
    assert choose_gamma(sums, centred, most=d + 1) == free
    for most in (2.0, 4.0):
        gamma = choose_gamma(sums, centred, most=most)
        assert hat_trace(X, gamma, centred) <= most < hat_trace(X, gamma / 10**0.1, centred)
        assert math.log10(gamma / free) * 10 == pytest.approx(round(math.log10(gamma / free) * 10))
