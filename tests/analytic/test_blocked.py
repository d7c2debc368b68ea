"""A factor made of matrix products is as good as LAPACK's."""

import numpy as np
import pytest
import torch

from acil.analytic import triangle
from acil.analytic.blocked import BlockedFactor
from acil.analytic.factor import CorrectedFactor
from acil.analytic.triangle import Triangle
from acil.errors import SingularMatrixError
from strategies import EPS64, relative

GAMMA = 0.5


def matrix_of(d, seed=0, condition=None):
    rng = np.random.default_rng(seed)
    if condition is None:
        rows = rng.normal(size=(2 * d, d))
        return rows.T @ rows + GAMMA * np.eye(d)
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    matrix = (turn * np.geomspace(1, 1 / condition, d)) @ turn.T
    return (matrix + matrix.T) / 2


@pytest.fixture
def everywhere(monkeypatch):
    """Let the CPU work as a GPU does."""
    monkeypatch.setattr(triangle, "_BLOCKED_DEVICES", frozenset({"cpu"}))
    monkeypatch.setattr("acil.analytic.blocked.BLOCK", 16)


@pytest.mark.parametrize("d", [1, 7, 16, 17, 64, 100])
@pytest.mark.parametrize("block", [1, 16, 200])
def test_factor_and_solutions_are_those_of_numpy(d, block):
    matrix, right = matrix_of(d), np.random.default_rng(1).normal(size=(d, 3))
    factor = BlockedFactor(torch.from_numpy(matrix.copy()), block)
    expected = np.linalg.cholesky(matrix)
    assert factor.first_failure() == 0
    assert relative(factor.lower.tril().numpy(), expected) <= 1e-13
    solved = factor.solve(torch.from_numpy(right))
    assert relative(solved.numpy(), np.linalg.solve(expected, right)) <= 1e-12
    solved = factor.solve_transposed(torch.from_numpy(right))
    assert relative(solved.numpy(), np.linalg.solve(expected.T, right)) <= 1e-12


def test_many_columns_are_updated_in_parts(monkeypatch):
    monkeypatch.setattr("acil.analytic.blocked._UPDATE", 24)
    matrix = matrix_of(90)
    factor = BlockedFactor(torch.from_numpy(matrix.copy()), 8)
    assert relative(factor.lower.tril().numpy(), np.linalg.cholesky(matrix)) <= 1e-13


def test_it_works_in_the_memory_of_the_matrix_and_reads_one_triangle_only():
    matrix = matrix_of(60)
    given = torch.from_numpy(np.tril(matrix) + np.triu(np.full((60, 60), np.nan), 1))
    place = given.data_ptr()
    factor = BlockedFactor(given, 16)
    assert factor.lower.data_ptr() == place
    assert relative(factor.lower.tril().numpy(), np.linalg.cholesky(matrix)) <= 1e-13
    right = torch.from_numpy(matrix[:, :2].copy())
    assert torch.isfinite(factor.solve_transposed(factor.solve(right))).all()


@pytest.mark.parametrize("order", [1, 16, 17, 40, 60])
def test_the_first_minor_that_is_not_positive_is_found(order):
    matrix = matrix_of(60)
    # A leading minor changes its sign with the last pivot of it.
    pivot = np.linalg.cholesky(matrix)[order - 1, order - 1] ** 2
    matrix[order - 1, order - 1] -= 2 * pivot
    assert BlockedFactor(torch.from_numpy(matrix), 16).first_failure() == order


def test_nan_is_a_failure():
    matrix = matrix_of(40)
    matrix[20, 20] = np.nan
    assert BlockedFactor(torch.from_numpy(matrix), 16).first_failure() > 0


@pytest.mark.parametrize("condition", [1e6, 1e9, 1e12])
def test_ill_conditioned_factors_multiply_back_to_the_matrix(condition):
    matrix = matrix_of(80, condition=condition)
    lower = BlockedFactor(torch.from_numpy(matrix.copy()), 16).lower.tril().numpy()
    # Inverses of diagonal blocks have the condition √κ, at the worst; LAPACK's error has no such factor.
    assert relative(lower @ lower.T, matrix) <= 10 * EPS64 * condition**0.5


def test_the_same_error_as_elsewhere(everywhere):
    matrix = torch.from_numpy(matrix_of(40))
    matrix[30, 30] = -1.0
    with pytest.raises(SingularMatrixError, match="pivot 31 of 40 is not positive"):
        Triangle(matrix, GAMMA)
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(10, 40)))
    noise = rows.T @ rows
    noise.diagonal().add_(1e-15)
    with pytest.raises(SingularMatrixError, match=r"γ = 0\.5"):
        Triangle(noise, GAMMA)


def test_corrections_work_on_it(everywhere):
    rng = np.random.default_rng(0)
    rows, new, right = (torch.from_numpy(rng.normal(size=size)) for size in ((90, 40), (5, 40), (40, 3)))
    factor = CorrectedFactor(40, torch.device("cpu"))
    factor.factorize(rows.T @ rows, GAMMA, None, torch.float64)
    assert factor.absorb(new) is not None
    everything = torch.cat([rows, new]).numpy()
    inverse = np.linalg.inv(everything.T @ everything + GAMMA * np.eye(40))
    assert relative(factor.solve_corrected(right).numpy(), inverse @ right.numpy()) <= 1e-11
    leverage = np.einsum("ij,jk,ik->i", new.numpy(), inverse, new.numpy())
    assert relative(factor.leverage(new).numpy(), leverage) <= 1e-11
