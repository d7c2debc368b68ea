"""Rounding of the sums is tried out before anything is done about it."""

import math

import numpy as np
import pytest
import torch

from acil.analytic.factor import CorrectedFactor
from acil.analytic.sensitivity import score_change, solution_error

GAMMA = 1e-3


def problem(spread, n=400, d=60, seed=0):
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    rows = rng.normal(size=(n, d)) * np.geomspace(1, spread, d) @ turn
    return rows, np.eye(3)[rng.integers(0, 3, n)]


def estimated(rows, targets, noise):
    gram = torch.from_numpy(rows.T @ rows)
    factor = CorrectedFactor(len(gram), torch.device("cpu"))
    factor.factorize(gram, GAMMA, None, torch.float64)
    moment = torch.from_numpy(rows.T @ targets)
    return score_change(factor, gram.diagonal(), moment, GAMMA, noise)


@pytest.mark.parametrize("spread", [1.0, 1e-1, 1e-2])
def test_it_is_what_random_errors_of_that_size_do(spread):
    rows, targets = problem(spread)
    noise, gram = 1e-9, rows.T @ rows
    expected = rows @ np.linalg.solve(gram + GAMMA * np.eye(60), rows.T @ targets)
    scale = np.sqrt(np.outer(gram.diagonal(), gram.diagonal()))
    changes = []
    for seed in range(10):
        error = np.tril(np.random.default_rng(seed).normal(size=gram.shape) * noise * scale)
        error = error + np.tril(error, -1).T
        moved = rows @ np.linalg.solve(gram + error + GAMMA * np.eye(60), rows.T @ targets)
        changes.append(np.linalg.norm(moved - expected) / np.linalg.norm(expected))
    found = estimated(rows, targets, noise)
    assert np.mean(changes) / 2 <= found <= 4 * np.mean(changes)


def test_it_is_proportional_to_the_noise():
    rows, targets = problem(1e-1)
    assert estimated(rows, targets, 1e-6) == pytest.approx(1e3 * estimated(rows, targets, 1e-9))


def test_without_anything_learnt_every_rounding_counts():
    rows, targets = problem(1.0)
    assert estimated(rows, 0 * targets, 1e-9) == math.inf


def solved(rows, targets, error=0.0, seed=0):
    """Return the estimated and the true error of scores whose weights are off by a relative error."""
    gram, moment = torch.from_numpy(rows.T @ rows), torch.from_numpy(rows.T @ targets)
    factor = CorrectedFactor(len(gram), torch.device("cpu"))
    factor.factorize(gram, GAMMA, None, torch.float64)
    exact = factor.solve(moment)
    noise = torch.from_numpy(np.random.default_rng(seed).normal(size=exact.shape))
    coef = exact + error * noise * exact.abs().mean()

    def multiply(columns):
        return gram @ columns + GAMMA * columns

    estimate = solution_error(factor, multiply, coef, moment, GAMMA)
    scores = rows @ exact.numpy()
    with np.errstate(invalid="ignore"):
        return estimate, np.linalg.norm(rows @ coef.numpy() - scores) / np.linalg.norm(scores)


@pytest.mark.parametrize("spread", [1.0, 1e-1, 1e-2])
@pytest.mark.parametrize("error", [1e-3, 1e-6])
def test_errors_of_weights_are_seen_as_what_they_do_to_scores(spread, error):
    estimate, true = solved(*problem(spread), error)
    assert true / 3 <= estimate <= 3 * true


def test_a_good_solution_has_no_visible_error_and_a_useless_one_an_infinite_one():
    rows, targets = problem(1e-2)
    assert solved(rows, targets)[0] <= 1e-12
    assert solved(rows, 0 * targets)[0] == math.inf


def test_what_is_not_a_number_is_an_infinite_error():
    rows, targets = problem(1.0)
    assert solved(rows, targets, math.inf)[0] == math.inf
