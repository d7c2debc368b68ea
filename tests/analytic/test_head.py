"""The Gram head: solved when needed, corrected when cheap, refined when ill-conditioned."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acil.analytic import PRECISIONS, GramHead
from acil.analytic.factor import CorrectedFactor
from acil.errors import InputError, SingularMatrixError
from strategies import EPS64, condition_number, long_double_ridge, relative

CPU = torch.device("cpu")


def head_of(d, c, gamma=1.0, precision="float64", fit_intercept=False):
    head = GramHead(d, PRECISIONS[precision], CPU, gamma, fit_intercept)
    head.grow(torch.zeros(0, dtype=torch.int64), c)
    return head


def samples(n, d, c, seed=0, shift=0.0):
    rng = np.random.default_rng(seed)
    rows = torch.from_numpy(rng.normal(size=(n, d)) + shift)
    return rows, torch.from_numpy(rng.integers(0, c, n))


def block(rows, columns, weights=None):
    return [(rows, columns, weights)]


def ridge(rows, columns, c, gamma=1.0, fit_intercept=False):
    X, Y = rows.numpy(), np.eye(c)[columns.numpy()]
    mean, prior = X.mean(axis=0) * fit_intercept, Y.mean(axis=0) * fit_intercept
    X, Y = X - mean, Y - prior
    W = np.linalg.solve(X.T @ X + gamma * np.eye(X.shape[1]), X.T @ Y)
    return W, prior - mean @ W


@pytest.mark.parametrize("fit_intercept", [False, True])
@given(d=st.integers(1, 30), n=st.integers(5, 80), c=st.integers(1, 5), seed=st.integers(0, 999))
def test_weights_are_those_of_ridge_regression(fit_intercept, d, n, c, seed):
    rows, columns = samples(n, d, c, seed, shift=1.0)
    head = head_of(d, c, fit_intercept=fit_intercept)
    head.learn(block(rows, columns), n)
    W, b = head.coefficients()
    expected = ridge(rows, columns, c, fit_intercept=fit_intercept)
    assert relative(W.numpy() + 1, expected[0] + 1) <= 1e-10
    assert relative(b.numpy() + 1, expected[1] + 1) <= 1e-10


def test_weights_are_solved_once_and_cached(monkeypatch):
    calls = []
    factorize = CorrectedFactor.factorize
    monkeypatch.setattr(
        CorrectedFactor, "factorize", lambda self, *args: (calls.append(1), factorize(self, *args))
    )
    rows, columns = samples(50, 10, 3)
    head = head_of(10, 3)
    head.learn(block(rows, columns), 50)
    assert not calls, "learning alone solves nothing"
    for _ in range(3):
        head.coefficients()
        head.novelty(rows[:2])
        head.condition()
    assert len(calls) == 1


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_corrected_weights_are_those_of_a_new_solution(fit_intercept, weighted):
    rows, columns = samples(200, 30, 4, shift=0.5)
    weights = torch.from_numpy(np.random.default_rng(1).uniform(0.2, 3, 200)) if weighted else None

    def share(part):
        return None if weights is None else weights[part]

    head = head_of(30, 4, fit_intercept=fit_intercept)
    head.learn(block(rows[:180], columns[:180], share(slice(0, 180))), 180)
    head.coefficients()
    for start in range(180, 200, 2):
        part = slice(start, start + 2)
        head.learn(block(rows[part], columns[part], share(part)), 2)
    assert head._solution.factor.rank > 0
    corrected = [value.clone() for value in head.coefficients()]
    novelty = head.novelty(rows[:9])
    head.solve_anew()
    assert head._solution.factor.rank == 0
    fresh = head.coefficients()
    assert not torch.equal(corrected[0], fresh[0]), "it must have been a correction"
    assert relative(corrected[0].numpy(), fresh[0].numpy()) <= 1e-11
    assert relative(corrected[1].numpy() + 1, fresh[1].numpy() + 1) <= 1e-11
    assert relative(novelty.numpy(), head.novelty(rows[:9]).numpy()) <= 1e-11


def test_a_correction_that_fails_half_way_is_dropped():
    rows, columns = samples(100, 30, 4)
    head = head_of(30, 4, gamma=1e-3)
    head.learn(block(rows[:90], columns[:90]), 90)
    head.coefficients()
    far = rows[95:96] * 1e4
    head.learn(block(rows[90:95], columns[90:95]) + block(far, columns[95:96]), 6)
    assert head._solution.factor.rank == 0
    seen = torch.cat([rows[:95], far])
    W, _ = ridge(seen, columns[:96], 4, gamma=1e-3)
    condition = condition_number(seen.numpy(), 1e-3)
    assert relative(head.coefficients()[0].numpy(), W) <= max(1e-10, 10 * EPS64 * condition)


def test_release_keeps_sums_and_no_trace_of_recent_rows():
    rows, columns = samples(100, 30, 4)
    head = head_of(30, 4)
    head.learn(block(rows[:95], columns[:95]), 95)
    head.coefficients()
    head.learn(block(rows[95:], columns[95:]), 5)
    assert head._solution.factor.rank == 5
    head.release()
    assert head._solution.factor._buffer is None
    assert head._solution.factor._rows is None
    assert relative(head.coefficients()[0].numpy(), ridge(rows, columns, 4)[0]) <= 1e-11


def test_weights_solved_before_are_restored_bit_by_bit():
    rows, columns = samples(100, 30, 4)
    head = head_of(30, 4)
    head.learn(block(rows, columns), 100)
    coef = head.coefficients()[0].clone()
    other = head_of(30, 4)
    other.restore(head.statistics.copy(), coef.clone())
    assert torch.equal(other.coefficients()[0], coef)
    assert torch.allclose(other.novelty(rows[:3]), head.novelty(rows[:3]), rtol=1e-12)
    other.learn(block(rows[:2], columns[:2]), 2)
    head.learn(block(rows[:2], columns[:2]), 2)
    assert relative(other.coefficients()[0].numpy(), head.coefficients()[0].numpy()) <= 1e-12


@pytest.mark.parametrize("condition", [1e8, 1e9, 1e10])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_ill_conditioned_weights_are_those_of_long_double(condition, fit_intercept):
    d, n = 40, 80
    rng = np.random.default_rng(0)
    left = np.linalg.qr(rng.normal(size=(n, d)))[0]
    right = np.linalg.qr(rng.normal(size=(d, d)))[0]
    rows = torch.from_numpy((left * np.geomspace(1, condition**-0.5, d)) @ right)
    columns = torch.from_numpy(rng.integers(0, 3, n))
    head = head_of(d, 3, gamma=1e-14, fit_intercept=fit_intercept)
    head.learn(block(rows, columns), n)
    W = head.coefficients()[0].numpy()
    exact = long_double_ridge(rows.numpy(), np.eye(3)[columns], 1e-14, fit_intercept)[0]
    # Long double has 11 bits more; its own solution is off by some eps·κ of them.
    assert relative(W, exact) <= max(1e-13, 10 * EPS64 / 2**11 * condition)


def test_mixed_precision_is_refined_to_the_precision_of_its_sums():
    rows, columns = samples(500, 40, 4)
    head = head_of(40, 4, precision="mixed")
    head.learn(block(rows.float(), columns), 500)
    W = head.coefficients()[0]
    assert head._solution.factor.dtype == torch.float32
    assert W.dtype == torch.float64
    lower = head.statistics.gram.tril()
    gram = (lower + lower.tril(-1).T).numpy() + np.eye(40)
    exact = np.linalg.solve(gram, head.statistics.moment.numpy())
    assert relative(W.numpy(), exact) <= 1e-9, "far better than a float32 solution"


def test_forgetting_what_cannot_have_been_learnt_changes_nothing():
    rows, columns = samples(50, 10, 3)
    head = head_of(10, 3)
    head.learn(block(rows, columns), 50)
    coef, before = head.coefficients()[0].clone(), head.statistics.copy()
    with pytest.raises(InputError, match="cannot be forgotten"):
        head.forget(block(rows[:3], columns[:3]) + block(rows[3:4] * 100, columns[3:4]))
    assert torch.equal(head.statistics.gram, before.gram)
    assert torch.equal(head.statistics.counts, before.counts)
    assert torch.equal(head.coefficients()[0], coef)


@pytest.mark.parametrize("precision", ["float64", "float32", "mixed"])
@pytest.mark.parametrize("n_left", [1, 5, 30, 199])
def test_forgetting_what_was_learnt_is_always_possible(precision, n_left):
    # Also when fewer samples are left than there are dimensions: then gram is singular.
    rows, columns = samples(200, 30, 3, shift=2.0)
    rows = rows.to(PRECISIONS[precision].products)
    head = head_of(30, 3, precision=precision)
    head.learn(block(rows, columns), 200)
    head.forget(block(rows[n_left:], columns[n_left:]))
    assert int(head.counts.sum()) == n_left


def test_forgetting_everything_leaves_empty_sums():
    rows, columns = samples(50, 10, 3)
    head = head_of(10, 3)
    head.learn(block(rows, columns), 50)
    head.forget(block(rows, columns))
    assert not head.statistics.gram.any()
    assert not head.counts.any()


def test_gamma_is_selected_at_the_first_solve_and_kept():
    rows, columns = samples(200, 10, 3)
    head = head_of(10, 3, gamma=None)
    head.learn(block(rows, columns), 200)
    assert head.gamma is None
    head.coefficients()
    first = head.gamma
    assert first is not None
    assert first == head_selected(rows, columns)
    head.learn(block(rows[:50] * 3, columns[:50]), 50)
    head.coefficients()
    assert head.gamma == first


def head_selected(rows, columns):
    head = head_of(10, 3, gamma=None)
    head.learn(block(rows, columns), len(rows))
    return head.select_gamma().best


def test_diagnostics_are_those_of_numpy():
    rows, columns = samples(80, 12, 3, shift=0.5)
    for fit_intercept in (False, True):
        head = head_of(12, 3, gamma=0.7, fit_intercept=fit_intercept)
        head.learn(block(rows, columns), 80)
        X = rows.numpy() - rows.numpy().mean(axis=0) * fit_intercept
        R = np.linalg.inv(X.T @ X + 0.7 * np.eye(12))
        true = condition_number(X, 0.7)
        assert true / 2 <= head.condition() <= 2 * true
        assert head.trace_of_inverse() == pytest.approx(np.trace(R), rel=1e-10)
        Y = np.eye(3)[columns.numpy()]
        assert relative(head.moment().numpy(), X.T @ Y) <= 1e-12


def test_too_ill_conditioned_for_mixed_precision_is_refused_each_time():
    rows, columns = samples(20, 40, 3)
    head = head_of(40, 3, gamma=1e-7, precision="mixed")
    head.learn(block(rows.float(), columns), 20)
    for _ in range(2):
        with pytest.raises(SingularMatrixError, match="float64"):
            head.coefficients()
    assert head._solution.coef is None


def test_merging_forgets_the_old_factor():
    rows, columns = samples(100, 10, 3)
    left, right = head_of(10, 3), head_of(10, 3)
    left.learn(block(rows[:50], columns[:50]), 50)
    right.learn(block(rows[50:], columns[50:]), 50)
    left.coefficients()
    left.merge(right, torch.arange(3))
    assert relative(left.coefficients()[0].numpy(), ridge(rows, columns, 3)[0]) <= 1e-11


def test_release_can_leave_the_memory_for_the_next_factor():
    rows, columns = samples(100, 30, 4)
    head = head_of(30, 4)
    head.learn(block(rows[:95], columns[:95]), 95)
    head.coefficients()
    place = head._solution.factor._buffer.data_ptr()
    head.learn(block(rows[95:], columns[95:]), 5)
    head.release(memory=False)
    assert (head._solution.factor.rank, head._solution.factor._rows, head._solution.factor.ready) == (
        0,
        None,
        False,
    )
    assert relative(head.coefficients()[0].numpy(), ridge(rows, columns, 4)[0]) <= 1e-11
    assert head._solution.factor._buffer.data_ptr() == place
