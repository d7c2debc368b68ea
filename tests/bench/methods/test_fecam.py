"""FeCAM against a plain NumPy reference, and at its edges."""

import numpy as np
import pytest
import torch

from acil.bench.methods.fecam import _lengths
from acil.errors import InputError, SingularMatrixError
from support.frozen_phases import GROUPS, gaussians, learnt, phase, phases, vectors
from support.small_training import same_state


def reference(features, labels, queries, tukey=0.5, gamma1=1.0, gamma2=1.0, unit=False):
    """Distances as the formulas have them, with an explicit inverse."""
    X, Q, y = features.double().numpy() ** tukey, queries.double().numpy() ** tukey, labels.numpy()
    d, columns = X.shape[1], []
    for c in np.unique(y):
        rows = X[y == c]
        mean, sigma = rows.mean(axis=0), np.cov(rows.T)
        on, beside = np.diag(sigma).mean(), sigma[~np.eye(d, dtype=bool)].mean()
        sigma = sigma + gamma1 * on * np.eye(d) + gamma2 * beside * (1 - np.eye(d))
        deviation = np.sqrt(np.diag(sigma))
        inverse = np.linalg.inv(sigma / np.outer(deviation, deviation))
        points, centre = Q, mean
        if unit:
            points = Q / np.linalg.norm(Q, axis=1, keepdims=True)
            centre = mean / np.linalg.norm(mean)
        columns.append(np.einsum("nd,de,ne->n", points - centre, inverse, points - centre))
    return np.stack(columns, axis=1)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"fecam_tukey": 1.0},
        {"fecam_tukey": 0.3, "fecam_gamma1": 0.5, "fecam_gamma2": 0.1},
        {"fecam_unit_length": True},
    ],
)
def test_distances_and_predictions_are_those_of_the_formulas(settings):
    features, labels = gaussians()
    queries, _ = gaussians(seed=1)
    values = {name.removeprefix("fecam_"): value for name, value in settings.items()}
    values["unit"] = values.pop("unit_length", False)
    expected = reference(features, labels, queries, **values)
    coming_back = [phase(features[:30], labels[:30]), phase(features[30:], labels[30:], 1)]
    for all_phases in (phases(features, labels, GROUPS), coming_back):
        model = learnt("fecam", all_phases, **settings)
        rows = model._transformed(queries.double())
        np.testing.assert_allclose(_lengths(rows, *model._whitening(0, 6)), expected, rtol=1e-9)
        assert model.predict(vectors(queries)).tolist() == expected.argmin(axis=1).tolist()


def test_classes_in_small_batches_give_the_same_predictions(monkeypatch):
    features, labels = gaussians()
    queries, _ = gaussians(seed=1, per_class=20)
    model = learnt("fecam", phases(features, labels, GROUPS))
    together = model.predict(vectors(queries))
    # One class and 16 rows at a time, two classes at a time
    for budget in (1, 2 * 8 * 8 * 8):
        monkeypatch.setattr("acil.bench.methods.fecam._BATCH_BYTES", {"cpu": budget})
        assert torch.equal(model.predict(vectors(queries)), together)


def test_negative_features_are_refused_and_change_nothing():
    features, labels = gaussians()
    model = learnt("fecam", phases(features, labels, GROUPS))
    untouched = learnt("fecam", phases(features, labels, GROUPS))
    shifted = features - 5
    with pytest.raises(InputError, match=r"last ReLU.*fecam_tukey=1"):
        model.learn(phase(shifted, labels, 3))
    assert same_state(model, untouched)
    with pytest.raises(InputError, match="negative"):
        model.predict(vectors(shifted))
    plain = learnt("fecam", [phase(shifted, labels)], fecam_tukey=1.0)
    assert (plain.predict(vectors(shifted)) == labels).double().mean() > 0.9


def test_without_shrinkage_few_samples_are_a_clear_error():
    features, labels = gaussians(per_class=4)
    model = learnt("fecam", [phase(features, labels)], fecam_gamma1=0, fecam_gamma2=0)
    with pytest.raises(SingularMatrixError, match="fecam_gamma1"):
        model.predict(vectors(features))


def test_feature_without_variance_does_no_harm():
    features, labels = gaussians()
    features = torch.cat([features, torch.zeros(len(features), 1)], dim=1)
    model = learnt("fecam", [phase(features, labels)])
    assert (model.predict(vectors(features)) == labels).double().mean() > 0.9
    bare = learnt("fecam", [phase(features, labels)], fecam_gamma1=0, fecam_gamma2=0)
    assert torch.isfinite(bare.correlations(0, 6)).all()
