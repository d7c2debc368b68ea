"""A factor with a low-rank correction behaves like a new factor."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acil.analytic import factor as factor_module
from acil.analytic.factor import CorrectedFactor
from acil.errors import SingularMatrixError
from strategies import relative

CPU = torch.device("cpu")
GAMMA = 0.5


def rows_of(n, d, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d)))


def factor_of(rows, gamma=GAMMA, centre=None, dtype=torch.float64):
    factor = CorrectedFactor(rows.shape[1], CPU)
    factor.factorize((rows.T @ rows).contiguous(), gamma, centre, dtype)
    return factor


def inverse(rows, gamma=GAMMA, centre=None):
    A = rows.numpy().T @ rows.numpy() + gamma * np.eye(rows.shape[1])
    if centre is not None:
        A = A - np.outer(centre.numpy(), centre.numpy())
    return np.linalg.inv(A)


def leverage(R, query):
    return np.einsum("ij,jk,ik->i", query.numpy(), R, query.numpy())


@given(
    d=st.integers(1, 30),
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=6),
    seed=st.integers(0, 999),
)
def test_absorbed_rows_act_like_rows_of_the_matrix(d, sizes, seed):
    base, query = rows_of(2 * d, d, seed), rows_of(5, d, seed + 1)
    factor = factor_of(base)
    seen = base
    for i, n in enumerate(sizes):
        new = rows_of(n, d, seed + 2 + i)
        residual = rows_of(n, 3, seed + 50 + i)
        absorbed = factor.absorb(new, lambda residual=residual: residual)
        assert absorbed is not None
        seen = torch.cat([seen, new])
        R = inverse(seen)
        gain = factor.step(*absorbed)
        assert relative(gain.numpy(), R @ new.numpy().T @ residual.numpy()) <= 1e-8
    assert factor.rank == sum(sizes)
    assert relative(factor.leverage(query).numpy(), leverage(R, query)) <= 1e-8


@pytest.mark.parametrize("k", [1, 2, 50])
def test_step_is_the_same_for_few_and_many_columns(k):
    base, new = rows_of(40, 12), rows_of(6, 12, 1)
    factor = factor_of(base)
    residual = rows_of(6, k, 2)
    absorbed = factor.absorb(new, lambda: residual)
    R = inverse(torch.cat([base, new]))
    assert relative(factor.step(*absorbed).numpy(), R @ new.numpy().T @ residual.numpy()) <= 1e-11


def test_rows_without_a_residual_are_absorbed_but_give_no_step():
    base, new, query = rows_of(40, 12), rows_of(6, 12, 1), rows_of(5, 12, 2)
    factor = factor_of(base)
    absorbed = factor.absorb(new)
    expected = leverage(inverse(torch.cat([base, new])), query)
    assert relative(factor.leverage(query).numpy(), expected) <= 1e-11
    with pytest.raises(RuntimeError, match="without a residual"):
        factor.step(*absorbed)


def test_rows_far_from_everything_learnt_are_not_absorbed():
    factor = factor_of(rows_of(40, 12))
    before = factor.leverage(rows_of(5, 12, 1)).clone()
    assert factor.absorb(1e3 * rows_of(1, 12, 2)) is None
    assert factor.rank == 0
    assert torch.equal(factor.leverage(rows_of(5, 12, 1)), before)


def test_nan_rows_are_not_absorbed():
    factor = factor_of(rows_of(40, 12))
    assert factor.absorb(torch.full((1, 12), torch.nan, dtype=torch.float64)) is None


def test_centre_is_subtracted():
    rows = rows_of(40, 12) + 3
    centre = rows.mean(dim=0) * 40**0.5
    factor = factor_of(rows, centre=centre)
    right = rows_of(12, 3, 1)
    assert relative(factor.solve(right).numpy(), inverse(rows, centre=centre) @ right.numpy()) <= 1e-11
    centred = inverse(rows - rows.mean(dim=0))
    assert factor.trace_of_inverse() == pytest.approx(np.trace(centred), rel=1e-10)


def test_smallest_pivot_bounds_the_least_eigenvalue_from_above():
    rows = rows_of(40, 12)
    least = np.linalg.eigvalsh(rows.numpy().T @ rows.numpy() + GAMMA * np.eye(12))[0]
    assert factor_of(rows).smallest_pivot() >= least * (1 - 1e-12)


def test_gram_is_not_changed_and_the_buffer_is_used_again():
    rows = rows_of(40, 12)
    gram = (rows.T @ rows).contiguous()
    before = gram.clone()
    factor = CorrectedFactor(12, CPU)
    factor.factorize(gram, GAMMA, None, torch.float64)
    place = factor._buffer.data_ptr()
    factor.absorb(rows_of(2, 12, 1))
    factor.factorize(gram, GAMMA, None, torch.float64)
    assert factor._buffer.data_ptr() == place
    assert factor.rank == 0
    assert torch.equal(gram, before)


def test_dropping_and_releasing_leave_nothing_behind():
    factor = factor_of(rows_of(40, 12))
    factor.absorb(rows_of(2, 12, 1))
    factor.drop()
    assert (factor.ready, factor.rank, factor._rows) == (False, 0, None)
    assert factor._buffer is not None
    factor.release()
    assert factor._buffer is None
    with pytest.raises(RuntimeError, match="no factor"):
        factor.solve(rows_of(12, 1))


def test_a_failed_factorization_is_not_ready():
    rows = rows_of(5, 12)
    factor = factor_of(rows)
    with pytest.raises(SingularMatrixError, match="γ = 0"):
        factor.factorize((rows.T @ rows).contiguous(), 0.0, None, torch.float64)
    assert not factor.ready
    assert not factor.worth_correcting(1, 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_precision_of_the_factor_is_the_one_asked_for(dtype):
    rows, right = rows_of(60, 12), rows_of(12, 3, 1)
    factor = factor_of(rows, dtype=dtype)
    assert factor.dtype == dtype
    answer = factor.solve(right)
    assert answer.dtype == dtype
    error = relative(answer.numpy(), inverse(rows) @ right.numpy())
    assert error <= (1e-12 if dtype == torch.float64 else 1e-4)


def test_correcting_pays_for_few_rows_only():
    factor = factor_of(rows_of(300, 200))
    assert factor.worth_correcting(1, 100)
    assert not factor.worth_correcting(400, 100)
    assert not CorrectedFactor(200, CPU).worth_correcting(1, 100)


def test_the_correction_is_bounded(monkeypatch):
    factor = factor_of(rows_of(300, 200))
    monkeypatch.setattr(factor_module, "_CORRECTION_BYTES", 200 * 8 * 10)
    steps = 0
    while factor.worth_correcting(1, 100):
        factor.absorb(rows_of(1, 200, steps))
        steps += 1
    assert steps == factor.rank <= 10
