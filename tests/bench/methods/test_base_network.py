"""The shared base network with its classifier, and base networks of a method's own."""

import logging

import pytest
import torch

from acil.bench.methods.base_network import (
    base_backbone,
    base_network,
    own_base_network,
    stored_classifier,
    write_weights,
)
from acil.bench.methods.lucir import CosineClassifier
from acil.encoders.images.backbones import build
from acil.errors import InputError
from support.replay_problem import make_context, make_phases
from support.small_training import same_state


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
    options, training = {"last_relu": False}, context.recipe.training
    draw = lambda width, generator: CosineClassifier.drawn((3, width), generator)  # noqa: E731
    return own_base_network(context, phase, name, draw, options, training)


def test_own_base_is_trained_once_for_each_method(tmp_path, monkeypatch):
    (phase, *_) = make_phases()
    first = own(make_context(tmp_path), phase)
    assert same_state(first, own(make_context(), phase))
    other = own(make_context(tmp_path), phase, name="other")
    assert same_state(first, other)
    assert len(list(tmp_path.glob("*/network.safetensors"))) == 2
    assert not list(tmp_path.glob("*/training.safetensors"))
    monkeypatch.setattr("acil.bench.methods.base_network.train", None)
    assert same_state(own(make_context(tmp_path), phase), first)
