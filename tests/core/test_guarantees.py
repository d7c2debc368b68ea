"""Two ways to the same model agree to c·√(1 + n/d)·ε·κ, with κ as ``condition_`` has it."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from acil import ACILClassifier
from acil.core.classifier import learnt_of
from support.strategies import EPS64

KINDS = ["discriminant", "ridge", "intercept"]
OPTIONS = [{"scores": "discriminant"}, {"scores": "ridge"}, {"scores": "ridge", "fit_intercept": True}]
pytestmark = pytest.mark.usefixtures("library")


def rows(n, d, n_classes, seed, offset, gap):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(n_classes, d)) * gap
    y = np.r_[np.arange(n_classes), rng.integers(0, n_classes, n - n_classes)]
    held_out = rng.integers(0, n_classes, 40)
    X, queries = (centres[c] + rng.normal(size=(len(c), d)) + offset for c in (y, held_out))
    return X, y, queries


def relative(change, *parts):
    """Size of a change, relative to what is added up."""
    return np.linalg.norm(change) / sum(map(np.linalg.norm, parts))


def assert_agree(model, joint, queries, n, c=1):
    scores = [m.decision_function(queries) for m in (model, joint)]
    terms = queries @ joint.coef_.T, np.ones((len(queries), 1)) * joint.intercept_
    bar = max(1e-12, c * np.sqrt(1 + n / joint.coef_.shape[1]) * EPS64 * 2 * joint.condition_)
    assert relative(scores[0] - scores[1], *terms) <= bar
    # On a GPU, weights with an intercept were seen to differ by twice as much.
    assert relative(model.coef_ - joint.coef_, joint.coef_) <= bar * (
        3 if torch.cuda.is_available() else 1
    )


def ways(X, y, seed, **options):
    """Yield the joint model, and models that learnt the same in other ways with their c."""
    rng = np.random.default_rng(seed)
    options = {"expansion_size": None, "standardize": False, **options}
    joint = ACILClassifier(**options).fit(X, y)
    options["gamma"] = joint.gamma_
    order, half = rng.permutation(len(y)), len(y) // 2
    yield ACILClassifier(**options).fit(X, y), 1
    phased = ACILClassifier(**options)
    for part in np.array_split(order, min(7, len(y))):
        phased.partial_fit(X[part], y[part])
    yield phased, 1
    one, two = (ACILClassifier(**options).fit(X[part], y[part]) for part in (order[:half], order[half:]))
    yield one.merge(two), 1
    stream = ACILClassifier(**options).fit(X[order[:-2]], y[order[:-2]])
    for i in order[-2:]:
        stream.predict(X[:1])
        stream.partial_fit(X[i : i + 1], y[i : i + 1])
    yield stream, 10
    # Rows like those learnt, so that the largest eigenvalue is about what it was
    again = rng.integers(0, len(y), min(20, half))
    more = ACILClassifier(**options).fit(np.r_[X, X[again]], np.r_[y, y[again]])
    yield more.forget(X[again], y[again]), 10


@pytest.mark.parametrize("options", OPTIONS, ids=KINDS)
@settings(max_examples=20)
@given(
    n=st.sampled_from([30, 300, 2000]),
    d=st.sampled_from([1, 2, 4, 16, 64]),
    n_classes=st.sampled_from([2, 3, 10, 30]),
    seed=st.integers(0, 2**16),
    offset=st.sampled_from([0.0, 1.0, 30.0, 1e3]),
    gap=st.sampled_from([1e-3, 0.1, 2.0, 10.0]),
    condition=st.one_of(st.none(), st.floats(1.5, 9)),
)
# Features with an offset of 1e3 and thirty samples, with γ as it is chosen and with κ = 200 or so
@example(n=30, d=2, n_classes=2, seed=0, offset=1e3, gap=0.1, condition=None)
@example(n=30, d=4, n_classes=3, seed=0, offset=1e3, gap=2.0, condition=2.33)
@example(n=30, d=64, n_classes=5, seed=0, offset=1e3, gap=0.1, condition=2.33)
# One sample of each class; nearly the same means, with hardly anything left over
@example(n=30, d=16, n_classes=30, seed=0, offset=1e3, gap=2.0, condition=2.33)
@example(n=30, d=64, n_classes=5, seed=0, offset=0.0, gap=1e-3, condition=4.8)
# Many more samples than dimensions
@example(n=20_000, d=8, n_classes=4, seed=0, offset=1.0, gap=2.0, condition=4.0)
def test_two_ways_to_the_same_model_agree(options, n, d, n_classes, seed, offset, gap, condition):
    if "fit_intercept" in options:
        offset = min(offset, 30.0)  # beyond that weights are an exception
    X, y, queries = rows(n, d, n_classes, seed, offset, gap)
    gamma = "auto" if condition is None else float(np.linalg.norm(X, 2) ** 2 / 10**condition)
    joint, *others = ways(X, y, seed, gamma=gamma, **options)
    for model, c in others:
        assert_agree(model, joint[0], queries, n, c)


@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_condition_of_discriminants_is_at_least_that_of_the_scatter_within_classes(offset):
    X, y, _ = rows(400, 16, 4, 0, offset, 2.0)
    model = ACILClassifier(expansion_size=None, standardize=False, scores="discriminant", gamma=0.1)
    within = X - np.stack([X[y == c].mean(axis=0) for c in range(4)])[y]
    least = np.linalg.svd(within, compute_uv=False)[-1] ** 2 + 0.1
    kappa = (np.linalg.norm(X, 2) ** 2 + 0.1) / least
    assert 0.9 * kappa <= model.fit(X, y).condition_ <= 2 * kappa


def test_discriminants_are_those_of_a_regression_without_intercept():
    X, y, queries = rows(300, 16, 4, 0, 1.0, 0.5)
    options = {"expansion_size": None, "standardize": False, "scores": "discriminant", "gamma": 5.0}
    model, other = (ACILClassifier(**options).fit(X[:9], y[:9]) for _ in range(2))
    learnt_of(other).model.head.intercept = False
    learnt_of(other).model.head.solution = None
    for each in (model, other):
        each.partial_fit(X[9:], y[9:])
    assert learnt_of(model).model.head.intercept
    assert not learnt_of(other).model.head.intercept
    expected = other.decision_function(queries)
    assert relative(model.decision_function(queries) - expected, expected) <= 1e-10


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_products_of_corrected_weights_are_those_of_the_weights(fit_intercept):
    X, y, _ = rows(300, 80, 6, 0, 5.0, 1.0)
    weights = np.random.default_rng(0).uniform(0.5, 2, len(y))
    options = {"expansion_size": None, "scores": "ridge", "standardize": False, "gamma": 1.0}
    model = ACILClassifier(fit_intercept=fit_intercept, **options)
    learnt_of(model.fit(X[:290], y[:290], sample_weight=weights[:290])).model.ridge.products()
    for i in (290, 291, 292, 293):
        model.partial_fit(X[i : i + 1], y[i : i + 1], sample_weight=weights[i : i + 1])
    model.partial_fit(X[294:], y[294:], sample_weight=weights[294:])
    head = learnt_of(model).model.ridge
    assert head._products[0] is head.solution.coef, "corrected, not made anew"
    W, M = head.coefficients()[0].cpu(), torch.from_numpy(X.T @ (np.eye(6)[y] * weights[:, None]))
    if fit_intercept:
        M -= torch.from_numpy(np.outer(np.average(X, axis=0, weights=weights), np.bincount(y, weights)))
    for product, left in zip(head.products(), (M, W), strict=True):
        assert relative(product - left.T @ W, product) <= 1e-13
