"""The shared base network with its classifier, and base networks of a method's own."""

import logging

import pytest
import torch
from replay_problem import TwoPixels, make_context, make_phases, upper_rows
from torch import nn

from acil.errors import InputError
from acil.methods.base_network import (
    base_backbone,
    base_network,
    own_base_network,
    read_weights,
    stored_classifier,
    write_weights,
)
from acil.methods.linear_probe import classifier_scores, network_features
from acil.methods.lucir import CosineClassifier
from acil.training.network import FeatureNetwork
from acil.vision.backbones import build
from small_training import same_state

CPU = torch.device("cpu")


def test_stored_network_is_the_trained_one_with_its_classifier(tmp_path):
    (phase, *_) = make_phases()
    trained = base_network(make_context(), phase)
    stored = base_network(make_context(tmp_path), phase)
    again = base_network(make_context(tmp_path), phase)
    assert same_state(trained, stored)
    assert same_state(stored, again)
    files = {path.name for path in tmp_path.glob("*.safetensors")}
    assert files == {"backbone.safetensors", "classifier.safetensors"}
    assert same_state(base_backbone(make_context(tmp_path), phase), stored.backbone)
    predictions = stored(torch.zeros(1, 1, 8, 8))
    assert predictions.shape == (1, 3)
    assert not stored.training


@pytest.mark.parametrize("damage", ["missing", "cut", "foreign"])
def test_network_without_a_usable_classifier_gets_one_on_frozen_features(tmp_path, caplog, damage):
    (phase, *_) = make_phases(per_class=40)
    trained = base_network(make_context(tmp_path), phase)
    path = tmp_path / "classifier.safetensors"
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-8])
    else:
        write_weights(path, trained.classifier.state_dict(), "another network")
    with caplog.at_level(logging.INFO, "acil"):
        fitted = base_network(make_context(tmp_path), phase)
    assert "fitted on its features" in caplog.text
    assert same_state(fitted.backbone, trained.backbone)
    assert not same_state(fitted.classifier, trained.classifier)


def test_given_network_is_copied_and_only_its_classifier_is_fitted():
    (phase, *_) = make_phases()
    given = build("smallcnn", torch.Generator().manual_seed(5)).eval()
    context = make_context(backbone=given)
    network = base_network(context, phase)
    assert same_state(network.backbone, given)
    assert network.backbone is not given
    assert base_backbone(context, phase) is given
    fitted = own(context, phase)
    assert same_state(fitted.backbone, given)
    assert fitted.backbone is not given


def test_given_network_takes_its_classifier_along_if_it_fits(tmp_path):
    (phase, *_) = make_phases()
    trained = base_network(make_context(tmp_path), phase)
    weights = stored_classifier(tmp_path / "backbone.safetensors", trained.backbone)
    given = make_context(backbone=trained.backbone, classifier=weights)
    assert same_state(base_network(given, phase), trained)
    (other, *_) = make_phases((2, 1))
    fitted = base_network(given, other)
    assert fitted.n_classes == 2
    assert same_state(fitted.backbone, trained.backbone)
    another = build("smallcnn", torch.Generator().manual_seed(7))
    assert stored_classifier(tmp_path / "backbone.safetensors", another) is None


def test_first_increment_cannot_train_a_base_network():
    (phase, *_) = make_phases(first_index=1)
    for make in (base_network, base_backbone, own):
        with pytest.raises(InputError, match="--backbone"):
            make(make_context(), phase)


def own(context, phase, name="own"):
    def make(backbone, generator):
        return FeatureNetwork(backbone, CosineClassifier.drawn(64, 3, generator))

    return own_base_network(context, phase, name, make, {"last_relu": False}, context.recipe.training)


def test_own_base_is_trained_once_for_each_method(tmp_path, monkeypatch):
    (phase, *_) = make_phases()
    first = own(make_context(tmp_path), phase)
    assert same_state(first, own(make_context(), phase))
    other = own(make_context(tmp_path), phase, name="other")
    assert same_state(first, other)
    assert len(list(tmp_path.glob("*/network.safetensors"))) == 2
    assert not list(tmp_path.glob("*/training.safetensors"))
    monkeypatch.setattr("acil.methods.base_network.train", None)
    assert same_state(own(make_context(tmp_path), phase), first)


def test_weights_are_returned_only_to_their_owner(tmp_path, caplog):
    path = tmp_path / "folder" / "weights.safetensors"
    assert read_weights(path, "me") is None
    write_weights(path, {"w": torch.arange(3.0)}, "me")
    assert read_weights(path, "me")["w"].tolist() == [0.0, 1.0, 2.0]
    assert read_weights(path, "you") is None
    assert "another network" in caplog.text


def test_network_features_are_those_of_the_present_weights():
    class Scaled(TwoPixels):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return self.scale * x[:, 0, 0]

    backbone = Scaled()
    first = network_features(backbone, upper_rows((5, 0)), CPU)
    with torch.no_grad():
        backbone.scale.fill_(2.0)
    second = network_features(backbone, upper_rows((5, 0)), CPU)
    assert second.tolist() == (2 * first).tolist() == [[2.0, 0.0]]


def test_scores_leave_the_mode_of_the_classifier_alone():
    classifier = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5)).train()
    features = torch.rand(4, 2)
    scores = classifier_scores(classifier, features, CPU)
    torch.testing.assert_close(scores, classifier[0](features).detach())
    assert classifier[1].training
    assert not scores.requires_grad
