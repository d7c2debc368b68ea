"""Novelty relative to what was learnt, another γ and copies: all from the sums alone."""

import numpy as np
import pytest
from sklearn import datasets

from acil import ACILClassifier, load, save
from acil.errors import InputError

#: Leverages are solved from sums in another order: eps · κ, and κ is below 1e4 here.
ROUNDING = 1e-9


def data(n=60, d=12, seed=0):
    generator = np.random.default_rng(seed)
    y = np.repeat(["a", "b", "c"], n // 3)
    X = generator.normal(size=(n, d)) + np.repeat(np.eye(3, d) * 3, n // 3, axis=0)
    return X, y


def fitted(X, y, **options):
    return ACILClassifier(
        **({"scores": "ridge"} | {"expansion_size": None, "gamma": 0.5} | options)
    ).fit(X, y)


def by_hand(X, y, rows, gamma=0.5):
    """Return the novelty of rows by its definition, for classes that all have 20 samples."""
    names, n = np.unique(y), 20
    means = np.stack([X[y == c].mean(0) for c in names])
    within = X - means[np.searchsorted(names, y)]
    S = np.linalg.inv(within.T @ within + gamma * np.eye(X.shape[1]))
    t = np.trace(within @ S @ within.T)
    v = t / (len(X) - len(names) - t)
    centre = means.mean(0)
    gaps = np.einsum("ij,jk,ik->i", means - centre, S, means - centre).mean()
    spread = gaps / (1 - 1 / len(names)) - v / n
    drawn = centre + (means - centre) * spread / (spread + v / n)
    squares = [np.einsum("ij,jk,ik->i", rows - m, S, rows - m) for m in (*drawn, centre)]
    nearest = np.min(squares[:-1], axis=0)
    known = np.clip(1 + (squares[-1] - nearest) / spread, 0.01, 3)
    length = np.minimum((rows**2).sum(1) / (X**2).sum(1).mean(), 1.5)
    return nearest / (1 + 1 / n) / v / length / known / np.exp(0.8)


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_relative_novelty_by_its_definition(fit_intercept):
    X, y = data()
    rows = np.random.default_rng(1).normal(size=(50, 12)) * 3
    rows[:3] *= [[1e3], [1e-3], [-5]]
    found = fitted(X, y, fit_intercept=fit_intercept).relative_novelty(rows)
    np.testing.assert_allclose(found, by_hand(X, y, rows), rtol=1e-7)


def test_relative_novelty_finds_the_strange():
    X, y = data()
    X[:, 8:] = 0  # four directions that nothing learnt has
    for scores in ("ridge", "discriminant"):
        model = fitted(X, y, scores=scores)
        assert np.mean(model.relative_novelty(X) > 1) < 0.15
        assert model.relative_novelty(np.vstack([np.eye(12)[8:], np.zeros(12)])).min() > 2


@pytest.mark.parametrize("name", ["iris", "wine"])
def test_what_is_farther_is_no_less_unknown(name):
    """Rows of the opposite direction, ever farther; leverage alone is the same for x and −x."""
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    factors, every = (-1, 1, 2, 3, 4, 6, 10), []
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(y))
        learnt, held_out = order[: len(y) * 7 // 10], order[len(y) * 7 // 10 :]
        model, mean = ACILClassifier(expansion_size=256).fit(X[learnt], y[learnt]), X[learnt].mean(0)
        rows = [mean - k * (X[held_out] - mean) for k in factors]
        every.append([np.mean(model.relative_novelty(part) > 1) for part in rows])
    false_alarms, *shares = np.mean(every, axis=0)
    assert 0.02 <= false_alarms <= 0.1
    assert np.diff(shares).min() >= -0.03
    assert shares[-1] >= 0.95


@pytest.mark.parametrize("options", [{}, {"fit_intercept": True}, {"scores": "discriminant"}], ids=str)
@pytest.mark.parametrize("n", [1, 2])
def test_one_sample_of_a_class_tells_what_is_unlike_it(n, options):
    generator = np.random.default_rng(0)
    X = generator.normal(size=(n, 40))
    model = fitted(X, ["a", "b"][:n], **options)
    assert (model.relative_novelty(X) < 1).all()
    assert np.mean(model.relative_novelty(generator.normal(size=(100, 40))) > 1) > 0.8
    assert (model.relative_novelty(-10 * X) > 1).all()


def test_relative_novelty_is_the_same_in_any_order(tmp_path):
    X, y = data()
    joint = fitted(X, y)
    phased = ACILClassifier(scores="ridge", expansion_size=None, gamma=0.5)
    for part in (slice(40, 60), slice(0, 20), slice(20, 40), slice(0, 20)):
        phased.partial_fit(X[part], y[part])
    phased.forget(X[:20], y[:20])
    save(phased, tmp_path / "m.acil")
    for model in (phased, load(tmp_path / "m.acil")):
        np.testing.assert_allclose(
            model.relative_novelty(X[::5]), joint.relative_novelty(X[::5]), rtol=1e-8
        )


def test_set_gamma_gives_the_model_of_that_gamma():
    X, y = data()
    model = fitted(X, y)
    model.coef_  # noqa: B018 (solved for the old γ first)
    assert model.set_gamma(7.0) == 7.0
    np.testing.assert_allclose(model.coef_, fitted(X, y, gamma=7.0).coef_, rtol=ROUNDING)
    assert model.temperature_ == pytest.approx(fitted(X, y, gamma=7.0).temperature_)


@pytest.mark.parametrize("gamma", [-1.0, float("nan"), float("inf"), "auto", None, True])
def test_bad_gamma_changes_nothing(gamma):
    model = fitted(*data())
    with pytest.raises(InputError, match="gamma must be"):
        model.set_gamma(gamma)
    assert model.gamma_ == 0.5


@pytest.mark.parametrize("scores", ["ridge", "discriminant"])
@pytest.mark.parametrize("dtype", ["float32", "mixed", "float64"])
def test_novelty_needs_no_gamma(dtype, scores):
    X, y = data()
    model = fitted(X, y, gamma=0, dtype=dtype, scores=scores)
    strange, zero = model.relative_novelty(np.r_[X[:1], 0 * X[:1]])
    assert strange < 100 < zero
