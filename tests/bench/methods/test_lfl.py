"""LFL: frozen class weights and held features."""

import dataclasses

import pytest
import torch
from torch.nn import functional

from acil.bench.methods import resolve
from acil.bench.methods.base_network import network_features
from acil.bench.methods.lfl import LFL, HeldFeatures
from support.replay_problem import TRAINING, learnt, make_context, make_phases
from support.small_training import CPU, batch, make_network


def test_loss_is_cross_entropy_over_all_classes_and_half_the_squared_distance():
    student, teacher = make_network(2), make_network(3, seed=1)
    x, y, indices = batch(6, 2)
    loss, scores = HeldFeatures(teacher, 0.1)(student, x, y, indices)
    features, before = student.features(x), teacher.features(x)
    everything = torch.cat([teacher.classifier(features), student.classifier(features)], 1)
    distances = [0.5 * (a - b).dot(a - b).item() for a, b in zip(features, before, strict=True)]
    expected = functional.cross_entropy(everything, y + 3) + 0.1 * sum(distances) / 6
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    assert scores.shape == (6, 2)


def test_new_class_weights_are_those_of_the_training(monkeypatch):
    phases = make_phases((3, 2))
    method = learnt("lfl", phases[:1])
    fit = lambda self, network, *_: network.classifier.weight.detach().fill_(7.0)  # noqa: E731
    monkeypatch.setattr(LFL, "fit", fit)
    method.learn(phases[1])
    assert (method.network.classifier.weight == 7.0).all(1).tolist() == [False] * 3 + [True] * 2


def test_distance_holds_features():
    phases, drift = make_phases((3, 2)), []
    longer = dataclasses.replace(TRAINING, epochs=8)
    for weight in (0.0, 1.0):
        method = resolve("lfl")(make_context(training=longer, settings={"lfl_distance": weight}))
        method.learn(phases[0])
        before = network_features(method.network.backbone, phases[1].images, CPU)
        method.learn(phases[1])
        after = network_features(method.network.backbone, phases[1].images, CPU)
        drift.append(float((after - before).square().mean()))
    assert drift[1] < 0.3 * drift[0]
