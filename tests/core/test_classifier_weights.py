"""Sample weights, unequal classes and the intercept."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.metrics import balanced_accuracy_score

from acil import ACILClassifier
from acil.errors import InputError
from support.strategies import Unchanged, blobs, expanded, one_hot, problems, relative

EXACT = 1e-9  # the same sums in another order, κ small

SETTINGS = [{}, {"solver": "recursive"}, {"fit_intercept": True}, {"class_balance": True}]


@pytest.mark.parametrize("options", SETTINGS, ids=str)
@given(problem=problems(max_rows=120), seed=st.integers(0, 2**16))
def test_integer_weights_are_repetitions(options, problem, seed):
    weights = np.random.default_rng(seed).integers(0, 4, problem.n)
    weights[0] = 1
    options = {"expansion_size": 25, "gamma": 5.0} | options
    weighted = ACILClassifier(**({"scores": "ridge"} | options)).fit(
        problem.X, problem.y, sample_weight=weights
    )
    repeated = ACILClassifier(**({"scores": "ridge"} | options))
    X, y = np.repeat(problem.X, weights, axis=0), np.repeat(problem.y, weights)
    repeated.partial_fit(X, y, classes=np.unique(problem.y))
    learnt = weighted.class_count_ > 0
    assert relative(weighted.coef_[learnt] + 1, repeated.coef_[learnt] + 1) <= EXACT
    assert relative(weighted.intercept_ + 1, repeated.intercept_ + 1) <= EXACT
    assert weighted.n_samples_ == np.count_nonzero(weights)
    assert weighted.temperature_ == pytest.approx(repeated.temperature_, rel=1e-6)


@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_zero_weight_is_absence(options):
    problem = blobs(100, 6, 4, 0)
    weights = np.ones(100)
    gone = problem.y == 3
    gone[:10] = True
    weights[gone] = 0
    options = {"expansion_size": 25, "gamma": 5.0} | options
    weighted = ACILClassifier(**({"scores": "ridge"} | options)).fit(
        problem.X, problem.y, sample_weight=weights
    )
    absent = ACILClassifier(**({"scores": "ridge"} | options)).fit(problem.X[~gone], problem.y[~gone])
    assert weighted.classes_.tolist() == [0, 1, 2, 3]
    assert weighted.class_count_[3] == 0
    assert np.array_equal(weighted.predict(problem.held_out), absent.predict(problem.held_out))
    scores = weighted.decision_function(problem.held_out)[:, :3]
    assert relative(scores, absent.decision_function(problem.held_out)) <= EXACT


def test_rows_of_weight_zero_still_have_to_be_finite():
    problem = blobs(20, 6, 2, 0)
    X, weights = problem.X.copy(), np.ones(20)
    X[0], weights[0] = np.nan, 0.0
    with pytest.raises(ValueError, match="NaN"):
        ACILClassifier(scores="ridge", expansion_size=25).fit(X, problem.y, sample_weight=weights)


@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_one_weight_for_all_only_scales_gamma(options):
    problem = blobs(100, 6, 4, 0)
    options = {"expansion_size": 25} | options
    heavy = ACILClassifier(gamma=50.0, **({"scores": "ridge"} | options)).fit(
        problem.X, problem.y, sample_weight=10.0
    )
    light = ACILClassifier(gamma=5.0, **({"scores": "ridge"} | options)).fit(problem.X, problem.y)
    assert relative(heavy.coef_, light.coef_) <= EXACT


def imbalanced(seed=0):
    """Overlapping classes with 1000, 100 and 20 samples, and equal numbers to test on."""
    rng = np.random.default_rng(seed)
    centres = np.array([[0.0, 0.0], [1.5, 0.0], [0.0, 1.5]])

    def draw(counts):
        y = np.repeat(np.arange(3), counts)
        return centres[y] + rng.normal(size=(len(y), 2)) * 0.7, y

    return *draw([1000, 100, 20]), *draw([500, 500, 500])


@pytest.mark.parametrize("options", [{}, {"fit_intercept": True}, {"dtype": "mixed"}], ids=str)
def test_class_balance_helps_rare_classes(options):
    X, y, X_test, y_test = imbalanced()
    accuracy = [
        balanced_accuracy_score(
            y_test,
            ACILClassifier(
                expansion_size=50, gamma=1.0, class_balance=balance, **({"scores": "ridge"} | options)
            )
            .fit(X, y)
            .predict(X_test),
        )
        for balance in (False, True)
    ]
    assert accuracy[1] > accuracy[0] + 0.1


EXPONENTS = pytest.mark.parametrize("exponent", [0.5, 0.75, 1.0, True])


def balancing(of_class, exponent):
    """Return what a sample of each class counts, 1 on average."""
    weights = of_class ** -float(exponent)
    return weights * of_class.sum() / (weights @ of_class)


@EXPONENTS
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_class_balance_weighs_samples_where_classes_share_a_covariance(fit_intercept, exponent):
    generator = np.random.default_rng(0)
    deviations = generator.normal(size=(30, 6))
    deviations -= deviations.mean(axis=0)
    means, copies = generator.normal(size=(4, 6)) * 2, [1, 2, 7, 40]
    X = np.concatenate([np.tile(means[c] + deviations, (k, 1)) for c, k in enumerate(copies)])
    y = np.repeat(np.arange(4), 30 * np.array(copies))
    model = ACILClassifier(
        expansion_size=None, gamma=5.0, class_balance=exponent, fit_intercept=fit_intercept
    )
    weights = balancing(np.bincount(y).astype(float), exponent)
    ridge = Ridge(alpha=5.0, fit_intercept=fit_intercept, solver="svd")
    ridge.fit(X, one_hot(y, range(4)), sample_weight=weights[y])
    probe = generator.normal(size=(50, 6)) * 3
    assert relative(model.fit(X, y).decision_function(probe), ridge.predict(probe)) <= EXACT
    assert relative(model.coef_, ridge.coef_) <= EXACT
    if exponent is True and not fit_intercept:
        # Its weights are 1 on average of classes, not of samples, and γ is in their unit.
        unit = len(y) / (4 * np.bincount(y)) / weights
        air = RidgeClassifier(5.0 * unit[0], class_weight="balanced", fit_intercept=False).fit(X, y)
        assert (air.predict(probe) == model.predict(probe)).all()


@EXPONENTS
@pytest.mark.parametrize("weighted", [False, True])
def test_class_balance_is_the_solution_of_pooled_scatter(weighted, exponent):
    X, y, _, _ = imbalanced()
    weights = np.random.default_rng(0).uniform(0.5, 2, len(y)) if weighted else np.ones(len(y))
    model = ACILClassifier(scores="ridge", expansion_size=50, gamma=1.0, class_balance=exponent)
    model.fit(X, y, sample_weight=weights if weighted else None)
    rows, Y = expanded(X, 50), one_hot(y, [0, 1, 2])
    n, moment = np.bincount(y, weights), (rows.T * weights) @ Y
    means, w = moment / n, balancing(n, exponent)
    within = (rows.T * weights) @ rows - (means * n) @ means.T
    expected = np.linalg.solve(within + (means * w * n) @ means.T + np.eye(50), moment * w)
    assert relative(model.coef_.T, expected) <= EXACT


def test_class_balance_changes_nothing_where_classes_are_equal_and_is_set_later():
    problem = blobs(90, 6, 3, 0)
    X, y = np.concatenate([problem.X, problem.X[::-1]]), np.arange(180) % 3
    plain = ACILClassifier(scores="ridge", expansion_size=30, gamma=2.0).fit(X, y)
    balanced = ACILClassifier(expansion_size=30, gamma=2.0, class_balance=1.0).fit(X, y)
    assert relative(balanced.coef_, plain.coef_) <= EXACT
    few = y % 3 * 30 <= np.arange(180)
    plain.fit(X[few], y[few])
    before = plain.coef_
    assert relative(plain.set_params(class_balance=0.5).coef_, before) == 0.0
    balanced.set_params(class_balance=0.5).fit(X[few], y[few])
    assert relative(plain.solve().coef_, balanced.coef_) <= EXACT
    assert relative(plain.set_params(class_balance=0).solve().coef_, before) <= EXACT


def test_intercept_makes_scores_independent_of_a_shift_of_features():
    problem = blobs(200, 6, 4, 0)
    options = {"expansion_size": None, "gamma": 5.0}

    def scores(shift, fit_intercept):
        model = ACILClassifier(fit_intercept=fit_intercept, **({"scores": "ridge"} | options))
        return model.fit(problem.X + shift, problem.y).decision_function(problem.held_out + shift)

    # The sums hold 100² · 200 beside a spread of about 5: 4 to 5 digits are lost, as they must.
    assert relative(scores(100, True), scores(0, True)) <= 1e-9
    assert relative(scores(100, False), scores(0, False)) > 1e-2


@pytest.mark.parametrize(("dtype", "weight"), [("float32", 1e38), ("mixed", 1e38), ("float64", 1e307)])
def test_weights_beyond_all_sums_are_refused(dtype, weight):
    X, y = np.random.default_rng(0).normal(size=(60, 5)), np.repeat([0, 1, 2], 20)
    clf = ACILClassifier(scores="ridge", expansion_size=32, gamma=100.0, dtype=dtype).fit(X, y)
    for rows in (X, np.zeros_like(X)):
        with Unchanged(clf, X), pytest.raises(InputError, match="too large"):
            clf.partial_fit(rows, y, sample_weight=np.full(60, weight))


@pytest.mark.parametrize("scores", ["ridge", "discriminant"])
def test_first_weights_that_count_for_nothing_are_refused(scores):
    problem = blobs(200, 6, 4, 0)
    model = ACILClassifier(expansion_size=32, scores=scores)
    with pytest.raises(InputError, match=r"1.0e-12"):
        model.fit(problem.X, problem.y, sample_weight=np.full(200, 1e-12))
    model.fit(problem.X, problem.y, sample_weight=np.full(200, 1e-8))
    assert model.score(problem.X, problem.y) > 0.8
    # A sample that hardly counts may join others, and leave them.
    model.fit(problem.X, problem.y)
    for change in (model.partial_fit, model.forget):
        change(problem.X[:1], problem.y[:1], sample_weight=[1e-12])
