"""Models that forgot most of what they knew say when digits are lost, and keep them where asked to."""

import warnings

import numpy as np
import pytest

from acil import ACILClassifier
from acil.errors import PrecisionWarning


def forgotten(width, gamma, keep, n=2789, features=200, sums="auto"):
    """Return how far scores are off after forgetting all samples but ``keep``, and κ then."""
    rng = np.random.default_rng(0)
    scale = np.geomspace(1, 1e-2, features)
    X, y = rng.normal(size=(n, features)) * scale, np.arange(n) % 10
    settings = {"expansion_size": width, "gamma": gamma, "activation": "tanh", "sums": sums}
    model = ACILClassifier(**settings).fit(X, y)
    never = ACILClassifier(**settings).fit(X[:keep], y[:keep])
    held_out = rng.normal(size=(100, features)) * scale
    expected = never.decision_function(held_out)
    model.forget(X[keep:], y[keep:])
    difference = np.linalg.norm(model.decision_function(held_out) - expected)
    return difference / np.linalg.norm(expected), never.condition_


def test_a_wide_model_that_forgot_too_much_warns():
    # As many samples left as dimensions, and a tiny γ: the least eigenvalue falls to a ten-thousandth.
    with pytest.warns(PrecisionWarning, match='rounding is left of it.*sums="extended"'):
        difference, _ = forgotten(520, 1.5e-5, keep=520)
    assert difference < 1e-7


def test_a_copy_warns_too():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(2789, 200)) * np.geomspace(1, 1e-2, 200), np.arange(2789) % 10
    model = ACILClassifier(expansion_size=520, gamma=1.5e-5, activation="tanh").fit(X, y)
    model.forget(X[520:], y[520:])
    with pytest.warns(PrecisionWarning, match="rounding is left of it"):
        model.copy().predict(X[:2])


@pytest.mark.parametrize(
    ("width", "gamma", "keep"), [(520, 0.1, 520), (520, 1.5e-5, 2000), (500, 1.5e-5, 500)]
)
def test_others_keep_all_digits_and_say_nothing(width, gamma, keep):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert forgotten(width, gamma, keep)[0] < 1e-9


def test_extended_sums_forget_to_the_last_digit_that_is_promised():
    with pytest.warns(PrecisionWarning):
        lost, condition = forgotten(600, 1.5e-5, keep=600, n=6000)
    assert 1e8 < condition < 1e9
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept, _ = forgotten(600, 1.5e-5, keep=600, n=6000, sums="extended")
    # Found: 1.6e-9 without, which another library for matrix products may move, and 1.7e-13 with them.
    assert kept < min(1e-10, lost / 100)


def low_parts(model):
    return "gram_low" in model.stored_bytes()


def test_extended_sums_keep_low_parts_whatever_happens():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(900, 30)), np.arange(900) % 5
    # Neither a strong ridge nor samples in all directions make them needless.
    settings = {"expansion_size": 40, "gamma": 1e3, "sums": "extended"}
    model = ACILClassifier(**settings).fit(X[:500], y[:500])
    assert low_parts(model)
    model.partial_fit(X[500:700], y[500:700]).forget(X[:300], y[:300])
    assert low_parts(model)
    other = ACILClassifier(**settings).fit(X[700:], y[700:])
    assert low_parts(model.merge(other))
    model.forget(X[300:], y[300:])
    assert model.__sklearn_is_fitted__() is False
    assert low_parts(model.partial_fit(X, y))


def test_extended_sums_say_when_they_are_merged_with_rounded_ones():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 30)), np.arange(200) % 5
    settings = {"expansion_size": 40, "gamma": 1e3}
    extended, plain = (ACILClassifier(**settings, sums=sums).fit(X, y) for sums in ("extended", "auto"))
    assert not low_parts(plain)
    twin = plain.copy().merge(extended)
    assert not low_parts(twin), "the one that is merged into decides"
    with pytest.warns(PrecisionWarning, match="that rounding stays"):
        extended.merge(plain)
    assert low_parts(extended)
    assert np.abs(extended.coef_ - twin.coef_).max() < 1e-12 * np.abs(twin.coef_).max()
