"""Models that forgot most of what they knew say when digits are lost."""

import warnings

import numpy as np
import pytest

from acil import ACILClassifier
from acil.errors import PrecisionWarning


def forgotten(width, gamma, keep, n=2789, features=200):
    rng = np.random.default_rng(0)
    scale = np.geomspace(1, 1e-2, features)
    X, y = rng.normal(size=(n, features)) * scale, np.arange(n) % 10
    settings = {"expansion_size": width, "gamma": gamma, "activation": "tanh"}
    model = ACILClassifier(**settings).fit(X, y)
    never = ACILClassifier(**settings).fit(X[:keep], y[:keep])
    held_out = rng.normal(size=(100, features)) * scale
    expected = never.decision_function(held_out)
    model.forget(X[keep:], y[keep:])
    return np.linalg.norm(model.decision_function(held_out) - expected) / np.linalg.norm(expected)


def test_a_wide_model_that_forgot_too_much_warns():
    # As many samples left as dimensions, and a tiny γ: the least eigenvalue falls to a ten-thousandth.
    with pytest.warns(PrecisionWarning, match="rounding is left of it"):
        difference = forgotten(520, 1.5e-5, keep=520)
    assert difference < 1e-7


@pytest.mark.parametrize(
    ("width", "gamma", "keep"), [(520, 0.1, 520), (520, 1.5e-5, 2000), (500, 1.5e-5, 500)]
)
def test_others_keep_all_digits_and_say_nothing(width, gamma, keep):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert forgotten(width, gamma, keep) < 1e-9
