"""The temperature of the softmax."""

import math

import numpy as np
import pytest

from acil.analytic.probability import softmax_temperature


def test_temperature_belongs_to_gumbel_noise_of_that_variance():
    # The variance of Gumbel noise of scale T is π² T² / 6.
    for T in (0.01, 0.3, 5.0):
        assert softmax_temperature(math.pi**2 * T**2 / 6) == pytest.approx(T)


def test_softmax_at_that_temperature_is_the_probability_of_the_highest_score():
    rng = np.random.default_rng(0)
    scores, T = np.array([0.5, 0.3, 0.1]), 0.2
    noise = rng.gumbel(scale=T, size=(200_000, 3))
    frequency = np.bincount((scores + noise).argmax(axis=1), minlength=3) / 200_000
    heat = softmax_temperature(float(noise.var()))
    softmax = np.exp(scores / heat) / np.exp(scores / heat).sum()
    assert np.abs(softmax - frequency).max() < 0.005  # four standard errors of the frequency


@pytest.mark.parametrize("error", [0.0, -1e-20, 1e-300])
def test_a_perfect_fit_has_a_small_positive_temperature(error):
    assert 0 < softmax_temperature(error) <= 1e-2


def test_a_hopeless_fit_has_a_finite_temperature():
    assert softmax_temperature(1e300) < 1e6
