"""The default solver: weights of any samples, learnt in any way, are those of one ridge regression."""

import copy
import pickle

import numpy as np
import pytest
import torch

from acil.core import ridge
from acil.core.sums import PRECISIONS
from acil.errors import SingularMatrixError
from support.regressions import (
    condition,
    exact,
    forget,
    ill_conditioned,
    learn,
    new_ridge,
    samples,
    weights_for,
)
from support.strategies import EPS32, relative

pytestmark = pytest.mark.usefixtures("library")
EITHER = pytest.mark.parametrize("intercept", [False, True])


def coef_of(head):
    """Return W, below the intercepts if there are any; a copy."""
    return head.solved().coef.clone()


def learnt(rows, columns, c=3, weights=None, **settings):
    return learn(new_ridge(rows.shape[1], c, **settings), rows, columns, weights)


def test_weights_are_solved_once_and_only_when_asked_for(factors):
    rows, columns = samples(50, 10, 3)
    head = learnt(rows, columns)
    assert not factors
    for _ in range(3):
        head.coefficients(), head.leverage(rows), head.condition(), head.degrees_of_freedom()
    assert len(factors) == 1


@pytest.mark.parametrize(("d", "limit"), [(7, 0), (8, 1), (100, 12), (200, 20)])
def test_few_rows_wait_and_no_more_than_an_eighth_of_the_width(d, limit, monkeypatch):
    monkeypatch.setattr(ridge, "_MAX_WAITING", 20)
    rows, columns = samples(200, d, 3)
    head = new_ridge(d, 3)
    for i in range(100):
        head = learn(head, rows[i : i + 1], columns[i : i + 1])
        waiting = i + 1 - head.sums.n_samples
        assert waiting == sum(len(part[1]) for part in head._waiting) == (i + 1) % (limit + 1)
        assert int(head.counts.sum()) == i + 1
    assert learn(new_ridge(d, 3), rows, columns).sums.n_samples == 200, "many do not wait"
    assert relative(coef_of(head), exact(rows[:100], columns[:100], 3, 1.0)) <= 1e-12
    assert head.sums.n_samples == 100


@pytest.fixture
def waiting():
    """A regression with ten samples that wait, and all its samples."""
    (rows, columns), weights = samples(260, 100, 3), weights_for(260)
    head = learnt(rows[:250], columns[:250], 3, weights[:250])
    head.coefficients()
    for i in range(250, 260):
        # The last one has no weight of its own.
        head = learn(head, rows[i : i + 1], columns[i : i + 1], weights[i : i + 1] if i < 259 else None)
    weights[259] = 1.0
    assert head.sums.n_samples == 250
    return head, rows, columns, weights


@pytest.mark.parametrize(
    "ask",
    [
        lambda head: head.clone(),
        lambda head: head.drop_factor(),
        lambda head: head.flush(),
        lambda head: head.solve(),
        lambda head: head.best_gamma(),
        lambda head: head.condition(),
        lambda head: head.residual_squares(),
        lambda head: pickle.dumps(head),
        lambda head: copy.deepcopy(head),
    ],
)
def test_whoever_asks_for_the_sums_has_them_complete(waiting, ask):
    head, rows, columns, weights = waiting
    ask(head)
    assert not head._waiting
    gram = (rows.T * weights @ rows).tril()
    assert torch.allclose(head.sums.gram.tril(), gram, rtol=1e-13, atol=1e-12)
    assert torch.equal(head.sums.counts, columns.bincount())
    assert relative(head.class_weights, np.bincount(columns.numpy(), weights.numpy())) <= 1e-14
    assert relative(coef_of(head), exact(rows, columns, 3, 1.0, weights=weights)) <= 1e-11


@pytest.mark.parametrize("memory", [False, True])
def test_release_keeps_weights_and_no_trace_of_recent_rows(waiting, memory):
    head, rows, columns, weights = waiting
    before, place = coef_of(head), head.sums.matrix.spare.data_ptr()
    head.drop_factor(memory)
    assert head.solution.factor is None
    assert not head._waiting
    assert torch.equal(head.solved().coef, before)
    assert (head.sums.matrix.spare is None) == memory
    head.solve()
    assert memory or head.sums.matrix.spare.data_ptr() == place
    assert relative(coef_of(head), exact(rows, columns, 3, 1.0, weights=weights)) <= 1e-11


@EITHER
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("n_left", [0, 1, 5, 30, 199])
def test_forgetting_what_was_learnt_is_always_possible(precision, n_left, intercept):
    # Also when fewer samples are left than there are dimensions: then gram is singular.
    rows, columns = samples(200, 30, 3, shift=2.0)
    rows = rows.to(PRECISIONS[precision].products)
    head = learnt(rows, columns, precision=precision, gamma=1e3, intercept=intercept)
    head = forget(head, rows[n_left:], columns[n_left:])
    assert int(head.counts.sum()) == n_left
    if n_left == 0:
        assert not any(part.any() for part in (head.sums.gram, head.sums.moment, head.class_weights))
    elif precision == "float64":
        true = exact(rows[:n_left], columns[:n_left], 3, 1e3, intercept)
        assert relative(coef_of(head), true) <= 1e-11


