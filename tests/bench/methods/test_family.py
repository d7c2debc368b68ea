"""The analytic family against references that are not ours: kernels, weights, draws and maps."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge, RidgeClassifier

from acil.bench.config import make_config
from acil.bench.methods.anacp import spread_targets
from acil.bench.methods.base import Context
from acil.bench.methods.ranpac import RIDGES
from acil.bench.methods.registry import resolve
from acil.bench.prepare import prepare
from acil.bench.training.recipes import recipe
from acil.core.classifier import learnt_of
from acil.core.expansion import Expansion
from acil.errors import InputError
from support.frozen_phases import GROUPS, gaussians, learnt, method, phase, phases, vectors

GAMMA, WIDTH = 0.5, 24
#: Two ways to one solution, at a condition number of about 1e5 in float64.
SAME = 1e-8


def imbalanced(seed=0):
    """Six classes of 30, 20, 12, 8, 5 and 3 samples."""
    features, labels = gaussians(per_class=30, seed=seed, shift=1.0)
    sizes = torch.tensor([30, 20, 12, 8, 5, 3])
    rank = torch.stack([(labels[:i] == labels[i]).sum() for i in range(len(labels))])
    kept = rank < sizes[labels]
    return features[kept], labels[kept]


def expanded(rows, activation="relu"):
    return Expansion.draw(8, WIDTH, activation, 0)(rows.double()).numpy()


@pytest.mark.parametrize("groups", [GROUPS, [(5, 0), (3, 1, 2), (4,)]])
def test_air_is_scikit_learns_ridge_of_balanced_classes(groups):
    features, labels = imbalanced()
    model = learnt("air", phases(features, labels, groups))
    counts = np.bincount(labels)
    first = counts[list(groups[0])].mean()
    # Its weights are N / (C n_k), ours n̄ / n_k.
    alpha = GAMMA * len(labels) / len(counts) / first
    reference = RidgeClassifier(alpha=alpha, class_weight="balanced", fit_intercept=False)
    reference.fit(expanded(features), labels.numpy())
    queries = gaussians(per_class=40, seed=1, shift=1.0)[0]
    found = model.classifier.decision_function(queries.double()).numpy()
    # Targets −1 and 1 there, 0 and 1 here: the same argmax
    expected = reference.decision_function(expanded(queries))
    assert (found.argmax(1) == expected.argmax(1)).all()
    weights = first / counts[labels.numpy()]
    ridge = Ridge(GAMMA, fit_intercept=False).fit(expanded(features), np.eye(6)[labels], weights)
    np.testing.assert_allclose(found, ridge.predict(expanded(queries)), atol=SAME)
    plain = learnt("acil", phases(features, labels, groups)).classifier
    assert not np.allclose(plain.decision_function(queries.double()).numpy(), found, atol=1e-3)


def test_general_air_is_the_pooled_solution_in_any_grouping():
    features, labels = imbalanced()
    X, Y, n = expanded(features), np.eye(6)[labels], np.bincount(labels)
    means, c = (X.T @ Y) / n, 6 / len(X)
    G = c * (X.T @ X - (means * n) @ means.T) + means @ means.T
    expected = np.linalg.solve(G + c * GAMMA * np.eye(WIDTH), means)
    half = torch.arange(len(labels)) % 2 == 0
    again = [phase(features[half], labels[half]), phase(features[~half], labels[~half], 1)]
    for given in (phases(features, labels, GROUPS), again):
        found = learnt("g-air", given).classifier.decision_function(features.double()).numpy()
        scores = X @ expected
        np.testing.assert_array_equal(found.argmax(1), scores.argmax(1))
        scale = (found * scores).sum() / (scores * scores).sum()
        np.testing.assert_allclose(found, scale * scores, atol=SAME * np.abs(found).max())


@pytest.mark.parametrize("name", ["air", "g-air", "aef-ocl"])
def test_classes_of_equal_size_give_acil(name):
    features, labels = gaussians()
    queries = gaussians(seed=1)[0]
    given = phases(features, labels, GROUPS)
    model, acil = learnt(name, given), learnt("acil", given)
    expected = acil.classifier.decision_function(queries.double())
    found = model.classifier.decision_function(queries.double())
    torch.testing.assert_close(found, expected, rtol=0, atol=SAME)
    assert model.predict(vectors(queries)).tolist() == acil.predict(vectors(queries)).tolist()


def test_air_refuses_a_class_that_comes_back_and_stays_as_it_was():
    features, labels = imbalanced()
    base, other, _ = phases(features, labels, GROUPS)
    model = learnt("air", [base, other])
    before = model.predict(vectors(features))
    with pytest.raises(InputError, match=r"\[0, 1, 2\]"):
        model.learn(replace(base, index=2))
    assert torch.equal(model.predict(vectors(features)), before)


def test_gkeal_is_ridge_regression_on_kernels_around_features_of_the_first_phase():
    features, labels = gaussians(per_class=20)
    given = phases(features, labels, GROUPS)
    model = learnt("gkeal", given, gamma=0.01)
    expansion = learnt_of(model.classifier).model.expansion
    centres = expansion.projection.double().numpy().T
    first = given[0].images.features(None).double().numpy()
    assert cdist(centres, first).min(axis=1).max() == 0
    assert len(np.unique(centres, axis=0)) == WIDTH
    width = np.median(cdist(first, first)[np.triu_indices(len(first), 1)])
    kernels = lambda rows: np.exp(-(cdist(rows, centres) ** 2) / (2 * width**2))  # noqa: E731
    reference = Ridge(0.01, fit_intercept=False).fit(
        kernels(features.double().numpy()), np.eye(6)[labels]
    )
    queries = gaussians(seed=1)[0].double()
    found = model.classifier.decision_function(queries).numpy()
    # The width is stored in float32; a κ of about 1e4
    np.testing.assert_allclose(found, reference.predict(kernels(queries.numpy())), atol=1e-3)


def test_gkeal_has_the_published_gamma_whatever_the_recipe_has():
    context = Context(recipe("authors"), 0, torch.device("cpu"), 6, {})
    assert resolve("gkeal")(context).classifier.gamma == 0.1
    assert method("gkeal", gamma="auto").classifier.gamma == "auto"


def test_gkeal_has_no_more_centres_than_samples_at_first():
    features, labels = gaussians(per_class=3)
    model = learnt("gkeal", phases(features, labels, GROUPS))
    assert model.classifier.coef_.shape == (6, 9)
    with pytest.raises(InputError, match="needs centres"):
        method("gkeal", expansion_size=None)


@pytest.mark.parametrize("groups", [GROUPS, "coming back"])
def test_klda_is_scikit_learns_lda_on_the_explicit_map(groups):
    features, labels = gaussians(per_class=30)
    if groups == "coming back":
        given = [phase(features[:90], labels[:90]), phase(features[90:], labels[90:], 1)]
    else:
        given = phases(features, labels, groups)
    model = learnt("klda", given)
    Omega, b = (part.double().numpy() for part in (model.expansion.projection, model.expansion.bias))
    mapped = lambda rows: np.sqrt(2 / WIDTH) * np.cos(rows.double().numpy() @ Omega + b)  # noqa: E731
    assert 0 <= b.min() <= b.max() <= 2 * np.pi
    reference = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=1e-4, priors=np.full(6, 1 / 6))
    reference.fit(mapped(features), labels.numpy())
    queries = gaussians(seed=1)[0]
    expected = reference.predict(mapped(queries))
    assert (model.predict(vectors(queries)).numpy() == expected).all()


def test_aef_ocl_makes_all_classes_as_large_as_the_largest():
    features, labels = imbalanced()
    model = learnt("aef-ocl", phases(features, labels, GROUPS))
    rows, drawn = model.drawn()
    counts = np.bincount(labels)
    assert (np.bincount(drawn, minlength=6) == counts.max() - counts).all()
    # Where they are drawn from: 27 rows of a class of which 3 are known
    own = features[labels == 5].double()
    deviation = own.std(dim=0)
    error = (rows[drawn == 5].mean(dim=0) - own.mean(dim=0)) / (deviation / 27**0.5)
    assert float(error.abs().max()) < 4
    assert 0.5 < float((rows[drawn == 5].std(dim=0) / deviation).median()) < 1.5
    X, Y = np.concatenate([features, rows]), np.eye(6)[np.concatenate([labels, drawn])]
    reference = Ridge(GAMMA, fit_intercept=False).fit(expanded(torch.from_numpy(X)), Y)
    queries = gaussians(per_class=40, seed=1, shift=1.0)[0]
    expected = reference.predict(expanded(queries)).argmax(1)
    for _ in range(2):  # draws are forgotten, and the same again
        assert (model.predict(vectors(queries)).numpy() == expected).all()
    assert model.classifier.n_samples_ == len(features)
    still = learnt("aef-ocl", phases(features, labels, GROUPS), aef_ocl_noise=0.0)
    own_mean = still.drawn()[0][still.drawn()[1] == 5]
    torch.testing.assert_close(own_mean, own.mean(dim=0).expand(27, 8))


@pytest.mark.parametrize("per_class", [40, 8])
def test_ranpac_chooses_gamma_by_a_fifth_of_the_phase(per_class):
    """With more samples than width, and with fewer."""
    features, labels = gaussians(per_class=per_class, shift=1.0)
    model = method("ranpac")
    for one in phases(features, labels, [(0, 1, 2), (3, 4, 5)]):
        model.learn(one)
        n = len(one.labels)
        seed = model.context.seed_for("choice", one.n_seen, n)
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).numpy()
        X, Y = expanded(one.images.features(None)), np.eye(6)[one.labels]
        learnt_from, held_out = order[: int(0.8 * n)], order[int(0.8 * n) :]
        errors = []
        for ridge in RIDGES:
            fitted = Ridge(ridge, fit_intercept=False, solver="svd").fit(X[learnt_from], Y[learnt_from])
            errors.append(np.square(fitted.predict(X[held_out]) - Y[held_out]).sum())
        assert errors[RIDGES.index(model.classifier.gamma_)] <= min(errors) * (1 + 1e-6)
    whole = Ridge(model.classifier.gamma_, fit_intercept=False)
    whole.fit(expanded(features), np.eye(6)[labels])
    found = model.classifier.decision_function(features.double()).numpy()
    np.testing.assert_allclose(found, whole.predict(expanded(features)), atol=1e-6)
    assert method("ranpac").recorded_settings({}) == {"expansion_size": 10_000}


def test_anacp_is_its_formulas_step_by_step():
    features, labels = gaussians(per_class=20)
    model = learnt("anacp", phases(features, labels, [(4, 5), (2,), (0, 1, 3)]))
    x = (features / features.norm(dim=1, keepdim=True)).double().numpy()
    means = np.stack([x[labels == c].mean(0) for c in range(6)])
    S = (x - means[labels]).T @ (x - means[labels]) / len(x)
    S = (1 - 1e-4) * S + 1e-4 * np.trace(S) / 8 * np.eye(8)
    values, vectors_ = np.linalg.eigh(S)
    white = vectors_ @ np.diag(values**-0.5) @ vectors_.T
    U, s, Vh = np.linalg.svd((means - means.mean(0)) @ white, full_matrices=False)
    # Five directions, of six classes; the sixth is empty
    T = U[:, :5] @ np.diag(s[:5] + 1) @ Vh[:5] @ white
    T /= np.linalg.norm(T, axis=1, keepdims=True)
    found = spread_targets(torch.from_numpy(means), torch.from_numpy(S)).numpy()
    np.testing.assert_allclose(found, T, atol=SAME)
    second, targets = model._solved()
    Z = expanded(torch.from_numpy(x), "gelu")
    # Targets enter linearly: the regression onto them is the one onto one-hot labels, times T.
    direct = Ridge(GAMMA, fit_intercept=False).fit(Z, targets.numpy()[labels]).predict(Z)
    direct /= np.linalg.norm(direct, axis=1, keepdims=True)
    outputs = model._outputs(torch.from_numpy(x), targets).numpy()
    np.testing.assert_allclose(outputs, direct, atol=1e-6)
    assert second.class_count_.tolist() == [100] * 6
    assert torch.equal(model.predict(vectors(features)), model.predict(vectors(features)))
    other = learnt("anacp", phases(features, labels, [tuple(range(6))]))
    assert torch.equal(other.predict(vectors(features)), model.predict(vectors(features)))


@pytest.mark.parametrize(("name", "base", "jobs"), [("gkeal", 4, 1), ("gkeal", 0, 2), ("g-air", 0, 1)])
def test_one_run_serves_all_groupings_that_begin_alike(name, base, jobs, embeddings, tmp_path):
    values = {"dataset": f"features:{embeddings}", "methods": name, "phases": "2,4", "base": base}
    prepared = prepare(make_config({**values, "seeds": "0"}), tmp_path)
    assert len(prepared.plan()) == jobs
