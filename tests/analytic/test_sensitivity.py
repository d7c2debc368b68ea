"""Rounding of the sums is tried out before anything is done about it."""

import math

import numpy as np
import pytest
import torch

from acil.analytic.factor import CorrectedFactor
from acil.analytic.sensitivity import score_change

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
