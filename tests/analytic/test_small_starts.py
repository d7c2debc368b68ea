"""Wide models that start with few samples: digits that γ alone would call useless are kept."""

import numpy as np
import pytest

from acil import ACILClassifier

WIDTH, SAMPLES = 640, 2200
SETTINGS = {"expansion_size": None, "gamma": 1e-13}
#: What scores of two ways to the same model may differ by, relative to their size.
PROMISED = 1e-9


@pytest.fixture(scope="module")
def problem():
    """Samples whose classes show in thin directions only; κ is close to 1e9 when all are there."""
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))[0]
    drawn = rng.normal(size=(SAMPLES + 200, WIDTH))
    y = drawn[:, :8].argmax(axis=1)
    X = drawn * np.where(np.arange(WIDTH) < WIDTH // 2, 8e-4, 1.0) @ turn + 0.5
    joint = ACILClassifier(**SETTINGS).fit(X[:SAMPLES], y[:SAMPLES])
    assert 5e8 < joint.condition_ < 1e9
    return X[:SAMPLES], y[:SAMPLES], X[SAMPLES:], joint.decision_function(X[SAMPLES:])


def of(X, y, start, stop):
    return ACILClassifier(**SETTINGS).fit(X[start:stop], y[start:stop])


def stream(X, y):
    """Phases of 20 samples, and then many at once."""
    model = ACILClassifier(**SETTINGS)
    for start in range(0, 1200, 20):
        model.partial_fit(X[start : start + 20], y[start : start + 20])
    return model.partial_fit(X[1200:], y[1200:])


def trickle(X, y):
    """Phases of 20 samples until the end."""
    model = ACILClassifier(**SETTINGS)
    for start in range(0, SAMPLES, 20):
        model.partial_fit(X[start : start + 20], y[start : start + 20])
    return model


def merged(X, y):
    """Small models, added up one by one."""
    model = of(X, y, 0, 50)
    for start in range(50, SAMPLES, 50):
        model.merge(of(X, y, start, start + 50))
    return model


def forgetful(X, y):
    """All samples and some more, of which the others are forgotten."""
    more, labels = X[:100] + 0.25, y[:100]
    model = of(np.concatenate([more, X]), np.concatenate([labels, y]), 0, 300)
    for start in range(200, SAMPLES, 500):
        model.partial_fit(X[start : start + 500], y[start : start + 500])
    return model.forget(more, labels)


@pytest.mark.parametrize("way", [stream, trickle, merged, forgetful])
def test_models_that_start_small_equal_joint_learning(problem, way):
    X, y, held_out, expected = problem
    difference = np.linalg.norm(way(X, y).decision_function(held_out) - expected)
    assert difference <= PROMISED * np.linalg.norm(expected)
