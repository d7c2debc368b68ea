"""Hypothesis profiles and data that many tests share."""

import math
import os

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from sklearn.datasets import load_digits

from acil.core import linalg

# The same examples every time by default; HYPOTHESIS_PROFILE=explore looks for new ones.
_COMMON = {
    "deadline": None,
    "database": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
settings.register_profile("repeatable", derandomize=True, max_examples=20, **_COMMON)
settings.register_profile("explore", max_examples=200, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


# Matrices in tests are small: two thread pools (torch's and that of SciPy's BLAS) that wait for each
# other on a busy machine would cost ten times more than they save.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def digits():
    """Digits in random order, features scaled to 0 … 1."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return X[order] / 16.0, y[order]


@pytest.fixture(params=[0, math.inf], ids=["scipy", "torch"])
def library(request, monkeypatch):
    """Run a test with either library of linear algebra, whichever this processor and this width take."""
    monkeypatch.setattr(linalg, "SCIPY_FROM", request.param)
