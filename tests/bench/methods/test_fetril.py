"""FeTrIL: what the pseudo-features are, and that the classifier is the one they lead to."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from sklearn.svm import LinearSVC

from acil.bench.methods import fetril
from acil.bench.methods.class_means import ClassMeans, by_class
from acil.bench.methods.fetril import squared_hinge, training_rows
from support.frozen_phases import GROUPS, gaussians, learnt, phase, phases, vectors
from support.small_training import CPU


def means_of(features, labels):
    means = ClassMeans(CPU)
    for label, rows in by_class(features, labels, CPU):
        means.add(label, rows)
    return means


def test_translated_features_have_the_stored_mean_and_the_shape_of_their_source():
    features, labels = gaussians()
    means = means_of(features, labels)
    real = {label: rows for label, rows in by_class(features, labels, CPU) if label in (4, 5)}
    rows, targets = training_rows(means, real, "euclidean")
    assert torch.bincount(targets).tolist() == [12] * 6
    for position in range(6):
        part = rows[targets == position]
        torch.testing.assert_close(part.mean(dim=0), means.means[position], rtol=0, atol=1e-12)
        centred = part - part.mean(dim=0)
        sources = [real[label] - real[label].mean(dim=0) for label in real]
        assert any(torch.allclose(centred, source, rtol=0, atol=1e-12) for source in sources)
    torch.testing.assert_close(rows[targets == 4], real[4], rtol=0, atol=0)


def test_source_is_the_nearest_new_class_by_distance_or_by_angle():
    # The old class 0 is closer to class 1, but points the way of class 2.
    features = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 1.5], [9.0, 0.0], [9.0, 0.2]])
    labels = torch.tensor([0, 1, 1, 2, 2])
    means = means_of(features, labels)
    real = {label: rows for label, rows in by_class(features, labels, CPU) if label > 0}
    for similarity, height in (("euclidean", 0.5), ("cosine", 0.2)):
        rows, targets = training_rows(means, real, similarity)
        old = rows[targets == 0]
        assert float(old[:, 1].max() - old[:, 1].min()) == pytest.approx(height)


def test_classifier_is_a_linear_svc_on_rows_of_length_one():
    features, labels = gaussians()
    first, second, third = phases(features, labels, GROUPS)
    model = learnt("fetril", [first, second, third])
    X, y = features.double().numpy(), labels.numpy()
    means = np.stack([X[y == c].mean(axis=0) for c in range(6)])
    rows, targets = [], []
    for c in range(6):
        source = c if c in (4, 5) else min((4, 5), key=lambda s: np.linalg.norm(means[c] - means[s]))
        rows.append(X[y == source] - means[source] + means[c])
        targets += [c] * len(rows[-1])
    rows = np.concatenate(rows)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    reference = LinearSVC(C=1, tol=1e-4, dual=False).fit(rows, targets)
    # The solver stops at its tolerance, from rows that differ in the last digit.
    np.testing.assert_allclose(model.weight.numpy(), reference.coef_, rtol=0, atol=1e-3)
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    agreement = (model.predict(vectors(features)).numpy() == reference.predict(unit)).mean()
    assert agreement > 0.98


def test_linear_layer_learns_too_and_the_same_bits_each_time():
    features, labels = gaussians(per_class=40)
    settings = {"fetril_classifier": "fc", "fetril_epochs": 30, "fetril_learning_rate": 0.5}
    first = learnt("fetril", phases(features, labels, GROUPS), **settings)
    again = learnt("fetril", phases(features, labels, GROUPS), **settings)
    assert torch.equal(first.weight, again.weight)
    assert (first.predict(vectors(features)) == labels).double().mean() > 0.7


@pytest.mark.parametrize("classifier", ["svc", "fc"])
def test_one_class_and_then_two(classifier):
    features, labels = gaussians(n_classes=2)
    settings = {"fetril_classifier": classifier, "fetril_epochs": 60, "fetril_learning_rate": 0.5}
    model = learnt("fetril", phases(features, labels, [(0,)]), **settings)
    assert model.predict(vectors(features)).tolist() == [0] * len(features)
    model = learnt("fetril", phases(features, labels, [(0,), (1,)]), **settings)
    assert model.weight.shape == (2, 8)
    assert (model.predict(vectors(features)) == labels).double().mean() > 0.9


def test_class_that_comes_back_uses_its_new_samples():
    features, labels = gaussians()
    model = learnt("fetril", [phase(features[:40], labels[:40]), phase(features[40:], labels[40:], 1)])
    whole = means_of(features, labels)
    order = torch.argsort(model.means.labels)
    torch.testing.assert_close(model.means.means[order], whole.means, rtol=0, atol=1e-12)
    assert (model.predict(vectors(features)) == labels).double().mean() > 0.7


def test_solver_that_does_not_converge_is_logged_and_not_raised(caplog, monkeypatch):
    monkeypatch.setattr(fetril, "_MOST_STEPS", 1)
    features, labels = gaussians()
    with caplog.at_level(logging.WARNING, "acil.bench.methods.fetril"):
        learnt("fetril", [phase(features, labels)])
    assert "has not converged" in caplog.text


def problem(n_classes, features=12, rows=400, spread=1.0, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(rows) % n_classes
    rng.shuffle(y)
    X = rng.normal(size=(rows, features)) * spread + rng.normal(size=(n_classes, features))[y]
    return X / np.linalg.norm(X, axis=1, keepdims=True), y


@pytest.mark.parametrize("C", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("n_classes", [3, 7])
def test_weights_are_those_of_scikit_learn(n_classes, C):
    X, y = problem(n_classes)
    svc = LinearSVC(C=C, tol=1e-10, dual=False, max_iter=10_000).fit(X, y)
    weight, bias, converged = squared_hinge(
        torch.from_numpy(X), torch.from_numpy(y), n_classes, C, tolerance=1e-9
    )
    assert converged
    np.testing.assert_allclose(weight, svc.coef_, rtol=0, atol=1e-6 * np.abs(svc.coef_).max())
    np.testing.assert_allclose(bias, svc.intercept_, rtol=0, atol=1e-6 * np.abs(svc.coef_).max())


def test_separable_classes_and_a_large_C_converge():
    X, y = problem(5, spread=0.05)
    weight, bias, converged = squared_hinge(torch.from_numpy(X), torch.from_numpy(y), 5, C=1e4)
    assert converged
    assert (torch.from_numpy(X) @ weight.T + bias).argmax(1).tolist() == y.tolist()
