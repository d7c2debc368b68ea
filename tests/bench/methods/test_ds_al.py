"""DS-AL against a plain NumPy reference, and against ACIL."""

import numpy as np
import pytest
import torch

from acil.core.expansion import Expansion
from support.frozen_phases import GROUPS, gaussians, learnt, phase, phases, vectors

GAMMA, WIDTH = 0.5, 24
#: Deviation of U(± 1/√8), from which the authors draw projections of 8 features.
SCALE = 1 / np.sqrt(3 * 8)


def reference(all_phases, queries, compensation=0.6, gamma_second=GAMMA * SCALE**2, n_classes=6):
    """Both streams as the formulas have them: all sums, explicit inverses, plain residuals."""
    projection = Expansion.draw(8, WIDTH, "relu", 0).projection.double().numpy()
    gram = second_gram = np.zeros((WIDTH, WIDTH))
    moment = second_moment = np.zeros((WIDTH, n_classes))
    seen = set()
    for one in all_phases:
        raw = one.images.features(None).double().numpy() @ projection
        X, Z, Y = np.maximum(raw, 0), np.tanh(SCALE * raw), np.eye(n_classes)[one.labels.numpy()]
        gram, moment = gram + X.T @ X, moment + X.T @ Y
        W = np.linalg.inv(gram + GAMMA * np.eye(WIDTH)) @ moment
        left_over = Y - X @ W
        new = [c for c in one.classes if c not in seen]
        left_over[:, [c for c in range(n_classes) if c not in new]] = 0
        seen |= set(one.classes)
        second_gram, second_moment = second_gram + Z.T @ Z, second_moment + Z.T @ left_over
    V = np.linalg.inv(second_gram + gamma_second * np.eye(WIDTH)) @ second_moment
    raw = queries.double().numpy() @ projection
    return np.maximum(raw, 0) @ W + compensation * np.tanh(SCALE * raw) @ V


@pytest.mark.parametrize("order", ["rising", "mixed", "coming back"])
@pytest.mark.parametrize("settings", [{}, {"ds_al_compensation": 1.5, "ds_al_gamma": 3.0}])
def test_scores_are_those_of_the_formulas(settings, order):
    """Also with classes in any order, and with one that comes back, which counts as old."""
    features, labels = gaussians()
    if order == "coming back":
        all_phases = [phase(features[:40], labels[:40]), phase(features[40:], labels[40:], 1)]
    else:
        all_phases = phases(features, labels, GROUPS if order == "rising" else [(4, 5), (2,), (0, 1, 3)])
    queries, _ = gaussians(seed=1)
    model = learnt("ds-al", all_phases, **settings)
    expected = reference(
        all_phases,
        queries,
        settings.get("ds_al_compensation", 0.6),
        settings.get("ds_al_gamma", GAMMA * SCALE**2),
    )
    np.testing.assert_allclose(model.scores(queries.double()).numpy(), expected, rtol=1e-8, atol=1e-8)
    assert model.predict(vectors(queries)).tolist() == expected.argmax(axis=1).tolist()


def test_blocks_of_rows_do_not_matter(monkeypatch):
    features, labels = gaussians(per_class=30)
    all_phases = phases(features, labels, GROUPS)
    whole = learnt("ds-al", all_phases).scores(features.double())
    monkeypatch.setattr("acil.core.expansion._BLOCK_BYTES", {"cpu": 1})
    split = learnt("ds-al", all_phases).scores(features.double())
    torch.testing.assert_close(whole, split, rtol=1e-9, atol=1e-9)


def test_without_compensation_it_is_acil():
    features, labels = gaussians()
    all_phases = phases(features, labels, GROUPS)
    acil = learnt("acil", all_phases).classifier.decision_function(features.double())
    model = learnt("ds-al", all_phases, ds_al_compensation=0.0)
    assert torch.equal(model.scores(features.double()), acil)


@pytest.mark.parametrize("settings", [{"dtype": "mixed"}, {"dtype": "float32"}, {"solver": "recursive"}])
def test_other_precisions_and_solvers_agree(settings):
    features, labels = gaussians()
    all_phases = phases(features, labels, GROUPS)
    expected = learnt("ds-al", all_phases, gamma=10.0).scores(features.double()).double()
    model = learnt("ds-al", all_phases, gamma=10.0, **settings)
    rows = next(model._blocks(features))
    # float32 products, of features of size 10, at a condition number of some hundreds
    torch.testing.assert_close(model.scores(rows).double(), expected, rtol=1e-3, atol=1e-3)


def test_works_without_expansion_and_with_a_gamma_that_selects_itself():
    features, labels = gaussians()
    model = learnt("ds-al", phases(features, labels, GROUPS), expansion_size=None, gamma="auto")
    assert (model.predict(vectors(features)) == labels).double().mean() > 0.8
