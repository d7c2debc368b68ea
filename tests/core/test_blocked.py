"""Solutions made of matrix products are as good as LAPACK's."""

import numpy as np
import pytest
import torch

from acil.core.blocked import BlockInverses
from support.strategies import EPS64, relative


def matrix_of(d, condition=None):
    rng = np.random.default_rng(0)
    if condition is None:
        rows = rng.normal(size=(2 * d, d))
        return rows.T @ rows + 0.5 * np.eye(d)
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    matrix = (turn * np.geomspace(1, 1 / condition, d)) @ turn.T
    return (matrix + matrix.T) / 2


@pytest.mark.parametrize("smallest", [1, 4, 256])
@pytest.mark.parametrize("d", [1, 7, 16, 17, 64, 100])
@pytest.mark.parametrize("block", [1, 16, 24, 200, None])
def test_solutions_are_those_of_numpy(d, block, smallest, monkeypatch):
    monkeypatch.setattr("acil.core.blocked._SMALLEST", smallest)
    matrix, right = matrix_of(d), np.random.default_rng(1).normal(size=(d, 3))
    expected, given = np.linalg.cholesky(matrix), torch.from_numpy(right)
    # What is above the diagonal means nothing.
    lower = torch.from_numpy(expected + np.triu(np.full((d, d), np.nan), 1))
    for layout in (lower, lower.mT.contiguous().mT):
        inverses = BlockInverses(layout, block)
        assert relative(inverses.solve(given), np.linalg.solve(expected, right)) <= 1e-12
        assert relative(inverses.solve_transposed(given), np.linalg.solve(expected.T, right)) <= 1e-12
    assert np.array_equal(given.numpy(), np.random.default_rng(1).normal(size=(d, 3)))


@pytest.mark.parametrize("condition", [1e6, 1e9, 1e12])
def test_ill_conditioned_solutions_leave_a_small_residual(condition):
    lower = np.linalg.cholesky(matrix_of(80, condition))
    right = np.random.default_rng(1).normal(size=(80, 2))
    solved = BlockInverses(torch.from_numpy(lower), 16).solve(torch.from_numpy(right)).numpy()
    residual = np.linalg.norm(lower @ solved - right) / (np.linalg.norm(lower) * np.linalg.norm(solved))
    # Inverses of diagonal blocks have the condition √κ, at the worst; substitution has no such factor.
    assert residual <= 10 * EPS64 * condition**0.5
