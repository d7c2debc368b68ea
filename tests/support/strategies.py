"""Random problems, random ways to cut them into phases, and measures that are not ours."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

from acil import ACILClassifier
from acil.core.classifier import learnt_of

EPS32 = float(np.finfo(np.float32).eps)
EPS64 = float(np.finfo(np.float64).eps)


def promise(condition, c=1):
    """How far scores or weights of the same samples, learnt in another way, may be apart."""
    return max(1e-12, c * EPS64 * condition)


def slack(problem):
    """How much more weights may differ: rows of one feature span two dimensions, rounding errors all."""
    return 4 if problem.X.shape[1] == 1 else 1


def relative(a, b):
    """Frobenius norm of the difference, relative to the second."""
    a, b = np.asarray(a, dtype=np.longdouble), np.asarray(b, dtype=np.longdouble)
    return float(np.sqrt(((a - b) ** 2).sum()) / np.sqrt((b**2).sum()))


def projection(n_features, size, seed=0):
    """W_fe as the design defines it: drawn from the seed on the CPU in float32."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n_features, size, generator=generator, dtype=torch.float32).double().numpy()


def expanded(X, size, seed=0):
    """ReLU expansion by NumPy alone."""
    X = np.asarray(X, dtype=np.float64)
    return X if size is None else np.maximum(X @ projection(X.shape[1], size, seed), 0.0)


def condition_number(rows, gamma):
    """κ of XᵀX + γI from the singular values of X."""
    singular = np.linalg.svd(rows, compute_uv=False)
    smallest = singular[-1] ** 2 if rows.shape[0] >= rows.shape[1] else 0.0
    return (singular[0] ** 2 + gamma) / (smallest + gamma)


def gamma_for(rows, condition):
    """γ for which κ of XᵀX + γI is at most ``condition``."""
    return float(np.linalg.norm(rows, 2) ** 2 / (condition - 1) * 1.000001)


def long_double_ridge(rows, targets, gamma, fit_intercept=False, weights=None):
    """Weights of shape (d, k) and intercepts of a ridge regression in NumPy's longest float."""
    rows, targets = rows.astype(np.longdouble), targets.astype(np.longdouble)
    weights = np.ones(len(rows), np.longdouble) if weights is None else weights.astype(np.longdouble)
    mean, prior = (weights @ part / weights.sum() * fit_intercept for part in (rows, targets))
    centred = rows - mean
    matrix = (centred.T * weights) @ centred + np.longdouble(gamma) * np.eye(rows.shape[1])
    W = _gauss(matrix, (centred.T * weights) @ (targets - prior))
    return W, prior - mean @ W


def _gauss(A, B):
    """Solve in long double, which NumPy's LAPACK does not do; both arguments are overwritten."""
    d = len(A)
    for k in range(d):
        factors = A[k + 1 :, k] / A[k, k]
        A[k + 1 :, k:] -= factors[:, None] * A[k, k:]
        B[k + 1 :] -= factors[:, None] * B[k]
    for k in range(d - 1, -1, -1):
        B[k] = (B[k] - A[k, k + 1 :] @ B[k + 1 :]) / A[k, k]
    return B


def one_hot(labels, classes):
    return (np.asarray(labels)[:, None] == np.asarray(classes)[None, :]).astype(np.float64)


class Problem:
    """Samples to learn and rows to score; prints as the call that makes it."""

    def __init__(self, X, y, held_out, recipe):
        self.X, self.y, self.held_out, self.recipe = X, y, held_out, recipe

    @property
    def n(self):
        return len(self.y)

    def __repr__(self):
        return self.recipe


def blobs(n, n_features, n_classes, seed, spread=2.0):
    """Gaussian classes; every class has at least one sample."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(scale=spread, size=(n_classes, n_features))
    y = np.concatenate([np.arange(n_classes), rng.integers(0, n_classes, n - n_classes)])
    rng.shuffle(y)
    X = centres[y] + rng.normal(size=(n, n_features))
    held_out = centres[rng.integers(0, n_classes, 60)] + rng.normal(size=(60, n_features))
    return Problem(X, y, held_out, f"blobs({n}, {n_features}, {n_classes}, {seed}, {spread})")


@st.composite
def problems(draw, min_rows=30, max_rows=300, max_classes=8):
    """Draw a Problem."""
    n_classes = draw(st.integers(1, max_classes))
    n = draw(st.integers(max(min_rows, n_classes), max_rows))
    return blobs(n, draw(st.integers(1, 16)), n_classes, draw(st.integers(0, 2**32 - 1)))


def cut(y, n_phases, seed, by_class):
    """Cut samples into phases of random sizes: classes one after another, or all mixed up.

    With ``by_class``, some samples are moved, so that classes also come back later.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))
    if by_class:
        rank = rng.permutation(int(y.max()) + 1)
        order = order[np.argsort(rank[y[order]], kind="stable")]
        moved = rng.random(len(y)) < 0.1
        order[moved] = rng.permutation(order[moved])
    cuts = np.sort(rng.choice(np.arange(1, len(y)), size=min(n_phases, len(y)) - 1, replace=False))
    return np.split(order, cuts)


def learn_phases(model, problem, phases, predicting=False):
    """Learn phase after phase; return the largest rank that a correction had."""
    rank = 0
    for phase in phases:
        model.partial_fit(problem.X[phase], problem.y[phase])
        rank = max(rank, correction_rank(model))
        if predicting:
            model.predict(problem.held_out[:2])
    return rank


def correction_rank(model):
    """Number of rows in the low-rank correction of a model."""
    solution = getattr(learnt_of(model).model.head, "solution", None)
    return 0 if solution is None or solution.factor is None else solution.factor.rank


def sums_of(model):
    """Copies of everything that learning changes, by name."""
    head = learnt_of(model).model.head
    if head.solver == "gram":
        head.flush()
        gram, moment = head.sums.gram.tril(), head.sums.moment
    else:
        gram, moment = head.R, head.coef
    return {
        "classes": model.classes_.copy(),
        "gram or R": gram.cpu().numpy().copy(),
        "moment or W": moment.cpu().numpy().copy(),
        "counts": head.counts.numpy().copy(),
        "weights": head.class_weights.numpy().copy(),
    }


class Unchanged:
    """Assert that what is called in this context leaves a model as it was, to the last bit."""

    def __init__(self, model: ACILClassifier, X) -> None:
        self.model, self.X = model, X

    def __enter__(self):
        self.before = self._look()
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None:
            return
        after = self._look()
        assert after.keys() == self.before.keys()
        for name, value in self.before.items():
            assert np.array_equal(value, after[name]), f"{name} changed"
            assert np.asarray(value).dtype == np.asarray(after[name]).dtype, f"dtype of {name} changed"

    def _look(self):
        look = {
            "scores": self.model.decision_function(self.X).copy(),
            "labels": self.model.predict(self.X).copy(),
            "n_features_in_": np.array(self.model.n_features_in_),
            "gamma_": np.array(self.model.gamma_),
            "feature names": np.array(getattr(self.model, "feature_names_in_", "none")),
        }
        return look | sums_of(self.model)


def same_sums(left, right):
    """Say whether two models have bit-equal sums and the same classes."""
    left, right = sums_of(left), sums_of(right)
    return all(
        left[name].tobytes() == right[name].tobytes() and left[name].dtype == right[name].dtype
        for name in left
        if name != "classes"
    ) and np.array_equal(left["classes"], right["classes"])
