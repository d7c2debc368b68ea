"""γ chosen from the sums equals γ chosen from the data."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from acil import ACILClassifier
from acil.analytic import generalized_cross_validation
from acil.errors import InputError, UnsupportedError
from strategies import Unchanged, blobs, expanded, one_hot, problems, relative

CRITERION = 1e-6  # the bar of issue 2
LEFT_OVER = 1e-8  # candidates below this share of n − tr H or of the residual are excluded
DEFAULT_GRID = np.logspace(-6, 4, 21)


def criterion_by_svd(rows, targets, weights, gammas, centred):
    """n · RSS / (n − tr H)² of each γ, and which can be judged, from the data."""
    n = weights.sum()
    if centred:
        rows = rows - weights @ rows / n
        targets = targets - weights @ targets / n
    root = np.sqrt(weights)[:, None]
    U, singular, _ = np.linalg.svd(rows * root, full_matrices=False)
    target = targets * root
    inside = U.T @ target
    # what no γ can explain, from the data: a difference of sums would lose digits
    outside = np.sum((target - U @ inside) ** 2)
    shrink = gammas[:, None] / (singular**2 + gammas[:, None])
    rss = outside + np.sum(shrink**2 * np.sum(inside**2, axis=1), axis=1)
    # n − tr H = (n − rank) + Σ γ / (s² + γ), without cancellation
    left = (n - len(singular)) + shrink.sum(axis=1) - float(centred)
    usable = (left >= LEFT_OVER * n) & (rss >= LEFT_OVER * np.sum(target**2))
    return n * rss / left**2, usable, left, rss / np.sum(target**2)


def clear_of_the_limit(left, share, n):
    """Candidates that no rounding moves across the limit between usable and excluded."""
    return (np.abs(left / (LEFT_OVER * n) - 1) > 0.5) & (np.abs(share / LEFT_OVER - 1) > 0.5)


@pytest.mark.parametrize("fit_intercept", [False, True])
@given(
    problem=problems(min_rows=20, max_rows=400),
    size=st.one_of(st.none(), st.integers(10, 150)),
    weighted=st.booleans(),
    seed=st.integers(0, 2**16),
)
@example(problem=blobs(400, 12, 5, 0), size=60, weighted=False, seed=0)
@example(problem=blobs(100, 12, 5, 0), size=300, weighted=False, seed=0)
@example(problem=blobs(60, 16, 8, 0), size=200, weighted=True, seed=0)
def test_criterion_and_choice_are_those_of_the_raw_data(fit_intercept, problem, size, weighted, seed):
    n_classes = len(np.unique(problem.y))
    if fit_intercept and n_classes == 1:
        return  # centred targets are all zero: nothing to choose by
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.2, 3.0, problem.n) if weighted else np.ones(problem.n)
    model = ACILClassifier(expansion_size=size, gamma=1.0, fit_intercept=fit_intercept)
    model.fit(problem.X, problem.y, sample_weight=weights if weighted else None)
    rows = expanded(problem.X, size)
    centred = rows - weights @ rows / weights.sum() if fit_intercept else rows
    gammas = DEFAULT_GRID * np.sum(weights[:, None] * centred**2) / rows.shape[1]
    expected, usable, left, share = criterion_by_svd(
        rows, one_hot(problem.y, model.classes_), weights, gammas, fit_intercept
    )
    clear = clear_of_the_limit(left, share, weights.sum())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        curve = generalized_cross_validation(
            model._state.model.head.statistics, None, centred=fit_intercept
        )
        chosen = model.select_gamma()
    assert relative(curve.gammas.numpy(), gammas) <= 1e-12
    assert np.array_equal(curve.usable.numpy()[clear], usable[clear])
    both = curve.usable.numpy() & usable
    assert both.any()
    error = np.abs(curve.criterion.numpy()[both] / expected[both] - 1)
    assert error.max() <= CRITERION, f"{error.max():.2g} at γ = {gammas[both][error.argmax()]:.2g}"
    if clear.all():
        best = gammas[np.argmin(np.where(usable, expected, np.inf))]
        assert chosen == pytest.approx(best, rel=1e-12)
    assert model.gamma_ == chosen


def test_fewer_samples_than_dimensions_are_judged_as_from_the_raw_data():
    # 150 dimensions that no sample reaches: their eigenvalues are rounding and must not count.
    problem = blobs(50, 16, 5, 3)
    model = ACILClassifier(expansion_size=200, gamma=1.0).fit(problem.X, problem.y)
    rows = expanded(problem.X, 200)
    gammas = DEFAULT_GRID * np.sum(rows**2) / 200
    expected, usable, _, _ = criterion_by_svd(
        rows, one_hot(problem.y, model.classes_), np.ones(50), gammas, centred=False
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        curve = generalized_cross_validation(model._state.model.head.statistics)
    both = curve.usable.numpy() & usable
    assert np.abs(curve.criterion.numpy()[both] / expected[both] - 1).max() <= CRITERION


def test_selected_gamma_is_used_from_then_on():
    problem = blobs(300, 8, 5, 0)
    model = ACILClassifier(expansion_size=60, gamma=1e-3).fit(problem.X, problem.y)
    before = model.decision_function(problem.held_out)
    chosen = model.select_gamma()
    assert model.gamma_ == chosen != 1e-3
    assert model.gamma == 1e-3, "the argument is the user's"
    fresh = ACILClassifier(expansion_size=60, gamma=chosen).fit(problem.X, problem.y)
    scores = model.decision_function(problem.held_out)
    assert relative(scores, fresh.decision_function(problem.held_out)) <= 1e-12
    assert relative(before, scores) > 1e-6
    model.partial_fit(problem.X, problem.y)
    assert model.gamma_ == chosen


def test_own_candidates_are_the_only_ones():
    problem = blobs(300, 8, 5, 0)
    model = ACILClassifier(expansion_size=60).fit(problem.X, problem.y)
    assert model.select_gamma([0.5, 1e9]) == 0.5
    assert model.select_gamma(np.array([1e9])) == 1e9


def test_candidates_may_be_a_tensor():
    problem = blobs(300, 8, 5, 0)
    model = ACILClassifier(expansion_size=60).fit(problem.X, problem.y)
    assert model.select_gamma(torch.tensor([3.0], dtype=torch.float64)) == 3.0


def test_excluded_candidates_warn():
    # 20 samples in 100 dimensions, γ = 0: they are fitted exactly and the criterion is 0 / 0
    problem = blobs(20, 8, 3, 0)
    model = ACILClassifier(expansion_size=100, gamma=1.0).fit(problem.X, problem.y)
    with pytest.warns(UserWarning, match="1 of 2 candidates .* left out"):
        assert model.select_gamma([0.0, 10.0]) == 10.0


def test_no_candidate_that_can_be_judged_is_an_error_that_changes_nothing():
    problem = blobs(20, 8, 3, 0)
    model = ACILClassifier(expansion_size=100, gamma=1.0).fit(problem.X, problem.y)
    with Unchanged(model, problem.held_out), pytest.raises(InputError, match="too few samples"):
        model.select_gamma([0.0])


@pytest.mark.parametrize("gammas", [[], [-1.0], [np.nan], [np.inf], ["a"], [None]])
def test_bad_candidates_change_nothing(gammas):
    problem = blobs(60, 8, 3, 0)
    model = ACILClassifier(expansion_size=30).fit(problem.X, problem.y)
    with Unchanged(model, problem.held_out), pytest.raises(InputError):
        model.select_gamma(gammas)


@pytest.mark.parametrize("dtype", ["float64", "mixed"])
def test_automatic_gamma_is_selected_once_at_the_first_solve(dtype):
    problem = blobs(300, 8, 5, 0)
    model = ACILClassifier(expansion_size=60, gamma="auto", dtype=dtype)
    model.partial_fit(problem.X[:200], problem.y[:200])
    model.partial_fit(problem.X[200:250], problem.y[200:250])
    model.predict(problem.held_out)
    first = model.gamma_
    asked = ACILClassifier(expansion_size=60).fit(problem.X[:250], problem.y[:250]).select_gamma()
    assert first == pytest.approx(asked, rel=1e-5)
    model.partial_fit(problem.X[250:], problem.y[250:])
    model.predict(problem.held_out)
    assert model.gamma_ == first
    assert model.gamma == "auto"


def test_automatic_gamma_generalizes_better_than_extremes(digits):
    X, y = digits
    errors = {}
    for gamma in ("auto", 1e-6, 1e6):
        model = ACILClassifier(expansion_size=300, gamma=gamma).fit(X[:300], y[:300])
        errors[gamma] = 1 - model.score(X[300:], y[300:])
    assert errors["auto"] < errors[1e-6]
    assert errors["auto"] < errors[1e6]


def test_relative_gamma_does_not_depend_on_the_scale_of_features():
    problem = blobs(300, 8, 5, 0)
    small = ACILClassifier(expansion_size=40, gamma="auto").fit(problem.X, problem.y)
    large = ACILClassifier(expansion_size=40, gamma="auto").fit(problem.X * 1e3, problem.y)
    assert small.gamma_relative_ == pytest.approx(large.gamma_relative_, rel=1e-6)
    assert large.gamma_ == pytest.approx(small.gamma_ * 1e6, rel=1e-6)


def test_automatic_gamma_needs_the_sums():
    with pytest.raises(UnsupportedError, match='solver="gram"'):
        ACILClassifier(gamma="auto", solver="recursive").fit([[1.0], [2.0]], [0, 1])
