"""Features of a frozen network: one scale for all phases, and the share of each process."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from acil.bench.config import make_config
from acil.bench.methods import Context, Phase, resolve
from acil.bench.methods.acil import ACIL
from acil.bench.methods.frozen_features import Standardize, own_rows
from acil.bench.records import Records
from acil.bench.runner import run
from acil.bench.training.recipes import recipe
from acil.encoders.images.backbones import build, save_backbone
from acil.encoders.images.cache import FeatureCache
from acil.encoders.images.extract import FeatureExtractor, FeatureSettings
from acil.encoders.images.imageset import ImageSet
from acil.errors import InputError


def test_base_features_are_centred_with_equal_deviations_and_the_same_mean_squared_length():
    features = torch.randn(400, 6, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 7) + 3
    found = Standardize.fitted(features)(features).double()
    assert found.mean(dim=0).abs().max() < 1e-5
    deviations = found.std(dim=0, correction=0)
    torch.testing.assert_close(deviations, deviations.mean().expand(6), rtol=1e-5, atol=0)
    lengths = [values.double().square().sum(dim=1).mean() for values in (features, found)]
    torch.testing.assert_close(*lengths, rtol=1e-5, atol=0)


def test_dimensions_that_never_move_are_left_out():
    features = torch.rand(50, 3, generator=torch.Generator().manual_seed(0))
    features[:, 1] = 2.0
    standard = Standardize.fitted(features)
    assert standard(torch.tensor([[0.0, 1e6, 0.0]]))[0, 1] == 0
    assert torch.isfinite(Standardize.fitted(torch.zeros(4, 2))(torch.ones(1, 2))).all()


def summaries(folder):
    found = [r for r in Records(folder / "records.jsonl").read() if r["kind"] == "summary"]
    return {record["phases"]: record for record in found}


def small(**changes):
    values = {"dataset": "digits", "seeds": "0", "phases": "1,5", "expansion_size": 200}
    changes = {"recipe.training.epochs": "2", "recipe.features.standardize": "true", **changes}
    return make_config({**values, **changes})


def test_run_is_the_same_for_every_grouping_and_equals_joint_learning(tmp_path):
    found = summaries(run(small(), tmp_path / "run"))
    assert found[1]["last_accuracy"] == found[5]["last_accuracy"]
    assert found[1]["forgetting"] == found[5]["forgetting"]
    assert found[5]["joint_difference"] < 1e-9


def test_without_a_base_phase_it_is_refused(tmp_path):
    backbone = tmp_path / "network.safetensors"
    save_backbone(build("smallcnn"), backbone, {})
    with pytest.raises(InputError, match="standardize=false"):
        run(small(base=0, backbone=str(backbone), phases="5"), tmp_path / "run")


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (23, 1, 8, 8), generator=generator, dtype=torch.uint8)
    return ImageSet(pixels)


def test_a_share_is_extracted_once_and_has_the_features_of_the_whole(images, monkeypatch):
    seen, extract = [], FeatureExtractor._extract

    def counting(self, own, views):
        seen.append(len(own))
        return extract(self, own, views)

    monkeypatch.setattr(FeatureExtractor, "_extract", counting)
    backbone = build("smallcnn", torch.Generator().manual_seed(0)).eval()
    whole = FeatureExtractor(backbone, cache=FeatureCache(None)).features(images)
    for rank in range(3):
        seen.clear()
        group = SimpleNamespace(rank=rank, size=3)
        extractor = FeatureExtractor(backbone, cache=FeatureCache(None), share=(rank, 3))
        for part in (images, images.subset(torch.tensor([7, 5, 0, 22, 1, 2]))):
            rows = own_rows(part, group)
            places = rows if part.indices is None else part.indices[rows]
            found = extractor.features(part.subset(rows))
            assert torch.equal(found, whole[places])
        assert seen == [len(own_rows(images, group))]


def test_images_of_another_share_are_refused(images):
    backbone = build("smallcnn", torch.Generator().manual_seed(0))
    extractor = FeatureExtractor(backbone, cache=FeatureCache(None), share=(1, 2))
    with pytest.raises(InputError, match="share"):
        extractor.features(images.subset(torch.tensor([1, 2])))


def test_views_are_rows_of_training_and_an_image_is_classified_as_it_is(images):
    settings = FeatureSettings(mirror=True, rows=True, standardize=True)
    chosen = dataclasses.replace(recipe("digits"), features=settings, expansion_size=None, gamma=0.5)
    backbone = build("smallcnn", torch.Generator().manual_seed(0))
    labels = torch.arange(len(images)) % 3
    method = ACIL(Context(chosen, 0, torch.device("cpu"), 3, backbone=backbone))
    method.learn(Phase(0, (0, 1, 2), images, labels, 0))
    plain, mirrored = FeatureExtractor(backbone, settings).training_rows(images)
    standardize = Standardize.fitted(plain)
    X = torch.cat([standardize(plain), standardize(mirrored)])
    expected = Ridge(alpha=0.5, fit_intercept=False).fit(X.double(), np.eye(3)[labels.repeat(2)])
    scores = expected.predict(standardize(plain).double())
    np.testing.assert_allclose(method.classifier.coef_, expected.coef_, rtol=1e-6, atol=1e-9)
    assert method.predict(images).tolist() == scores.argmax(1).tolist()
    assert resolve("acil").compare_with_joint(method, images, labels, images)["joint_difference"] < 1e-9
