"""The sums: additive, mergeable, subtractable."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acil.analytic import Statistics
from strategies import relative

ROUNDING = 1e-13


def samples(n=40, d=7, c=4, seed=0):
    rng = np.random.default_rng(seed)
    rows = torch.from_numpy(rng.normal(size=(n, d)))
    columns = torch.from_numpy(rng.integers(0, c, n))
    weights = torch.from_numpy(rng.uniform(0.1, 3, n))
    return rows, columns, weights


def expected_sums(rows, columns, weights, c):
    rows, columns, weights = rows.numpy(), columns.numpy(), weights.numpy()
    Y = np.eye(c)[columns]
    return (
        np.tril((rows * weights[:, None]).T @ rows),
        (rows * weights[:, None]).T @ Y,
        np.bincount(columns, minlength=c),
        np.bincount(columns, weights, minlength=c),
    )


def look(sums):
    return sums.gram.tril().numpy(), sums.moment.numpy(), sums.counts.numpy(), sums.weights.numpy()


def assert_close(sums, expected, tolerance=ROUNDING):
    for ours, theirs in zip(look(sums), expected, strict=True):
        assert np.abs(ours - theirs).max(initial=0.0) <= tolerance * (
            1 + np.abs(theirs).max(initial=0.0)
        )


@pytest.mark.parametrize("weighted", [False, True])
@given(
    n=st.integers(1, 60),
    d=st.integers(1, 12),
    c=st.integers(1, 6),
    seed=st.integers(0, 999),
    cut=st.floats(0, 1),
)
def test_sums_are_those_of_numpy_however_they_are_cut(weighted, n, d, c, seed, cut):
    rows, columns, weights = samples(n, d, c, seed)
    if not weighted:
        weights = torch.ones(n, dtype=torch.float64)
    sums = Statistics(d, c)
    middle = int(cut * n)
    for part in (slice(0, middle), slice(middle, n)):
        if len(columns[part]):
            sums.add(rows[part], columns[part], weights[part] if weighted else None)
    assert_close(sums, expected_sums(rows, columns, weights, c), 1e-12)
    assert sums.n_samples == n
    assert sums.total_weight == pytest.approx(float(weights.sum()))
    assert sums.target_square == sums.total_weight


def test_known_sums_by_hand():
    sums = Statistics(2, 2)
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    sums.add(rows, torch.tensor([1, 0]), torch.tensor([1.0, 2.0]))
    assert np.allclose(sums.gram.tril(), [[19.0, 0.0], [26.0, 36.0]], rtol=1e-15)
    assert np.allclose(sums.moment, [[6.0, 1.0], [8.0, 2.0]], rtol=1e-15)
    assert sums.counts.tolist() == [1, 1]
    assert sums.weights.tolist() == [2.0, 1.0]
    assert sums.mean.tolist() == pytest.approx([7 / 3, 10 / 3])
    assert sums.mean_square == pytest.approx((19 + 36) / 2)


def test_subtracting_undoes_adding():
    rows, columns, weights = samples()
    sums = Statistics(7, 4)
    sums.add(rows, columns, weights)
    sums.subtract(rows[:25], columns[:25], weights[:25])
    assert_close(sums, expected_sums(rows[25:], columns[25:], weights[25:], 4), 1e-12)


def test_merging_adds_columns_where_they_belong():
    rows, columns, weights = samples()
    left, right = Statistics(7, 4), Statistics(7, 2)
    left.add(rows[:20], columns[:20], weights[:20])
    to = torch.tensor([3, 1])
    right.add(rows[20:], columns[20:] % 2, weights[20:])
    left.merge(right, to)
    combined = torch.cat([columns[:20], to[columns[20:] % 2]])
    assert_close(left, expected_sums(rows, combined, weights, 4), 1e-12)


def test_growing_moves_columns_and_leaves_the_new_ones_empty():
    rows, columns, weights = samples(c=2)
    sums = Statistics(7, 2)
    sums.add(rows, columns, weights)
    before = sums.copy()
    sums.grow(torch.tensor([2, 0]), 4)
    assert torch.equal(sums.moment[:, [2, 0]], before.moment)
    assert not sums.moment[:, [1, 3]].any()
    assert sums.counts[[2, 0]].tolist() == before.counts.tolist()
    assert sums.counts[[1, 3]].tolist() == [0, 0]
    assert sums.weights[[2, 0]].tolist() == before.weights.tolist()
    assert torch.equal(sums.gram, before.gram)
    sums.keep(torch.tensor([0, 2]))
    assert torch.equal(sums.moment, before.moment[:, [1, 0]])
    assert sums.n_classes == 2


def test_a_copy_shares_no_memory():
    rows, columns, weights = samples()
    sums = Statistics(7, 4)
    sums.add(rows, columns, weights)
    twin = sums.copy()
    before = [value.copy() for value in look(sums)]
    twin.add(rows, columns, weights)
    assert all(np.array_equal(a, b) for a, b in zip(look(sums), before, strict=True))
    assert twin.n_samples == 2 * sums.n_samples


def test_float32_rows_go_into_float64_sums():
    rows, columns, weights = samples(2000, 9)
    sums = Statistics(9, 4)
    for start in range(0, 2000, 100):
        part = slice(start, start + 100)
        sums.add(rows[part].float(), columns[part], weights[part])
    expected = expected_sums(rows.float().double(), columns, weights, 4)
    assert sums.gram.dtype == torch.float64
    assert relative(sums.gram.tril().numpy(), expected[0]) < 1e-6
    assert relative(sums.gram.tril().numpy(), expected[0]) > 1e-12, "products are float32"
    assert np.allclose(sums.weights.numpy(), expected[3], rtol=1e-13), "weights are summed in float64"


def test_only_classes_that_are_present_are_touched():
    rows, _, _ = samples(5)
    sums = Statistics(7, 1000)
    sums.add(rows, torch.full((5,), 700))
    assert torch.nonzero(sums.moment.any(dim=0)).flatten().tolist() == [700]
    assert sums.counts[700] == 5


def test_a_weight_of_two_is_two_samples_except_in_the_count():
    rows, columns, _ = samples(6)
    heavy, twice = Statistics(7, 4), Statistics(7, 4)
    heavy.add(rows, columns, torch.full((6,), 2.0))
    twice.add(torch.cat([rows, rows]), torch.cat([columns, columns]))
    assert relative(heavy.gram.tril().numpy(), twice.gram.tril().numpy()) <= 1e-14
    assert heavy.n_samples == 6
    assert heavy.total_weight == twice.total_weight == 12
