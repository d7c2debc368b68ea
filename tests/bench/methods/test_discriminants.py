"""LDA against scikit-learn, SLDA against its recursion sample by sample, NCM against its formula."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.covariance import OAS
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from acil.bench.methods.lda import oas_covariance
from support.frozen_phases import GROUPS, gaussians, learnt, phase, phases

#: Two ways to invert covariances of condition number up to about 1e5.
SOLVED = 1e-9
#: The recursion and its closed form differ only by rounding.
ROUNDING = 1e-10


@pytest.mark.parametrize("n", [3, 40, 500])
def test_oas_is_that_of_scikit_learn(n):
    X = np.random.default_rng(0).normal(size=(n, 5)) * np.arange(1, 6)
    expected = OAS(assume_centered=True).fit(X).covariance_
    found = oas_covariance(torch.from_numpy(X.T @ X / n), n)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-12)


def test_oas_of_rows_without_variance_is_zero():
    assert torch.equal(oas_covariance(torch.zeros(3, 3).double(), 4), torch.zeros(3, 3).double())


@pytest.mark.parametrize("shrinkage", [1e-4, 0.1, 0.9])
@pytest.mark.parametrize("priors", ["empirical", "equal"])
def test_lda_has_the_scores_of_scikit_learn(shrinkage, priors):
    # Unequal counts, so that empirical priors matter; scikit-learn weighs scatters by given ones.
    features, labels = (part[: 50 if priors == "empirical" else None] for part in gaussians())
    settings = {"lda_shrinkage": shrinkage, "lda_priors": priors}
    method = learnt("lda", phases(features, labels, GROUPS), **settings)
    X, known = features.double().numpy(), None if priors == "empirical" else np.full(6, 1 / 6)
    reference = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage, priors=known)
    expected = reference.fit(X, labels.numpy()).decision_function(X)
    if priors == "equal":
        expected += np.log(6)  # a constant, which is left out
    np.testing.assert_allclose(
        method.scorer()(features.double()).numpy(), expected, rtol=SOLVED, atol=SOLVED
    )
    assert method._predict(features).tolist() == reference.predict(X).tolist()


def test_lda_does_not_depend_on_the_scale_of_features():
    features, labels = gaussians()
    plain = learnt("lda", phases(features, labels, GROUPS), lda_shrinkage=0.3)
    large = learnt("lda", phases(1024 * features, labels, GROUPS), lda_shrinkage=0.3)
    expected = plain.scorer()(features.double())
    np.testing.assert_allclose(
        large.scorer()(1024 * features.double()), expected, rtol=SOLVED, atol=SOLVED
    )


def stream(features, labels, base, epsilon=1e-4):
    """The recursion of the paper's code, one sample after the other."""
    X, y = features.double().numpy(), labels.numpy()
    d, classes = X.shape[1], int(y.max()) + 1
    means, counts, sigma, t = np.zeros((classes, d)), np.zeros(classes), np.zeros((d, d)), 0
    if base:
        for c in np.unique(y[:base]):
            means[c], counts[c] = X[:base][y[:base] == c].mean(axis=0), (y[:base] == c).sum()
        sigma, t = OAS(assume_centered=True).fit(X[:base] - means[y[:base]]).covariance_, base
    for x, c in zip(X[base:], y[base:], strict=True):
        delta = x - means[c]
        sigma = (t * sigma + t / (t + 1) * np.outer(delta, delta)) / (t + 1)
        means[c] = (counts[c] * means[c] + x) / (counts[c] + 1)
        counts[c] += 1
        t += 1
    inverse = np.linalg.pinv((1 - epsilon) * sigma + epsilon * np.eye(d))
    scores = X @ inverse @ means.T - 0.5 * np.einsum("cd,de,ce->c", means, inverse, means)
    return sigma, means, scores


@pytest.mark.parametrize("kind", ["base", "no base", "classes that come back"])
@pytest.mark.parametrize("block", [1, 2**24])
def test_slda_in_batches_is_the_recursion_sample_by_sample(monkeypatch, kind, block):
    monkeypatch.setattr("acil.bench.methods.frozen_features._BLOCK_BYTES", {"cpu": block})
    features, labels = gaussians(per_class=40)
    all_phases = phases(features, labels, GROUPS)
    if kind == "no base":
        all_phases = [replace(one, index=one.index + 1) for one in all_phases]
    elif kind == "classes that come back":
        all_phases = [phase(features[:100], labels[:100]), phase(features[100:], labels[100:], 1)]
    method = learnt("slda", all_phases)
    X = torch.cat([p.images.features(None) for p in all_phases])
    y = torch.cat([p.labels for p in all_phases])
    base = 0 if kind == "no base" else len(all_phases[0].labels)
    sigma, means, scores = stream(X, y, base)
    np.testing.assert_allclose(method.means.covariance().numpy(), sigma, rtol=0, atol=ROUNDING)
    order = torch.argsort(method.means.labels)
    np.testing.assert_allclose(method.means.means[order].numpy(), means, rtol=0, atol=ROUNDING)
    found = method.scorer()(X.double())[:, order].numpy()
    np.testing.assert_allclose(found, scores, rtol=SOLVED, atol=SOLVED)


def test_slda_depends_on_the_order_and_lda_does_not():
    features, labels = gaussians()
    turned = features.flip(0), labels.flip(0)
    for name, same in (("slda", False), ("lda", True)):
        forward = learnt(name, phases(features, labels, GROUPS)).scorer()(features.double())
        backward = learnt(name, phases(*turned, GROUPS)).scorer()(features.double())
        assert torch.allclose(forward, backward, rtol=1e-6, atol=1e-6) == same


def test_ncm_is_the_cosine_with_the_mean_of_normalised_features():
    features, labels = gaussians()
    method = learnt("ncm", phases(features, labels, GROUPS))
    unit = features.double().numpy()
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    means = np.stack([unit[labels.numpy() == c].mean(axis=0) for c in range(6)])
    cosines = unit @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T
    np.testing.assert_allclose(method.scorer()(features.double()).numpy(), cosines, atol=1e-14, rtol=0)
    assert method._predict(features).tolist() == cosines.argmax(axis=1).tolist()
    assert method._predict(1000 * features).tolist() == cosines.argmax(axis=1).tolist()
