"""Sums of targets that are any numbers: the regression that they give is scikit-learn's."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge as Reference

from acil.core.model import impossible, require_forgettable
from acil.core.ridge import Ridge
from acil.core.sums import PRECISIONS, Sums
from acil.errors import InputError
from support.regressions import weights_for

N, D, K = 90, 7, 3
#: Of two ways to the same weights, both well conditioned.
ROUNDING = 1e-10


def problem(kind, seed=0):
    """Return rows, and targets that are numbers, or several labels of each row."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(N, D)) + 1.0
    targets = rows @ rng.normal(size=(D, K)) + rng.normal(size=(N, K)) + [5.0, 0.0, -2.0]
    targets = targets if kind == "numbers" else (targets > 1).astype(float)
    return torch.from_numpy(rows), torch.from_numpy(targets), weights_for(N)


def empty(intercept):
    precision = PRECISIONS["float64"]
    return Ridge(Sums(D, K, precision.sums, one_hot=False), precision, 2.0, intercept)


def learnt(head, rows, targets, weights, cut):
    """Return the regression that has seen rows in pieces of ``cut``."""
    for part in zip(rows.split(cut), targets.split(cut), weights.split(cut), strict=True):
        head = head.learn([part], len(part[0]), torch.arange(K), K)
        head.coefficients()  # so that the next rows may correct the weights
    return head


def assert_of_scikit_learn(head, rows, targets, weights):
    """Compare weights, intercepts and squares of what is left with those of scikit-learn."""
    reference = Reference(alpha=2.0, fit_intercept=head.intercept, solver="cholesky")
    reference.fit(rows.numpy(), targets.numpy(), sample_weight=weights.numpy())
    coef, intercept = head.coefficients()
    np.testing.assert_allclose(coef.numpy().T, reference.coef_, rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(intercept.numpy(), reference.intercept_, rtol=0, atol=ROUNDING)
    error = weights.numpy() @ (targets.numpy() - reference.predict(rows.numpy())) ** 2
    np.testing.assert_allclose(head.residual_squares().numpy(), error, rtol=1e-9)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("kind", ["numbers", "labels"])
@pytest.mark.parametrize("cut", [1, 20, N])
def test_regression_on_several_targets_is_scikit_learns(kind, intercept, cut):
    rows, targets, weights = problem(kind)
    assert_of_scikit_learn(learnt(empty(intercept), rows, targets, weights, cut), rows, targets, weights)


@pytest.mark.parametrize("kind", ["numbers", "labels"])
def test_merging_and_forgetting_give_the_sums_of_what_is_left(kind):
    rows, targets, weights = problem(kind)
    first, second = (
        learnt(empty(True), rows[part], targets[part], weights[part], N)
        for part in (slice(0, 40), slice(40, None))
    )
    both = first.merge(second.sums, torch.arange(K), torch.arange(K), K)
    assert_of_scikit_learn(both, rows, targets, weights)
    gone = [(rows[:25], targets[:25], weights[:25])]
    require_forgettable(both, gone)
    rest, kept = both.forget(gone, declared=torch.ones(K, dtype=torch.bool))
    assert kept.all()
    assert_of_scikit_learn(rest, rows[25:], targets[25:], weights[25:])


def test_all_sums_by_numpy():
    rows, targets, weights = problem("numbers")
    sums = Sums(D, K, torch.float64, one_hot=False)
    sums.add(zip(rows.split(30), targets.split(30), weights.split(30), strict=True))
    X, Y, w = rows.numpy(), targets.numpy(), weights.numpy()
    assert sums.n_samples == N
    assert sums.total_weight == pytest.approx(w.sum(), rel=1e-14)
    for found, expected in (
        (sums.total, w @ X),
        (sums.target_total, w @ Y),
        (sums.target_products, (Y.T * w) @ Y),
        (sums.target_squares, w @ Y**2),
        (sums.moment, (X.T * w) @ Y),
        (sums.gram.tril(), np.tril((X.T * w) @ X)),
    ):
        np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-11)


def test_one_hot_targets_have_the_same_sums_either_way():
    rows, _, weights = problem("numbers")
    columns = torch.arange(N) % K
    classes, numbers = Sums(D, K, torch.float64), Sums(D, K, torch.float64, one_hot=False)
    classes.add([(rows, columns, weights)])
    numbers.add([(rows, torch.eye(K, dtype=torch.float64)[columns], weights)])
    assert torch.equal(classes.counts, numbers.counts)
    for name in ("moment", "total", "target_total", "target_squares"):
        torch.testing.assert_close(getattr(classes, name), getattr(numbers, name), rtol=0, atol=1e-12)
    torch.testing.assert_close(classes.target_products.diag(), numbers.target_products)


def test_targets_that_were_not_learnt_are_noticed():
    rows, targets, weights = problem("numbers")
    head = learnt(empty(False), rows, targets, weights, N)
    with pytest.raises(InputError, match="moment"):
        require_forgettable(head, [(rows[:25], targets[:25] * 30, weights[:25])])
    assert not impossible(head)
