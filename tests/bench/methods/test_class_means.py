"""Class means and scatter: the same from any grouping, and accurate far from the origin."""

from itertools import pairwise

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from acil.bench.methods.class_means import ClassMeans, by_class
from support.frozen_phases import gaussians
from support.small_training import CPU

#: Sums of some hundred float64 numbers of size 1.
ROUNDING = 1e-11


def reference(features, labels):
    X, y = features.double().numpy(), labels.numpy()
    means = np.stack([X[y == c].mean(axis=0) for c in range(y.max() + 1)])
    centred = X - means[y]
    return means, centred.T @ centred


@given(st.lists(st.integers(0, 71), max_size=6, unique=True))
def test_any_grouping_gives_means_and_scatter_of_all_rows_at_once(cuts):
    features, labels = gaussians()
    sums = ClassMeans(CPU, with_scatter=True)
    edges = [0, *sorted(cuts), len(labels)]
    for start, stop in pairwise(edges):
        for label, rows in by_class(features[start:stop], labels[start:stop], CPU):
            sums.add(label, rows)
    means, scatter = reference(features, labels)
    order = torch.argsort(sums.labels)
    np.testing.assert_allclose(sums.means[order].numpy(), means, atol=ROUNDING, rtol=0)
    np.testing.assert_allclose(72 * sums.covariance().numpy(), scatter, atol=ROUNDING * 100, rtol=0)
    assert sums.counts.tolist() == [12] * 6


def test_scatter_far_from_the_origin_keeps_its_digits():
    """Σ x xᵀ − n μ μᵀ would lose all but a few: (1e7)² · 1e-16 = 0.01 for variances of 1."""
    rows = torch.randn(500, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    near, far = ClassMeans(CPU, True), ClassMeans(CPU, True)
    for part in rows.split(100):
        near.add(0, part)
        far.add(0, part + 1e7)
    difference = 500 * (near.covariance() - far.covariance()).abs().max()
    # The rows themselves are rounded to 1e7 · 1e-16 = 1e-9.
    assert float(difference) < 1e-5
