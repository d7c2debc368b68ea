"""The same answers as scikit-learn's Ridge on the expanded features."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from acil import ACILClassifier
from support.strategies import (
    EPS64,
    blobs,
    condition_number,
    expanded,
    gamma_for,
    one_hot,
    problems,
    promise,
    relative,
    slack,
)

pytestmark = pytest.mark.usefixtures("library")


def fitted_ridge(rows, targets, gamma, weights=None, fit_intercept=False):
    # The SVD solver works on the rows themselves, so its own error does not grow with κ but with √κ.
    solver = "svd"
    return Ridge(alpha=gamma, fit_intercept=fit_intercept, solver=solver).fit(rows, targets, weights)


def as_columns(scores):
    return scores.reshape(len(scores), -1)


def class_scores(model, X, held_out_rows):
    """Scores of all classes, also when decision_function gives one difference for two."""
    scores = as_columns(model.decision_function(X))
    if len(model.classes_) == 2:
        both = held_out_rows @ model.coef_.T + model.intercept_
        assert relative(scores[:, 0], both[:, 1] - both[:, 0]) <= 1e-6
        return both
    return scores


@pytest.mark.parametrize("fit_intercept", [False, True])
@given(
    problem=problems(),
    size=st.one_of(st.none(), st.integers(20, 200)),
    exponent=st.floats(0.5, 9),
    weighted=st.booleans(),
    seed=st.integers(0, 2**16),
)
@example(problem=blobs(300, 8, 5, 0), size=200, exponent=9, weighted=False, seed=0)
def test_scores_and_weights_are_those_of_ridge(fit_intercept, problem, size, exponent, weighted, seed):
    rows = expanded(problem.X, size)
    weights = np.random.default_rng(seed).uniform(0.1, 4.0, problem.n) if weighted else None
    root = 1.0 if weights is None else np.sqrt(weights)[:, None]
    gamma = gamma_for(rows * root, 10**exponent)
    centred = rows - np.average(rows, axis=0, weights=weights) if fit_intercept else rows
    # The largest eigenvalue is that of the sums, the smallest one that of the centred matrix.
    largest = np.linalg.norm(rows * root, 2) ** 2 + gamma
    smallest = (np.linalg.norm(centred * root, 2) ** 2 + gamma) / condition_number(centred * root, gamma)
    condition = largest / smallest
    model = ACILClassifier(scores="ridge", expansion_size=size, gamma=gamma, fit_intercept=fit_intercept)
    model.fit(problem.X, problem.y, sample_weight=weights)
    targets = one_hot(problem.y, model.classes_)
    ridge = fitted_ridge(rows, targets, gamma, weights, fit_intercept)
    held_out = expanded(problem.held_out, size)
    expected = as_columns(ridge.predict(held_out))
    bar = promise(condition)
    assert relative(class_scores(model, problem.held_out, held_out), expected) <= bar
    if fit_intercept and len(model.classes_) == 1:
        # one class: the intercept 1 says it all, and what is left is rounding
        assert np.abs(model.coef_).max() <= 10 * EPS64 * condition
        return
    found = relative(model.coef_, ridge.coef_.reshape(model.coef_.shape))
    assert found <= slack(problem) * bar, f"{found:.2g} at κ = {condition:.2g}"


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-2), ("mixed", 1e-3)])
def test_lower_precision_gives_the_scores_of_ridge_roughly(dtype, tolerance):
    problem = blobs(300, 6, 4, 0)
    rows = expanded(problem.X, 60)
    gamma = gamma_for(rows, 1e4)
    model = ACILClassifier(scores="ridge", expansion_size=60, gamma=gamma, dtype=dtype).fit(
        problem.X, problem.y
    )
    ridge = fitted_ridge(rows, one_hot(problem.y, model.classes_), gamma)
    assert (
        relative(
            model.decision_function(problem.held_out), ridge.predict(expanded(problem.held_out, 60))
        )
        <= tolerance
    )


def test_known_answer_by_hand():
    # gram = diag(2, 1), moment = [[2, 0], [0, 1]], γ = 1: W = diag(2/3, 1/2)
    model = ACILClassifier(scores="ridge", expansion_size=None, gamma=1.0)
    model.fit([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], ["a", "a", "b"])
    assert np.allclose(model.coef_, [[2 / 3, 0], [0, 1 / 2]], rtol=1e-15, atol=0)
    # Scores of (1, 1) are 2/3 and 1/2; for two classes the second minus the first is given.
    assert np.allclose(model.decision_function([[1.0, 1.0]]), [-1 / 6], rtol=1e-14)
    assert model.predict([[1.0, 1.0]]).tolist() == ["a"]
    assert model.gamma_relative_ == pytest.approx(1 / 1.5)
    assert model.condition_ == pytest.approx(3 / 2, rel=0.05)


def test_gamma_zero_is_least_squares():
    problem = blobs(200, 10, 3, 0)
    model = ACILClassifier(scores="ridge", expansion_size=None, gamma=0.0).fit(problem.X, problem.y)
    expected = np.linalg.lstsq(problem.X, one_hot(problem.y, [0, 1, 2]), rcond=None)[0]
    assert relative(model.coef_, expected.T) <= 1e-11