@EITHER
def test_mixed_precision_is_refined_to_the_precision_of_its_sums(intercept):
    rows, columns = samples(500, 40, 3)
    head = learnt(rows.float(), columns, precision="mixed", intercept=intercept)
    W, b = head.coefficients()
    assert (head.solution.factor.L.dtype, W.dtype) == (torch.float32, torch.float64)
    plain = new_ridge(40, 3, intercept=intercept)
    plain.sums = head.sums.clone()
    assert relative(W, plain.coefficients()[0]) <= 1e-7, "far better than a float32 solution"
    assert relative(b + 1, plain.coefficients()[1] + 1) <= 1e-7
    assert relative(W, exact(rows, columns, 3, 1.0, intercept)[intercept:]) <= 1e-5


@pytest.mark.parametrize("precision", ["mixed", "float32"])
@pytest.mark.parametrize("spectrum", ["geometric", "one small", "one large", "linear"])
def test_float32_products_have_a_limit(precision, spectrum):
    d, n = 50, 400
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.normal(size=(size, d)))[0] for size in (n, d))
    for target in (1e3, 3e4, 4.9e4, 8.6e4, 2e5, 1e6):
        values = {
            "geometric": np.geomspace(1, 1 / target, d),
            "one small": np.r_[np.ones(d - 1), 1 / target],
            "one large": np.r_[np.full(d - 1, 1 / target), 1.0],
            "linear": np.linspace(1 / target, 1, d),
        }[spectrum]
        rows = torch.from_numpy((left * np.sqrt(values)) @ right).float()
        columns = torch.from_numpy(left[:, :3].argmax(axis=1))
        true = condition(rows.double(), 1e-9)
        assert true == pytest.approx(target, rel=0.02)
        head = learnt(rows, columns, precision=precision, gamma=1e-9)
        if target < 5e4:
            scores = rows.double() @ coef_of(head).double()
            expected = rows.double().numpy() @ exact(rows, columns, 3, 1e-9)
            # Classes that show in the thinnest direction alone take all that float32 has lost there.
            assert relative(scores, expected) <= (1e-3 if spectrum == "geometric" else EPS32 * true)
        else:
            for _ in range(2):
                with pytest.raises(SingularMatrixError, match='dtype="float64"'):
                    head.coefficients()


@pytest.mark.parametrize("precision", ["mixed", "float32"])
def test_a_smaller_gamma_is_judged_anew(precision):
    rows, columns, _ = ill_conditioned(300, 40, 3, 1e8)
    head = learnt(rows.float(), columns, precision=precision, gamma=3e-5)
    assert head.condition() == pytest.approx(1 / 3e-5, rel=0.2)
    with pytest.raises(SingularMatrixError, match="too large"):
        head.with_gamma(1e-6).solve()


@EITHER
@pytest.mark.parametrize("target", [1.5, 1e3, 1e6, 1e9])
@pytest.mark.parametrize("d", [1, 2, 3, 60])
def test_condition_is_estimated_to_a_fifth(target, d, intercept):
    rows, columns, gamma = ill_conditioned(200, d, 1, target)
    head = learnt(rows, columns, c=1, gamma=gamma, intercept=intercept)
    assert head.condition() == pytest.approx(condition(rows, gamma, intercept=intercept), rel=0.2)


@EITHER
def test_diagnostics_are_those_of_numpy(intercept):
    rows, columns = samples(80, 12, 3, shift=0.5)
    head = learnt(rows, columns, gamma=0.7, intercept=intercept)
    X = rows.numpy() - rows.numpy().mean(axis=0) * intercept
    R = np.linalg.inv(X.T @ X + 0.7 * np.eye(12))
    freedom = 12 - 0.7 * np.trace(R) + intercept
    assert head.degrees_of_freedom() == pytest.approx(freedom, rel=1e-10)
    W, b = head.coefficients()
    squares = ((np.eye(3)[columns.numpy()] - rows.numpy() @ W.numpy() - b.numpy()) ** 2).sum(axis=0)
    assert relative(head.residual_squares(), squares) <= 1e-10
    query = samples(9, 12, 3, seed=4)[0]
    centred = query.numpy() - rows.numpy().mean(axis=0) * intercept
    leverage = np.einsum("ij,jk,ik->i", centred, R, centred) + intercept / 80
    assert relative(head.leverage(query), leverage) <= 1e-10


def test_few_samples_keep_gamma_and_twice_as_many_choose_it_anew(factors):
    rows, columns = samples(200, 64, 3)
    head = learnt(rows[:90], columns[:90], gamma=None)
    first = head.solved().gamma
    factors.clear()
    for i in range(90, 180):
        head = learn(head, rows[i : i + 1], columns[i : i + 1])
        head.coefficients()
    assert not factors
    assert (head.solved().gamma, head.solved().corrected) == (first, True)
    head = learn(head, rows[180:181], columns[180:181])
    assert head.solution is None
    head.coefficients()
    assert len(factors) <= 11


@EITHER
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("gamma", [1.0, None])
def test_samples_of_zeros_have_weights_of_zero(precision, gamma, intercept):
    rows = torch.zeros(10, 8, dtype=PRECISIONS[precision].products)
    head = learnt(rows, torch.arange(10) % 3, gamma=gamma, precision=precision, intercept=intercept)
    assert not head.coefficients()[0].any()
    assert head.condition() == pytest.approx(1.0, rel=0.01)
