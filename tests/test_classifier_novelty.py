"""Novelty relative to what was learnt, another γ and copies: all from the sums alone."""

import numpy as np
import pytest

from acil import ACILClassifier, load, save
from acil.errors import InputError
from acil.scores import expected_leverage

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


@pytest.mark.parametrize("expansion_size", [None, 30])
def test_expected_novelty_is_that_of_samples_left_out(expansion_size):
    """The known answer: x_iᵀ R_{-i} x_i = h_i / (1 − h_i), by leaving each sample out in truth."""
    X, y = data()
    model = fitted(X, y, expansion_size=expansion_size)
    in_sample = model.novelty(X)
    truth = [
        fitted(np.delete(X, i, 0), np.delete(y, i), expansion_size=expansion_size).novelty(X[i : i + 1])[
            0
        ]
        for i in range(0, len(X), 7)
    ]
    np.testing.assert_allclose((in_sample / (1 - in_sample))[::7], truth, rtol=1e-8)
    mean = in_sample.mean()
    expected = expected_leverage(model._require_state().model)
    assert expected == pytest.approx(mean / (1 - mean), rel=1e-9)


def test_relative_novelty_by_its_formula():
    X, y = data()
    model = fitted(X, y)
    R = np.linalg.inv(X.T @ X + 0.5 * np.eye(12))
    rows = np.random.default_rng(1).normal(size=(5, 12))
    mean = np.einsum("ij,jk,ik->i", X, R, X).mean()
    square = (X**2).sum(1).mean()
    leverage = np.einsum("ij,jk,ik->i", rows, R, rows)
    expected = leverage / (rows**2).sum(1) * square * (1 - mean) / mean
    np.testing.assert_allclose(model.relative_novelty(rows), expected, rtol=ROUNDING)


def test_relative_novelty_does_not_depend_on_length_and_finds_the_strange():
    X, y = data()
    X[:, 8:] = 0  # four directions that nothing learnt has
    model = fitted(X, y)
    rows = np.vstack([X[:10], np.eye(12)[8:]])
    found = model.relative_novelty(rows)
    np.testing.assert_allclose(model.relative_novelty(1000 * rows), found, rtol=ROUNDING)
    assert found[10:].min() > 5 * found[:10].max()
    # A row of zeros is like nothing learnt either.
    assert model.relative_novelty(np.zeros((1, 12)))[0] == pytest.approx(found[-1], rel=1e-6)


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
