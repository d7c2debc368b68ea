"""Generalized cross-validation from the sums, against the hat matrix itself."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acil.analytic import Statistics, generalized_cross_validation
from acil.analytic.selection import RELATIVE_GRID
from acil.errors import InputError

CRITERION = 1e-6  # the bar of issue 2


def samples(n, d, c, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) @ np.diag(np.geomspace(1, 0.05, d)) + 0.3
    y = rng.integers(0, c, n)
    X[np.arange(n), y % d] += 1.0
    return X, y, rng.uniform(0.5, 2, n)


def sums_of(X, y, c, weights=None):
    sums = Statistics(X.shape[1], c)
    w = None if weights is None else torch.from_numpy(weights)
    sums.add(torch.from_numpy(X), torch.from_numpy(y), w)
    return sums


def by_hat_matrix(X, y, c, gamma, weights, centred):
    """The criterion from the hat matrix H of the (weighted, centred) regression."""
    n, root = weights.sum(), np.sqrt(weights)[:, None]
    Z, Y = X, np.eye(c)[y]
    if centred:
        Z, Y = X - weights @ X / n, Y - weights @ Y / n
    Z, Y = Z * root, Y * root
    H = Z @ np.linalg.solve(Z.T @ Z + gamma * np.eye(X.shape[1]), Z.T)
    left = n - np.trace(H) - float(centred)
    return n * np.sum((Y - H @ Y) ** 2) / left**2


@given(
    n=st.integers(40, 120),
    d=st.integers(1, 20),
    c=st.integers(2, 5),
    seed=st.integers(0, 999),
    centred=st.booleans(),
    weighted=st.booleans(),
)
def test_criterion_is_that_of_the_hat_matrix(n, d, c, seed, centred, weighted):
    X, y, weights = samples(n, d, c, seed)
    if not weighted:
        weights = np.ones(n)
    gammas = np.geomspace(1e-3, 1e4, 8)
    curve = generalized_cross_validation(
        sums_of(X, y, c, weights if weighted else None), torch.from_numpy(gammas), centred
    )
    expected = np.array([by_hat_matrix(X, y, c, gamma, weights, centred) for gamma in gammas])
    assert curve.usable.all()
    assert np.abs(curve.criterion.numpy() / expected - 1).max() <= CRITERION
    assert curve.best == gammas[expected.argmin()]


def test_the_default_grid_is_relative_to_the_mean_diagonal():
    X, y, _ = samples(200, 10, 3)
    curve = generalized_cross_validation(sums_of(X, y, 3))
    scale = np.sum(X**2) / 10
    assert np.allclose(curve.gammas.numpy(), np.logspace(-6, 4, 21) * scale, rtol=1e-12)
    assert len(RELATIVE_GRID) == 21
    assert float(RELATIVE_GRID[0]) == pytest.approx(1e-6)
    assert float(RELATIVE_GRID[-1]) == pytest.approx(1e4)


def test_gamma_zero_can_be_judged_when_there_are_enough_samples():
    X, y, _ = samples(200, 5, 3)
    curve = generalized_cross_validation(sums_of(X, y, 3), torch.tensor([0.0]))
    expected = by_hat_matrix(X, y, 3, 0.0, np.ones(200), centred=False)
    assert float(curve.criterion[0]) == pytest.approx(expected, rel=1e-9)


def test_gamma_zero_is_excluded_when_samples_are_fitted_exactly():
    X, y, _ = samples(10, 20, 3)
    with pytest.warns(UserWarning, match="1 of 2 .*fewer samples than"):
        curve = generalized_cross_validation(sums_of(X, y, 3), torch.tensor([0.0, 1.0]))
    assert curve.usable.tolist() == [False, True]
    assert torch.isinf(curve.criterion[0])
    assert curve.best == 1.0


def test_a_dimension_that_is_always_zero_does_no_harm():
    X, y, _ = samples(100, 6, 3)
    padded = np.column_stack([X, np.zeros((100, 2))])
    gammas = torch.tensor([0.0, 0.1, 10.0], dtype=torch.float64)
    plain = generalized_cross_validation(sums_of(X, y, 3), gammas)
    with_zeros = generalized_cross_validation(sums_of(padded, y, 3), gammas)
    assert torch.allclose(plain.criterion, with_zeros.criterion, rtol=1e-9)


def test_nothing_to_judge_is_an_error_that_says_what_to_do():
    X, y, _ = samples(3, 20, 2)
    with pytest.raises(InputError, match=r"too few samples \(3\) for the width 20.*larger candidates"):
        generalized_cross_validation(sums_of(X, y, 2), torch.tensor([0.0]))


def test_sums_are_not_changed():
    X, y, weights = samples(50, 8, 3)
    sums = sums_of(X, y, 3, weights)
    before = sums.copy()
    for centred in (False, True):
        generalized_cross_validation(sums, None, centred)
    assert torch.equal(sums.gram, before.gram)
    assert torch.equal(sums.moment, before.moment)
