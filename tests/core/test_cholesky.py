"""A factor with a low-rank correction behaves like a new factor."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acil.core import cholesky
from acil.core.blocked import BlockInverses
from acil.core.cholesky import Factor, cholesky_
from acil.errors import SingularMatrixError
from support.regressions import samples, sums_of
from support.strategies import relative

pytestmark = pytest.mark.usefixtures("library")

GAMMA = 0.5
EITHER = pytest.mark.parametrize("intercept", [False, True])


def rows_of(n, d, seed=0, shift=0.0):
    return samples(n, d, 2, seed, shift)[0]


def factor_of(rows, intercept=False, dtype=torch.float64, gamma=GAMMA):
    sums = sums_of(rows, torch.arange(len(rows)) % 2, 2)
    return Factor(sums, gamma, intercept, dtype)


def with_one(rows, intercept):
    return torch.cat([torch.ones(len(rows), 1, dtype=rows.dtype), rows], dim=1) if intercept else rows


def inverse(rows, intercept=False):
    """The inverse of the matrix with a border, without a penalty on the intercept."""
    X = with_one(rows, intercept).numpy()
    penalty = np.full(X.shape[1], GAMMA)
    penalty[: int(intercept)] = 0.0
    return np.linalg.inv(X.T @ X + np.diag(penalty))


def leverage(R, query):
    return np.einsum("ij,jk,ik->i", query, R, query)


@pytest.fixture(params=["by substitution", "by blocks"])
def solver(request, monkeypatch):
    """Solve as a CPU does, or as a GPU does."""
    if request.param == "by blocks":
        monkeypatch.setattr("acil.core.blocked.BLOCK", 16)
        monkeypatch.setattr("acil.core.blocked._SMALLEST", 4)

    def prepared(factor):
        if request.param == "by blocks":
            factor._inverses = BlockInverses(factor.L)
        return factor

    return prepared


@EITHER
def test_factor_is_that_of_numpy(intercept, solver):
    rows, query = rows_of(90, 40, shift=1.0), with_one(rows_of(7, 40, 1), intercept)
    factor, R = solver(factor_of(rows, intercept)), inverse(rows, intercept)
    right = rows_of(len(R), 3, 2)
    assert relative(factor.solve(right), R @ right.numpy()) <= 1e-12
    assert relative(factor.leverage(query), leverage(R, query.numpy())) <= 1e-12
    # Of the centred matrix: eliminating the border is centring.
    centred = rows.numpy() - rows.numpy().mean(axis=0) * intercept
    values = np.linalg.eigvalsh(centred.T @ centred + GAMMA * np.eye(40))
    assert factor.trace_of_inverse() == pytest.approx((1 / values).sum(), rel=1e-10)
    assert values[0] * (1 - 1e-9) <= factor.least_eigenvalue() <= 1.02 * values[0]
    expected = factor.trace_of_inverse()
    assert factor.trace_of_inverse(overwrite=True) == pytest.approx(expected, rel=1e-12)


@EITHER
@given(
    d=st.integers(1, 30),
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=6),
    seed=st.integers(0, 999),
)
def test_rows_of_a_correction_act_like_rows_of_the_matrix(intercept, d, sizes, seed):
    seen, query = rows_of(2 * d + 3, d, seed), with_one(rows_of(5, d, seed + 1), intercept)
    factor = factor_of(seen, intercept)
    for i, n in enumerate(sizes):
        new, residual = rows_of(n, d, seed + 2 + i), rows_of(n, 3, seed + 50 + i)
        X = with_one(new, intercept)
        factor, *parts = factor.updated(X, residual)
        step = parts[0] @ parts[1]
        seen = torch.cat([seen, new])
        R = inverse(seen, intercept)
        assert relative(step, R @ X.numpy().T @ residual.numpy()) <= 1e-8
    assert factor.rank == sum(sizes)
    if factor.knows_trace:
        centred = R[1:, 1:] if intercept else R
        assert factor.trace_of_inverse() == pytest.approx(np.trace(centred), rel=1e-8)
    assert relative(factor.leverage(query), leverage(R, query.numpy())) <= 1e-8
    right = rows_of(len(R), 2, seed)
    assert relative(factor.solve(right), R @ right.numpy()) <= 1e-8


@pytest.mark.parametrize("k", [1, 2, 50])
def test_a_step_is_the_same_for_few_and_many_columns(k, solver):
    base, new, residual = rows_of(40, 12), rows_of(6, 12, 1), rows_of(6, k, 2)
    _, left, right = solver(factor_of(base)).updated(new, residual)
    step = left @ right
    R = inverse(torch.cat([base, new]))
    assert relative(step, R @ new.numpy().T @ residual.numpy()) <= 1e-11


def test_a_correction_leaves_the_factor_as_it_was():
    factor, query = factor_of(rows_of(40, 12)), rows_of(5, 12, 1)
    once, *_ = factor.updated(rows_of(3, 12, 2), rows_of(3, 2, 3))
    before = [one.leverage(query) for one in (factor, once)]
    twice, *_ = once.updated(rows_of(3, 12, 4), rows_of(3, 2, 5))
    assert [one.rank for one in (factor, once, twice)] == [0, 3, 6]
    assert torch.equal(factor.leverage(query), before[0])
    assert torch.equal(once.leverage(query), before[1])


@pytest.mark.parametrize("scale", [1e3, torch.nan, torch.inf])
def test_rows_far_from_everything_learnt_are_refused(scale):
    factor = factor_of(rows_of(40, 12))
    assert factor.updated(rows_of(1, 12, 2) * scale, rows_of(1, 2, 3)) is None
    near, far = rows_of(4, 12, 2), rows_of(1, 12, 2) * scale
    assert factor.updated(torch.cat([near, far]), rows_of(5, 2, 3)) is None
    assert factor.updated(near, rows_of(4, 2, 3)) is not None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_precision_of_the_factor_is_the_one_asked_for(dtype):
    rows, right = rows_of(60, 12), rows_of(12, 3, 1)
    factor = factor_of(rows, dtype=dtype)
    answer = factor.solve(right)
    assert answer.dtype == factor.L.dtype == dtype
    assert relative(answer, inverse(rows) @ right.numpy()) <= {torch.float64: 1e-12}.get(dtype, 1e-4)


def test_sums_are_not_changed_and_the_memory_is_used_again():
    sums = sums_of(rows_of(40, 12), torch.arange(40) % 2, 2)
    before = sums.gram.clone()
    factors = [Factor(sums, gamma, False, torch.float64) for gamma in (GAMMA, 2 * GAMMA)]
    assert factors[0].L.data_ptr() == factors[1].L.data_ptr() != sums.gram.data_ptr()
    assert torch.equal(sums.gram, before)


def test_correcting_pays_for_few_rows_and_stays_small(monkeypatch):
    factor = factor_of(rows_of(300, 200))
    assert factor.worth_correcting(1, 100)
    assert not factor.worth_correcting(400, 100)
    monkeypatch.setattr(cholesky, "_CORRECTION_BYTES", 200 * 8 * 10)
    while factor.worth_correcting(1, 100):
        factor, *_ = factor.updated(rows_of(1, 200, factor.rank), rows_of(1, 2))
    assert factor.rank == 10


@EITHER
def test_a_failed_factorization_names_gamma_precision_and_pivot(intercept):
    sums = sums_of(rows_of(10, 4), torch.arange(10) % 2, 2)
    sums.gram[2, 2] = -50.0
    words = r"γ = 0\.25, float32, 4 x 4.*pivot 3 of 4 is not positive.*Take a larger gamma"
    with pytest.raises(SingularMatrixError, match=words) as caught:
        Factor(sums, 0.25, intercept, torch.float32)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, ArithmeticError)


@pytest.mark.parametrize(("dtype", "tiny"), [(torch.float64, 1e-18), (torch.float32, 1e-9)])
def test_a_pivot_that_is_rounding_noise_is_refused(dtype, tiny):
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(SingularMatrixError, match=f"{name}.*{tiny:.3g}"):
        cholesky_(torch.diag(torch.tensor([1.0, 1.0, tiny], dtype=dtype)), 0.0)
    cholesky_(torch.diag(torch.tensor([1.0, 1.0, tiny * 1e4], dtype=dtype)), 0.0)


@EITHER
def test_nothing_is_added_to_the_diagonal_to_get_through(intercept):
    with pytest.raises(SingularMatrixError, match="γ = 0"):
        factor_of(rows_of(5, 12), intercept, gamma=0.0)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_matrix_that_is_not_finite_is_refused(bad):
    matrix = torch.eye(4, dtype=torch.float64)
    matrix[2, 1] = bad
    with pytest.raises(SingularMatrixError):
        cholesky_(matrix, 1.0)
