"""Standardized features: the base phase's scale, the same for every phase and grouping."""

import pytest
import torch

from acil.benchmark.config import make_config
from acil.benchmark.records import Records
from acil.benchmark.runner import run
from acil.errors import InputError
from acil.methods.frozen_features import Standardize
from acil.vision.backbones import build, save_backbone


def test_base_features_are_centred_with_equal_deviations_and_the_same_mean_squared_length():
    features = torch.randn(400, 6, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 7) + 3
    found = Standardize(features)(features).double()
    assert found.mean(dim=0).abs().max() < 1e-5
    deviations = found.std(dim=0, correction=0)
    torch.testing.assert_close(deviations, deviations.mean().expand(6), rtol=1e-5, atol=0)
    lengths = [values.double().square().sum(dim=1).mean() for values in (features, found)]
    torch.testing.assert_close(*lengths, rtol=1e-5, atol=0)


def test_dimensions_that_never_move_are_left_out():
    features = torch.rand(50, 3, generator=torch.Generator().manual_seed(0))
    features[:, 1] = 2.0
    standard = Standardize(features)
    assert standard(torch.tensor([[0.0, 1e6, 0.0]]))[0, 1] == 0
    assert torch.isfinite(Standardize(torch.zeros(4, 2))(torch.ones(1, 2))).all()


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
