"""On a GPU the classifier gives what it gives on a CPU, which other tests compare with references."""

import numpy as np
import pytest
import torch

from acil import ACILClassifier
from support.strategies import relative

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")

N_CLASSES = 6


def problem(n=1500, n_features=24, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, N_CLASSES, n)
    X = rng.normal(size=(n, n_features)) + 0.5 * rng.normal(size=(N_CLASSES, n_features))[y]
    return X, y


def classifier(device, width, gamma, **options):
    return ACILClassifier(
        expansion_size=width, gamma=gamma, device=device, **({"scores": "ridge"} | options)
    )


def phased(device, X, y, width, gamma, **options):
    """Learn class by class, with weights after each class, by corrections where these are cheaper."""
    clf = classifier(device, width, gamma, **options)
    first = y < 2
    clf.partial_fit(X[first], y[first])
    for label in range(2, N_CLASSES):
        clf.decision_function(X[:1])
        clf.partial_fit(X[y == label], y[y == label])
    return clf


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize(("width", "gamma"), [(300, 1.0), (700, 1.0), (700, 1e-3), (2500, 10.0)])
def test_phases_on_a_gpu_are_joint_learning_on_a_cpu(width, gamma, fit_intercept):
    X, y = problem()
    X_test, _ = problem(200, seed=1)
    joint = classifier("cpu", width, gamma, fit_intercept=fit_intercept).fit(X, y)
    found = phased("cuda", X, y, width, gamma, fit_intercept=fit_intercept)
    assert relative(found.decision_function(X_test), joint.decision_function(X_test)) <= 1e-9


def test_single_samples_on_a_gpu_are_joint_learning_on_a_cpu():
    X, y = problem()
    joint = classifier("cpu", 700, 1.0).fit(X, y)
    clf = classifier("cuda", 700, 1.0).fit(X[:1400], y[:1400])
    for row, label in zip(X[1400:], y[1400:], strict=True):
        clf.partial_fit(row[None], label[None])
        clf.predict(X[:2])
    assert relative(clf.decision_function(X), joint.decision_function(X)) <= 1e-9


def test_forgetting_on_a_gpu_is_never_having_learnt_on_a_cpu():
    X, y = problem()
    joint = classifier("cpu", 700, 1.0).fit(X[:1200], y[:1200])
    clf = classifier("cuda", 700, 1.0).fit(X, y).forget(X[1200:], y[1200:])
    assert relative(clf.decision_function(X), joint.decision_function(X)) <= 1e-9


def test_mixed_precision_on_a_gpu():
    X, y = problem()
    joint = classifier("cpu", 700, 1000.0).fit(X, y)
    found = phased("cuda", X, y, 700, 1000.0, dtype="mixed")
    assert relative(found.decision_function(X), joint.decision_function(X)) <= 1e-3


def test_leverage_and_condition_are_those_of_a_cpu():
    X, y = problem()
    here, there = (classifier(device, 700, 1.0).fit(X, y) for device in ("cpu", "cuda"))
    assert relative(np.asarray(there.novelty(X[:50])), np.asarray(here.novelty(X[:50]))) <= 1e-9
