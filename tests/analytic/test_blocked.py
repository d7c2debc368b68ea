"""Solutions made of matrix products are as good as LAPACK's."""

import numpy as np
import pytest
import torch

from acil.analytic import linalg, triangle
from acil.analytic.blocked import BlockInverses
from acil.analytic.factor import CorrectedFactor
from acil.analytic.triangle import Triangle, laid_out
from acil.errors import SingularMatrixError
from strategies import EPS64, relative

pytestmark = pytest.mark.usefixtures("library")

GAMMA = 0.5


def matrix_of(d, seed=0, condition=None):
    rng = np.random.default_rng(seed)
    if condition is None:
        rows = rng.normal(size=(2 * d, d))
        return rows.T @ rows + GAMMA * np.eye(d)
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    matrix = (turn * np.geomspace(1, 1 / condition, d)) @ turn.T
    return (matrix + matrix.T) / 2


@pytest.fixture(params=["by columns, blocks of 16", "by columns, one block"])
def everywhere(request, monkeypatch):
    """Let the CPU work as a GPU does."""
    monkeypatch.setattr(triangle, "_BY_COLUMNS", frozenset({"cpu"}))
    monkeypatch.setattr("acil.analytic.blocked._SMALLEST", 4)
    if request.param.endswith("16"):
        monkeypatch.setattr("acil.analytic.blocked.BLOCK", 16)


@pytest.mark.parametrize("smallest", [1, 4, 256])
@pytest.mark.parametrize("d", [1, 7, 16, 17, 64, 100])
@pytest.mark.parametrize("block", [1, 16, 24, 200])
def test_solutions_are_those_of_numpy(d, block, smallest, monkeypatch):
    monkeypatch.setattr("acil.analytic.blocked._SMALLEST", smallest)
    matrix, right = matrix_of(d), np.random.default_rng(1).normal(size=(d, 3))
    expected = np.linalg.cholesky(matrix)
    # What is above the diagonal means nothing.
    lower = torch.from_numpy(expected + np.triu(np.full((d, d), np.nan), 1))
    for given in (lower, lower.mT.contiguous().mT):
        inverses = BlockInverses(given, block)
        solved = inverses.solve(torch.from_numpy(right))
        assert relative(solved.numpy(), np.linalg.solve(expected, right)) <= 1e-12
        solved = inverses.solve_transposed(torch.from_numpy(right))
        assert relative(solved.numpy(), np.linalg.solve(expected.T, right)) <= 1e-12


def test_the_right_hand_side_stays_as_it_was():
    right = torch.ones(40, 2, dtype=torch.float64)
    inverses = BlockInverses(torch.from_numpy(np.linalg.cholesky(matrix_of(40))), 16)
    inverses.solve(right), inverses.solve_transposed(right)
    assert torch.equal(right, torch.ones_like(right))


@pytest.mark.parametrize("condition", [1e6, 1e9, 1e12])
def test_ill_conditioned_solutions_leave_a_small_residual(condition):
    matrix = matrix_of(80, condition=condition)
    lower = np.linalg.cholesky(matrix)
    right = np.random.default_rng(1).normal(size=(80, 2))
    solved = BlockInverses(torch.from_numpy(lower), 16).solve(torch.from_numpy(right)).numpy()
    residual = np.linalg.norm(lower @ solved - right) / (np.linalg.norm(lower) * np.linalg.norm(solved))
    # Inverses of diagonal blocks have the condition √κ, at the worst; substitution has no such factor.
    assert residual <= 10 * EPS64 * condition**0.5


@pytest.mark.parametrize("mkl", [True, False], ids=["torch", "scipy"])
def test_a_factor_by_columns_works_in_the_memory_of_the_matrix(everywhere, mkl, monkeypatch):
    monkeypatch.setattr(linalg, "_MKL_AT_HOME", mkl)
    matrix = matrix_of(60)
    buffer = torch.empty(60, 60, dtype=torch.float64)
    turned = laid_out(buffer)
    assert turned.stride() == (1, 60)
    turned.copy_(torch.from_numpy(np.tril(matrix) + np.triu(np.full((60, 60), 7.0), 1)))
    factor = Triangle(turned, GAMMA)
    assert factor.lower.data_ptr() == buffer.data_ptr()
    assert relative(factor.lower.tril().numpy(), np.linalg.cholesky(matrix)) <= 1e-13


def test_the_same_error_as_elsewhere(everywhere):
    matrix = torch.from_numpy(matrix_of(40)).mT.contiguous().mT
    matrix[30, 30] = -1.0
    with pytest.raises(SingularMatrixError, match="pivot 31 of 40 is not positive"):
        Triangle(matrix, GAMMA)
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(10, 40)))
    noise = rows.T @ rows
    noise.diagonal().add_(1e-15)
    with pytest.raises(SingularMatrixError, match=r"γ = 0\.5"):
        Triangle(noise.mT, GAMMA)


@pytest.mark.parametrize("centred", [False, True])
def test_corrections_work_on_it(everywhere, centred):
    rng = np.random.default_rng(0)
    rows, new, right = (torch.from_numpy(rng.normal(size=size)) for size in ((90, 40), (5, 40), (40, 3)))
    centre = rows.mean(dim=0) * 90**0.5 if centred else None
    factor = CorrectedFactor(40, torch.device("cpu"))
    factor.factorize(rows.T @ rows, GAMMA, centre, torch.float64)
    assert factor.absorb(new) is not None
    kept = rows - rows.mean(dim=0) if centred else rows
    everything = torch.cat([kept, new]).numpy()
    inverse = np.linalg.inv(everything.T @ everything + GAMMA * np.eye(40))
    assert relative(factor.solve_corrected(right).numpy(), inverse @ right.numpy()) <= 1e-11
    leverage = np.einsum("ij,jk,ik->i", new.numpy(), inverse, new.numpy())
    assert relative(factor.leverage(new).numpy(), leverage) <= 1e-11
    trace = np.trace(np.linalg.inv(kept.numpy().T @ kept.numpy() + GAMMA * np.eye(40)))
    assert relative(factor.trace_of_inverse(), trace) <= 1e-11
