"""Expansions that are made from the first samples: Fourier features, and kernels around samples."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist, pdist

from acil import ACILClassifier, load, save
from acil.core.classifier import learnt_of
from acil.core.expansion import MEASURED, Expansion
from acil.core.parameters import FITTED
from acil.errors import InputError, UnsupportedError
from acil.privacy import audit, privatize

BOTH = pytest.mark.parametrize("activation", FITTED)
#: Centres and phases are stored in float32, whose ε is 1.2e-7, at exponents of about 10.
SINGLE = 1e-5


def samples(n=90, d=5, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat([0, 1, 2], n // 3))
    return rng.normal(size=(n, d)) + 3 * np.eye(3, d)[y], y


def learnt(activation, X, y, **changes):
    given = {"expansion_size": 40, "gamma": 0.1, "scores": "ridge", **changes}
    return ACILClassifier(activation=activation, **given).partial_fit(X, y)


def expansion_of(model):
    return learnt_of(model).model.expansion


def test_kernels_are_those_around_a_random_part_of_the_first_samples():
    X, y = samples()
    order = np.argsort(y, kind="stable")
    model = learnt("gaussian", X[order], y[order])
    expansion = expansion_of(model)
    centres = expansion.projection.numpy().T
    places = cdist(centres, X[order].astype(np.float32)).argmin(axis=1)
    np.testing.assert_array_equal(centres, X[order].astype(np.float32)[places])
    assert len(set(places)) == 40
    assert set(y[order][places]) == {0, 1, 2}, "not the first rows, which are of one class"
    queries = samples(seed=1)[0]
    width = np.median(pdist(X))
    expected = np.exp(-(cdist(queries, centres.astype(float)) ** 2) / (2 * width**2))
    np.testing.assert_allclose(expansion(torch.from_numpy(queries)).numpy(), expected, rtol=SINGLE)


def test_products_of_fourier_features_approach_the_kernel():
    X, _ = samples()
    size = 20_000
    rows = Expansion.fitted(torch.from_numpy(X), size, "fourier", 0)(torch.from_numpy(X)).numpy()
    kernel = np.exp(-(cdist(X, X) ** 2) / (2 * np.median(pdist(X)) ** 2))
    # Five standard errors of a mean of products of cosines, of variance below 1 / 2 each
    assert np.abs(2 / size * rows @ rows.T - kernel).max() < 5 * 2 * (0.5 / size) ** 0.5


@BOTH
def test_phases_files_merging_and_forgetting_are_exact_given_the_expansion(activation, tmp_path):
    X, y = samples()
    first = learnt(activation, X[:50], y[:50])
    save(first, tmp_path / "first.acil")
    second = load(tmp_path / "first.acil")
    assert expansion_of(second).fingerprint() == expansion_of(first).fingerprint()
    both = first.copy().partial_fit(X[50:], y[50:])
    second.partial_fit(X[50:], y[50:]).forget(X[:50], y[:50])
    merged = first.copy().merge(second)
    rows = expansion_of(first)(torch.from_numpy(X)).numpy()
    W = np.linalg.solve(rows.T @ rows + 0.1 * np.eye(40), rows.T @ np.eye(3)[y])
    # κ is about 1e5 here
    np.testing.assert_allclose(both.decision_function(X), rows @ W, atol=1e-8)
    np.testing.assert_allclose(merged.decision_function(X), rows @ W, atol=1e-8)
    other = learnt(activation, X[50:], y[50:], expansion_size=30)
    same_size = learnt(activation, X[:45], y[:45])
    for model in (other, same_size):
        with pytest.raises(InputError, match="one model from the other"):
            first.merge(model)


@BOTH
def test_it_scales_with_the_features(activation):
    X, y = samples()
    once, twice = (learnt(activation, factor * X, y) for factor in (1.0, 16.0))
    np.testing.assert_array_equal(twice.decision_function(16 * X), once.decision_function(X))


@BOTH
def test_samples_of_weight_zero_are_not_looked_at(activation):
    X, y = samples()
    weights = np.repeat([1.0, 0.0], [60, 30])
    model = ACILClassifier(40, 0.1, activation, scores="ridge").partial_fit(X, y, None, weights)
    moved = np.concatenate([X[:60], X[60:] + 100])
    same = ACILClassifier(40, 0.1, activation, scores="ridge").partial_fit(moved, y, None, weights)
    assert expansion_of(model).fingerprint() == expansion_of(same).fingerprint()


def test_of_many_samples_some_are_measured_and_equal_ones_have_a_width():
    X = np.random.default_rng(0).normal(size=(3 * MEASURED, 4))
    model = learnt("gaussian", X, np.arange(len(X)) % 2)
    assert 1 / float(expansion_of(model).bias[0]) == pytest.approx(np.median(pdist(X)), rel=0.05)
    model = learnt("fourier", np.ones((6, 2)), np.arange(6) % 2)
    assert np.isfinite(model.decision_function(np.ones((1, 2)))).all()


def test_too_few_samples_for_the_centres_change_nothing():
    X, y = samples(30)
    model = ACILClassifier(40, activation="gaussian")
    with pytest.raises(InputError, match="40 centres"):
        model.fit(X, y)
    assert not model.__sklearn_is_fitted__()


@BOTH
def test_what_does_not_go_with_it_is_refused(activation):
    X, y = samples()
    with pytest.raises(UnsupportedError, match="clip_norm"):
        learnt(activation, X, y, clip_norm=1.0)
    with pytest.raises(InputError, match="biases"):
        learnt(activation, X, y, expansion_bias=0.5)
    sums = learnt(activation, X, y).sums(projection=False)
    with pytest.raises(UnsupportedError, match="first call"):
        ACILClassifier.from_sums(sums)


def test_privacy_refuses_models_that_hold_samples():
    X, y = samples()
    model = learnt("gaussian", X, y)
    with pytest.raises(UnsupportedError, match="holds 40 samples"):
        audit(model)
    for activation in FITTED:
        with pytest.raises(UnsupportedError, match="made from samples"):
            privatize(learnt(activation, X, y), 1.0, 1e-6)
    # Without an expansion there are no centres.
    audit(learnt("gaussian", X, y, expansion_size=None))
