"""Symmetric linear algebra against NumPy, on the triangle that is kept."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acil.core import linalg
from support.strategies import relative

#: Rounding of products of a few hundred terms.
ROUNDING = {torch.float64: 1e-13, torch.float32: 1e-5}
BOTH = pytest.mark.parametrize("dtype", ROUNDING)

pytestmark = pytest.mark.usefixtures("library")


@pytest.fixture(autouse=True, params=[False, True], ids=["one panel", "many panels"])
def panels(request, monkeypatch):
    """Run everything with one wide panel and with many narrow ones."""
    if request.param:
        for name, width in {"PANEL": 7, "_GRAM_PANEL": 12, "_GRAM_STEP": 5, "_COPIED": 0}.items():
            monkeypatch.setattr(linalg, name, width)


def random(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def positive_definite(d, seed=0, gamma=0.1):
    rows = random(2 * d, d, seed=seed)
    return rows.T @ rows + gamma * torch.eye(d, dtype=torch.float64)


def spoilt(lower):
    """Return a matrix that means something in its lower triangle only."""
    return lower.tril() + 1e30 * torch.ones_like(lower).triu(1)


@BOTH
@pytest.mark.parametrize("sign", [1, -1])
@given(n=st.integers(1, 40), d=st.integers(1, 30), seed=st.integers(0, 999), by_columns=st.booleans())
def test_gram_is_added_to_the_lower_triangle(dtype, sign, n, d, seed, by_columns):
    rows, start = random(n, d, seed=seed, dtype=dtype), random(d, d, seed=seed + 1, dtype=dtype)
    # A matrix by columns, too: SciPy works on a copy of it.
    kept = start.clone()
    gram = start.mT.contiguous().mT if by_columns else start
    assert linalg.add_gram_(gram, rows, sign) is gram
    expected = kept + sign * rows.T @ rows
    assert torch.allclose(gram.tril(), expected.tril(), rtol=ROUNDING[dtype], atol=ROUNDING[dtype] * n)


def test_what_a_routine_returns_counts_even_if_it_is_a_copy():
    matrix = random(5, 5)
    expected = matrix + 1
    assert linalg._in_place(lambda place: (place + 1, 17), matrix) == [17]
    assert torch.equal(matrix, expected)


@pytest.mark.parametrize(("width", "taken"), [(7, False), (8, True), (9, True), (10, False)])
def test_scipy_is_taken_between_two_widths(width, taken, monkeypatch):
    monkeypatch.setattr(linalg, "SCIPY_FROM", 8)
    monkeypatch.setattr(linalg, "SCIPY_UP_TO", 9)
    routine, asked = linalg._routine, []

    def counting(name, *rest, **options):
        asked.append(name)
        return routine(name, *rest, **options)

    monkeypatch.setattr(linalg, "_routine", counting)
    rows = torch.randn(3, width, dtype=torch.float64)
    gram = linalg.add_gram_(torch.eye(width, dtype=torch.float64), rows)
    assert torch.allclose(gram.tril(), (rows.mT @ rows).tril() + torch.eye(width))
    assert int(linalg.cholesky_in_place_(gram)) == 0
    assert asked == (["syrk", "potrf"] if taken else [])


@pytest.mark.parametrize("sign", [1, -1])
def test_float32_rows_are_multiplied_in_float32_and_added_in_float64(sign):
    rows, start = random(50, 23, dtype=torch.float32), random(23, 23, seed=1) * 1e6
    gram = linalg.add_gram_(start.clone(), rows, sign)
    exact = (rows.double().T @ rows.double()).tril()
    error = relative(sign * (gram - start).tril(), exact)
    # Added to float32 sums of 1e6, products of size 50 would lose four digits more.
    assert error < 1e-6, "products must be as good as float32"
    assert error > 1e-10, "products must not be computed in float64"


@pytest.mark.parametrize("rows", [random(20, 9), random(9, 20).T, random(40, 18)[::2, ::2]])
def test_rows_of_any_layout_are_added(rows):
    gram = linalg.add_gram_(torch.zeros(9, 9, dtype=torch.float64), rows)
    assert torch.allclose(gram.tril(), (rows.T @ rows).tril(), rtol=1e-13, atol=1e-12)


@given(d=st.integers(1, 30), k=st.integers(1, 3), seed=st.integers(0, 999))
def test_products_read_the_lower_triangle_alone(d, k, seed):
    full, right = positive_definite(d, seed), random(d, k, seed=seed + 1)
    kept = spoilt(full)
    assert relative(linalg.symmetric_product(kept, right), full @ right) < ROUNDING[torch.float64]
    assert torch.equal(kept, spoilt(full))


@given(d=st.integers(1, 40), seed=st.integers(0, 999))
def test_mirror_copies_the_lower_triangle_up(d, seed):
    matrix = random(d, d, seed=seed)
    expected = matrix.tril() + matrix.tril(-1).T
    assert linalg.mirror_(matrix) is matrix
    assert torch.equal(matrix, expected)


@BOTH
@given(d=st.integers(1, 40), seed=st.integers(0, 999), by_columns=st.booleans())
def test_cholesky_works_in_place_on_the_lower_triangle(dtype, d, seed, by_columns):
    A = positive_definite(d, seed, gamma=1.0)
    memory = torch.empty(d, d, dtype=dtype)
    matrix = memory.mT if by_columns else memory
    matrix.copy_(spoilt(A))
    assert int(linalg.cholesky_in_place_(matrix)) == 0
    L = (memory.mT if by_columns else memory).tril().double()
    assert relative(L @ L.T, A) <= 10 * ROUNDING[dtype]


def test_failed_cholesky_names_the_first_minor_that_is_not_positive():
    for place in (1, 5, 20):
        matrix = torch.eye(20, dtype=torch.float64)
        matrix[place - 1, place - 1] = -1.0
        assert int(linalg.cholesky_in_place_(matrix)) == place


@BOTH
@given(d=st.integers(1, 40), k=st.integers(0, 5), seed=st.integers(0, 999))
def test_triangular_solutions_are_those_of_numpy(dtype, d, k, seed):
    L = torch.linalg.cholesky(positive_definite(d, seed, gamma=1.0))
    lower, right = spoilt(L).to(dtype), random(d, k, seed=seed + 1, dtype=dtype)
    for transposed, matrix in ((False, L), (True, L.T)):
        solved = linalg.solve_lower(lower, right, transposed)
        assert solved.dtype == dtype
        expected = np.linalg.solve(matrix.numpy(), right.double().numpy())
        assert np.allclose(solved.numpy(), expected, rtol=0, atol=100 * ROUNDING[dtype])


@BOTH
def test_inverse_from_the_factor_is_full_and_symmetric(dtype):
    A = positive_definite(30, gamma=5.0)
    L = spoilt(torch.linalg.cholesky(A)).to(dtype).contiguous()
    inverse = linalg.cholesky_inverse_(L)
    assert inverse.data_ptr() == L.data_ptr()
    assert torch.equal(inverse, inverse.T)
    assert relative(inverse, np.linalg.inv(A.numpy())) <= 100 * ROUNDING[dtype]


@pytest.mark.parametrize("overwrite", [False, True])
@given(d=st.integers(1, 50), seed=st.integers(0, 999))
def test_squared_norm_of_the_inverse_is_the_trace_of_the_whole(overwrite, d, seed):
    A = positive_definite(d, seed, gamma=0.5)
    L = spoilt(torch.linalg.cholesky(A))
    before, expected = L.clone(), float(np.trace(np.linalg.inv(A.numpy())))
    assert linalg.squared_norm_of_inverse(L, overwrite) == pytest.approx(expected, rel=1e-9)
    assert overwrite or torch.equal(L, before)


SPECTRA = {
    "geometric": np.geomspace(1, 1e-6, 60),
    "flat": np.ones(60),
    "one above": np.r_[3.0, np.ones(59)],
    "linear": np.linspace(0.01, 1, 60),
    "pair": np.r_[1.0, 1.0, np.full(58, 0.1)],
    "one direction": np.r_[2.0, np.zeros(59)],
    "width 1": np.array([4.0]),
    "width 2": np.array([4.0, 1.0]),
    "width 3": np.array([4.0, 1.0, 1e-3]),
    "nothing": np.zeros(60),
}


@BOTH
@pytest.mark.parametrize("name", SPECTRA)
def test_largest_eigenvalue_is_estimated_from_below_to_a_hundredth(name, dtype):
    values = SPECTRA[name]
    d, top = len(values), values.max()
    Q = np.linalg.qr(random(d, d).numpy())[0]
    A = torch.from_numpy((Q * values) @ Q.T).to(dtype)
    estimate = linalg.largest_eigenvalue(lambda block: A @ block, A)
    assert 0.99 * top <= estimate <= top * (1 + ROUNDING[dtype])


def test_largest_eigenvalue_finds_one_direction_among_thousands():
    values = torch.ones(2000, 1, dtype=torch.float64)
    values[7] = 1.5
    # Only size and type are read.
    like = torch.empty(1, 1, dtype=torch.float64).expand(2000, 2000)
    assert linalg.largest_eigenvalue(lambda block: values * block, like) >= 0.99 * 1.5


@pytest.mark.parametrize("places", [[], [0, 1, 2], [0, 2, 4], [1, 0, 2], [3, 4, 5]])
def test_every_column_is_where_it_was_sent_and_the_others_are_zero(places):
    matrix = torch.arange(1.0, 1 + 4 * len(places)).view(4, -1) if places else torch.empty(4, 0)
    found = linalg.spread(matrix, torch.tensor(places, dtype=torch.int64), 6)
    assert found.shape == (4, 6)
    assert torch.equal(found[:, places], matrix)
    assert not found[:, [place for place in range(6) if place not in places]].any()
    found.zero_()
    assert matrix.all(), "memory is shared"
