"""The linear classifier of FeTrIL against scikit-learn's."""

import numpy as np
import pytest
import torch
from sklearn.svm import LinearSVC

from acil.methods.fetril import squared_hinge


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


def test_two_classes_are_opposites_and_agree_with_scikit_learn():
    X, y = problem(2)
    svc = LinearSVC(tol=1e-10, dual=False).fit(X, y)
    weight, bias, _ = squared_hinge(torch.from_numpy(X), torch.from_numpy(y), 2, tolerance=1e-9)
    np.testing.assert_allclose(weight[1], svc.coef_[0], rtol=0, atol=1e-6 * np.abs(svc.coef_).max())
    torch.testing.assert_close(weight[0], -weight[1])
    torch.testing.assert_close(bias[0], -bias[1])


def test_at_the_usual_tolerance_the_loss_is_as_low_as_scikit_learns():
    X, y = problem(10, rows=1000)
    signs = np.where(y[:, None] == np.arange(10), 1, -1)

    def loss(weight, bias):
        hinge = np.maximum(0, 1 - signs * (X @ weight.T + bias))
        return 0.5 * (weight**2).sum() + 0.5 * (bias**2).sum() + (hinge**2).sum()

    svc = LinearSVC(tol=1e-4, dual=False).fit(X, y)
    weight, bias, converged = squared_hinge(torch.from_numpy(X), torch.from_numpy(y), 10)
    assert converged
    assert loss(weight.numpy(), bias.numpy()) <= loss(svc.coef_, svc.intercept_) * (1 + 1e-4)


def test_separable_classes_and_a_large_C_converge():
    X, y = problem(5, spread=0.05)
    weight, bias, converged = squared_hinge(torch.from_numpy(X), torch.from_numpy(y), 5, C=1e4)
    assert converged
    assert (torch.from_numpy(X) @ weight.T + bias).argmax(1).tolist() == y.tolist()
