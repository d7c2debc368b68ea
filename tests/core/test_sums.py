"""The sums: additive, mergeable, subtractable; and the matrix that is written in place."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acil.core.sums import Matrix, Stack, Sums
from acil.errors import InterruptedModelError
from support.regressions import samples, sums_of, weights_for
from support.strategies import relative

ROUNDING = 1e-12


def expected_sums(rows, columns, c, weights):
    X, w = rows.numpy(), weights.numpy()
    moment = (X * w[:, None]).T @ np.eye(c)[columns.numpy()]
    counts, weights = (np.bincount(columns.numpy(), part, minlength=c) for part in (None, w))
    return np.tril((X * w[:, None]).T @ X), moment, counts, weights


def look(sums):
    return sums.gram.tril().numpy(), sums.moment.numpy(), sums.counts.numpy(), sums.target_total.numpy()


def assert_close(sums, expected):
    for ours, theirs in zip(look(sums), expected, strict=True):
        assert np.allclose(ours, theirs, rtol=0, atol=ROUNDING * (1 + np.abs(theirs).max(initial=0)))


@pytest.mark.parametrize("heavy", [False, True])
@given(n=st.integers(1, 60), d=st.integers(1, 12), c=st.integers(1, 6), seed=st.integers(0, 999))
def test_sums_are_those_of_numpy_however_they_are_cut(heavy, n, d, c, seed):
    rows, columns = samples(n, d, c, seed)
    weights = weights_for(n, seed) if heavy else torch.ones(n, dtype=torch.float64)
    sums, first = Sums(d, c, torch.float64), seed % (n + 1)
    for part in (slice(0, first), slice(first, None)):
        halves = [(rows[part][i::2], columns[part][i::2], weights[part][i::2]) for i in (0, 1)]
        sums.add(halves if heavy else [(X, y, None) for X, y, _ in halves])
    assert_close(sums, expected_sums(rows, columns, c, weights))
    assert sums.n_samples == n
    assert sums.total_weight == pytest.approx(float(weights.sum()))
    assert torch.allclose(sums.total, weights @ rows, rtol=0, atol=1e-11)


def test_known_sums_by_hand():
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    sums = sums_of(rows, torch.tensor([1, 0]), 2, torch.tensor([1.0, 2.0]))
    assert np.allclose(sums.gram.tril(), [[19.0, 0.0], [26.0, 36.0]], rtol=1e-15)
    assert np.allclose(sums.moment, [[6.0, 1.0], [8.0, 2.0]], rtol=1e-15)
    assert sums.counts.tolist() == [1, 1]
    assert sums.target_total.tolist() == [2.0, 1.0]


def test_float32_rows_go_into_float64_sums():
    (rows, columns), weights = samples(2000, 9, 4), weights_for(2000)
    blocks = zip(rows.float().split(100), columns.split(100), weights.split(100), strict=True)
    sums = Sums(9, 4, torch.float64)
    sums.add(blocks)
    expected = expected_sums(rows.float().double(), columns, 4, weights)
    assert sums.gram.dtype == torch.float64
    assert 1e-12 < relative(sums.gram.tril(), expected[0]) < 1e-6, "products are float32"
    assert np.allclose(sums.target_total, expected[3], rtol=1e-13), "weights are summed in float64"


def interrupted():
    yield samples(5, 7, 4)[0], torch.zeros(5, dtype=torch.int64), None
    raise KeyboardInterrupt


def test_an_interrupted_change_leaves_a_matrix_that_says_why_it_cannot_be_used():
    sums = sums_of(*samples(40, 7, 4), 4)
    with pytest.raises(KeyboardInterrupt):
        sums.draft(torch.arange(4), 4).add(interrupted())
    assert sums.matrix.version == -1
    for use in (lambda: sums.gram, lambda: sums.clone(), lambda: pickle.loads(pickle.dumps(sums)).gram):
        with pytest.raises(InterruptedModelError, match="interrupted"):
            use()


def test_what_fails_before_the_first_write_changes_nothing():
    sums, other = sums_of(*samples(40, 7, 4), 4), sums_of(*samples(9, 7, 2), 2)
    with pytest.raises(KeyboardInterrupt):
        other.add(interrupted())
    with pytest.raises(InterruptedModelError):
        sums.merge(other, torch.arange(2))
    assert_close(sums, expected_sums(*samples(40, 7, 4), 4, torch.ones(40)))


def test_memory_for_a_factor_is_the_same_until_another_size_is_asked_for():
    matrix = Matrix(torch.eye(3))
    first = matrix.scratch(3, torch.float32)
    assert matrix.scratch(3, torch.float32) is first
    assert matrix.scratch(4, torch.float32).shape == (4, 4)
    assert matrix.scratch(4, torch.float64).dtype == torch.float64
    assert pickle.loads(pickle.dumps(matrix)).spare is None


def test_a_shorter_stack_does_not_see_the_rows_of_a_longer_one():
    rows = samples(300, 5, 2)[0]
    stacks = [Stack(rows.new_empty(0, 5))]
    for start in range(0, 300, 3):
        stacks.append(stacks[-1].plus(rows[start : start + 3]))
    for k, stack in enumerate(stacks):
        assert stack.length == 3 * k
        assert torch.equal(stack.values, rows[: 3 * k])
    assert len({stack.memory.data_ptr() for stack in stacks}) < 10, "memory grows in large steps"
