"""Symmetric linear algebra against NumPy, on the triangle that is kept."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acil.analytic import linalg
from acil.errors import SingularMatrixError
from strategies import condition_number, relative

#: Rounding of products of a few hundred terms.
ROUNDING = {torch.float64: 1e-13, torch.float32: 1e-5}


@pytest.fixture(autouse=True, params=[1024, 7], ids=["one panel", "many panels"])
def panels(request, monkeypatch):
    """Run everything with one wide panel and with many narrow ones."""
    monkeypatch.setattr(linalg, "_PANEL", request.param)


pytestmark = pytest.mark.usefixtures("library")


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(
        dtype
    )


def positive_definite(d, seed=0, gamma=0.1, n=None):
    rows = random(n or 2 * d, d, seed=seed)
    return rows.T @ rows + gamma * torch.eye(d, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("sign", [1, -1])
@given(n=st.integers(1, 40), d=st.integers(1, 30), seed=st.integers(0, 999))
def test_gram_is_added_to_the_lower_triangle(dtype, sign, n, d, seed):
    rows, start = random(n, d, seed=seed, dtype=dtype), random(d, d, seed=seed + 1, dtype=dtype)
    gram = start.clone()
    assert linalg.add_gram_(gram, rows, sign) is gram
    expected = start + sign * rows.T @ rows
    assert torch.allclose(gram.tril(), expected.tril(), rtol=ROUNDING[dtype], atol=ROUNDING[dtype] * n)


@pytest.mark.parametrize("sign", [1, -1])
def test_float32_rows_are_multiplied_in_float32_and_added_in_float64(sign):
    rows, start = random(50, 23, dtype=torch.float32), random(23, 23, seed=1) * 1e6
    gram = linalg.add_gram_(start.clone(), rows, sign)
    added = sign * (gram - start).tril()
    exact = (rows.double().T @ rows.double()).tril()
    error = float((added - exact).norm() / exact.norm())
    assert error < 1e-6, "products must be as good as float32"
    assert error > 1e-10, "products must not be computed in float64"
    # Added to float32 sums of 1e6, products of size 50 would lose four digits more.


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "sliced"])
def test_rows_of_any_layout_are_added(layout):
    rows = {
        "contiguous": random(20, 9),
        "transposed": random(9, 20).T,
        "sliced": random(40, 18)[::2, ::2],
    }[layout]
    gram = linalg.add_gram_(torch.zeros(9, 9, dtype=torch.float64), rows)
    assert torch.allclose(gram.tril(), (rows.T @ rows).tril(), rtol=1e-13, atol=1e-12)


@given(d=st.integers(1, 40), k=st.integers(1, 6), seed=st.integers(0, 999))
def test_symmetric_matmul_reads_the_lower_triangle_only(d, k, seed):
    lower, right = random(d, d, seed=seed), random(d, k, seed=seed + 1)
    full = lower.tril() + lower.tril(-1).T
    spoilt = lower.tril() + torch.full((d, d), torch.nan, dtype=torch.float64).triu(1).nan_to_num(1e30)
    assert relative(linalg.symmetric_matmul(spoilt, right).numpy(), (full @ right).numpy()) <= 1e-12
    for side in (1, 7, 16, 64):
        found = linalg.symmetric_matmul_by_tiles(spoilt, right, side)
        assert relative(found.numpy(), (full @ right).numpy()) <= 1e-12


@given(d=st.integers(1, 40), seed=st.integers(0, 999))
def test_mirror_copies_the_lower_triangle_up(d, seed):
    matrix = random(d, d, seed=seed)
    expected = matrix.tril() + matrix.tril(-1).T
    assert linalg.mirror_(matrix) is matrix
    assert torch.equal(matrix, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@given(d=st.integers(1, 40), seed=st.integers(0, 999))
def test_cholesky_factorizes_in_place_from_the_lower_triangle(dtype, d, seed):
    A = positive_definite(d, seed, gamma=1.0)
    matrix = (A.tril() + 1e30 * torch.ones_like(A).triu(1)).to(dtype)
    L = linalg.cholesky_(matrix, 1.0)
    assert L.data_ptr() == matrix.data_ptr()
    assert relative((L.tril() @ L.tril().T).double().numpy(), A.numpy()) <= 10 * ROUNDING[dtype]


def test_failed_cholesky_names_gamma_precision_and_pivot():
    matrix = torch.diag(torch.tensor([2.0, 1.0, -1.0, 3.0], dtype=torch.float64))
    with pytest.raises(SingularMatrixError, match=r"γ = 0\.25, float64, 4 x 4.*pivot 3 of 4") as caught:
        linalg.cholesky_(matrix, 0.25)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, ArithmeticError)


@pytest.mark.parametrize(("dtype", "tiny"), [(torch.float64, 1e-18), (torch.float32, 1e-9)])
def test_a_pivot_that_is_rounding_noise_is_refused(dtype, tiny):
    matrix = torch.diag(torch.tensor([1.0, 1.0, tiny], dtype=dtype))
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(SingularMatrixError, match=f"{name}.*smallest pivot is {tiny:.3g}.*noise"):
        linalg.cholesky_(matrix, 0.0)
    linalg.cholesky_(torch.diag(torch.tensor([1.0, 1.0, tiny * 1e4], dtype=dtype)), 0.0)


def test_nothing_is_added_to_the_diagonal_to_get_through():
    rows = random(3, 6)
    with pytest.raises(SingularMatrixError):
        linalg.cholesky_(rows.T @ rows, 0.0)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_matrix_that_is_not_finite_is_refused(bad):
    matrix = torch.eye(4, dtype=torch.float64)
    matrix[2, 1] = bad
    with pytest.raises(SingularMatrixError):
        linalg.cholesky_(matrix, 1.0)


@given(d=st.integers(1, 40), k=st.integers(1, 5), seed=st.integers(0, 999))
def test_triangular_solves_read_the_lower_triangle_only(d, k, seed):
    A, right = positive_definite(d, seed, gamma=1.0), random(d, k, seed=seed + 1)
    L = torch.linalg.cholesky(A)
    spoilt = L + 1e30 * torch.ones_like(L).triu(1)
    assert relative(linalg.cholesky_solve(spoilt, right), np.linalg.solve(A, right)) <= 1e-9
    assert relative(linalg.solve_lower(spoilt, right), np.linalg.solve(L, right)) <= 1e-9
    assert relative(linalg.solve_lower_transposed(spoilt, right), np.linalg.solve(L.T, right)) <= 1e-9


@pytest.mark.parametrize("sign", [1, -1])
@given(d=st.integers(2, 40), n=st.integers(1, 20), seed=st.integers(0, 999))
def test_woodbury_gives_the_updated_inverse_and_gain(sign, d, n, seed):
    X = random(n, d, seed=seed + 1)
    before = positive_definite(d, seed, gamma=1.0) + (X.T @ X if sign < 0 else 0.0)
    R = torch.from_numpy(np.linalg.inv(before.numpy()))
    V, C = linalg.woodbury(R @ X.T, X, sign)
    after = np.linalg.inv((before + sign * X.T @ X).numpy())
    # Eq. (10) and the gain of Eq. (9)
    assert relative((R - sign * V @ V.T).numpy(), after) <= 1e-8
    assert relative((V @ torch.linalg.inv(C)).numpy(), after @ X.T.numpy()) <= 1e-8


def test_woodbury_refuses_to_remove_rows_that_are_not_there():
    R = torch.linalg.inv(positive_definite(6, gamma=1.0))
    X = 1e3 * random(1, 6, seed=5)
    with pytest.raises(SingularMatrixError, match="cannot be removed"):
        linalg.woodbury(R @ X.T, X, sign=-1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_inverse_from_the_factor_is_full_and_symmetric(dtype):
    A = positive_definite(30, gamma=5.0)
    L = torch.linalg.cholesky(A).to(dtype).contiguous()
    inverse = linalg.cholesky_inverse_(L)
    assert inverse.data_ptr() == L.data_ptr()
    assert torch.equal(inverse, inverse.T)
    assert relative(inverse.numpy(), np.linalg.inv(A.numpy())) <= 100 * ROUNDING[dtype]


@given(d=st.integers(1, 50), seed=st.integers(0, 999))
def test_trace_of_inverse_is_that_of_numpy(d, seed):
    A = positive_definite(d, seed, gamma=0.5)
    L = torch.linalg.cholesky(A)
    L += 1e30 * torch.ones_like(L).triu(1)
    assert linalg.trace_of_inverse(L) == pytest.approx(
        float(np.trace(np.linalg.inv(A.numpy()))), rel=1e-9
    )


SPECTRA = {
    "geometric": np.geomspace(1, 1e-6, 60),
    "flat": np.ones(60),
    "one above": np.r_[3.0, np.ones(59)],
    "linear": np.linspace(0.01, 1, 60),
    "pair": np.r_[1.0, 1.0, np.full(58, 0.1)],
}


@pytest.mark.parametrize("name", SPECTRA)
def test_largest_eigenvalue_is_estimated_from_below_within_a_tenth(name):
    values = SPECTRA[name]
    Q = np.linalg.qr(random(60, 60).numpy())[0]
    A = torch.from_numpy((Q * values) @ Q.T)
    estimate = linalg.largest_eigenvalue(lambda block: A @ block, random(60, 4, seed=3))
    assert estimate <= values.max() * (1 + 1e-9)
    assert estimate >= 0.9 * values.max()


def test_largest_eigenvalue_finds_one_direction_among_thousands():
    values = torch.ones(4000, 1, dtype=torch.float64)
    values[7] = 2.5
    estimate = linalg.largest_eigenvalue(lambda block: values * block, random(4000, 4))
    assert estimate >= 2.5 / 2**0.5, "both ends off by √2 would make κ wrong by 2"


def test_condition_number_of_a_factor_is_that_of_the_rows():
    rows = random(60, 20)
    A = rows.T @ rows
    start = random(20, 4, seed=1)
    factor = linalg.cholesky_(A.clone(), 0.0)
    largest = linalg.largest_eigenvalue(lambda block: A @ block, start)
    inverse = linalg.largest_eigenvalue(lambda block: linalg.cholesky_solve(factor, block), start)
    assert largest * inverse == pytest.approx(condition_number(rows.numpy(), 0.0), rel=0.3)
