"""PODNet: classifier by proxies, its loss, pooled distances, imprinting, the balanced stage."""

import dataclasses
import math

import pytest
import torch
from torch.nn import functional

from acil.bench.methods import podnet
from acil.bench.methods.base_network import network_features
from acil.bench.methods.incremental import increment_training
from acil.bench.methods.podnet import (
    PooledOutputs,
    ProxyClassifier,
    imprinted_proxies,
    neighbourhood_loss,
    pooled_distance,
)
from acil.bench.training.network import FeatureNetwork
from acil.bench.training.recipes import RECIPES
from acil.encoders.images.backbones import build
from support.replay_problem import learnt, make_phases, paper_context
from support.small_training import CPU, batch


def test_similarity_is_the_one_computed_by_hand():
    head = ProxyClassifier(torch.tensor([[[1.0, 0.0], [0.0, 3.0]], [[-2.0, 0.0], [-1.0, 0.0]]]))
    head.eta.data.fill_(3.0)
    # f = (2, 0) at length 1 is at squared distances 0 and 2 from class 0, 4 and 4 from class 1.
    weight = 1 / (1 + math.exp(-2))
    expected = [(1 - weight) * -2.0, -4.0]
    features = torch.tensor([[2.0, 0.0]])
    assert head.similarities(features)[0].tolist() == pytest.approx(expected, abs=1e-6)
    assert head(features)[0].tolist() == pytest.approx([3 * s for s in expected], abs=1e-6)


def test_loss_is_the_one_computed_by_hand():
    scores = torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]])
    # Label 0 is the largest: the cross entropy. Label 2 is not: 1 stands for itself, z = (0, −1, −2).
    right = math.log(1 + math.exp(-1) + math.exp(-2))
    wrong = math.log(1 + 1 + math.exp(-1)) + 2
    assert neighbourhood_loss(scores[:1], torch.tensor([0])).item() == pytest.approx(right)
    assert neighbourhood_loss(scores, torch.tensor([0, 2])).item() == pytest.approx((right + wrong) / 2)
    ce = functional.cross_entropy(scores[:1], torch.tensor([0]))
    assert right == pytest.approx(ce.item())
    # A margin on every score changes nothing.
    moved = neighbourhood_loss(scores - 0.6, torch.tensor([0, 2]))
    assert moved.item() == pytest.approx((right + wrong) / 2)


def test_pooled_distance_on_known_maps():
    a = torch.tensor([[[[3.0, 0.0], [0.0, 0.0]]]])
    b = torch.tensor([[[[0.0, 0.0], [0.0, 2.0]]]])
    c = torch.tensor([[[[0.0, 5.0], [0.0, 0.0]]]])
    # Rows and columns of a: (9, 0, 9, 0); of b: (0, 4, 0, 4); of c: (25, 0, 0, 25).
    assert pooled_distance([a], [b]).item() == pytest.approx(math.sqrt(2))
    assert pooled_distance([a], [c]).item() == pytest.approx(1.0)
    # A mean over maps, and over images
    assert pooled_distance([a, a], [b, c]).item() == pytest.approx((math.sqrt(2) + 1) / 2)
    both = torch.cat([a, a]), torch.cat([b, c])
    assert pooled_distance([both[0]], [both[1]]).item() == pytest.approx((math.sqrt(2) + 1) / 2)
    # One length for all channels: of (1, 1, 4, 4) and (4, 4, 1, 1), beside zeros, √34.
    weights = torch.tensor([1.0, 2.0]).reshape(1, 2, 1, 1) / 3
    found = pooled_distance([a * weights], [a * weights.flip(1)])
    assert found.item() == pytest.approx(6 / math.sqrt(34))
    # The sign and the size of a map do not matter, and equal maps have a finite gradient.
    same = (-2 * a).requires_grad_()
    distance = pooled_distance([same], [a])
    distance.backward()
    assert distance.item() == 0.0
    assert torch.isfinite(same.grad).all()


def test_objective_is_the_sum_of_its_parts():
    generator = torch.Generator().manual_seed(0)
    drawn = ProxyClassifier.drawn((5, 4, 64), generator).weight
    network = FeatureNetwork(build("smallcnn", generator), ProxyClassifier(drawn, 3)).eval()
    teacher = build("smallcnn", torch.Generator().manual_seed(1)).eval()
    x, y, indices = batch(10, 5)
    loss, scores = PooledOutputs(teacher, 7.0, 2.0, 5.0)(network, x, y, indices)
    torch.testing.assert_close(scores, network(x))
    directions = functional.cosine_similarity(network.features(x), teacher(x)).mean()
    expected = (
        neighbourhood_loss(scores, y)
        + 7 * pooled_distance(network.backbone.maps(x), teacher.maps(x))
        + 2 * (1 - directions)
    )
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    loss.backward()
    assert network.classifier.old.grad is None
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_proxies_are_centres_of_the_class_at_the_mean_length():
    generator = torch.Generator().manual_seed(0)
    directions = functional.normalize(torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0], [1.0, 1, 0]]))
    noise = 0.01 * torch.randn(80, 3, generator=generator)
    features = 5 * (directions.repeat(20, 1) + noise)
    labels = torch.tensor([7, 7, 8, 8]).repeat(20)
    old = torch.tensor([[[3.0, 0, 0], [0, 5.0, 0]]])
    found = imprinted_proxies(features, labels, [7, 8], old, seed=0)
    assert found.shape == (2, 2, 3)
    for proxies, wanted in zip(found, (directions[:2], directions[2:]), strict=True):
        nearest = (functional.normalize(proxies, dim=1) @ wanted.T).argmax(1)
        assert sorted(nearest.tolist()) == [0, 1]
        torch.testing.assert_close(proxies, 4 * wanted[nearest], atol=0.05, rtol=0)


def test_class_of_few_images_repeats_its_centres():
    old = torch.ones(1, 10, 3)
    rows = torch.eye(3)[:2]
    found = imprinted_proxies(rows, torch.tensor([1, 1]), [1], old, seed=0)
    assert found.shape == (1, 10, 3)
    assert len(found[0].unique(dim=0)) == 2


def test_training_starts_from_imprinted_proxies(monkeypatch, fits):
    phases = make_phases((3, 2))
    method = learnt("podnet", phases[:1], podnet_balanced_epochs=0)
    seeds = []

    def collect(*arguments):
        seeds.append(arguments[-1])
        return imprinted_proxies(*arguments)

    monkeypatch.setattr(podnet, "imprinted_proxies", collect)
    features = network_features(method.network.backbone, phases[1].images, CPU)
    old = method.network.classifier.weight
    method.learn(phases[1])
    expected = imprinted_proxies(features, phases[1].labels, [3, 4], old, seeds[0])
    assert torch.equal(fits[0][0].classifier.new, expected)


def test_old_proxies_do_not_move_in_the_main_stage():
    phases = make_phases((3, 2))
    before, after = (
        learnt("podnet", phases[:n], podnet_balanced_epochs=0).network.classifier for n in (1, 2)
    )
    assert torch.equal(after.weight[:3], before.weight)
    assert not torch.equal(after.eta, before.eta)


def test_all_proxies_and_nothing_else_move_in_the_balanced_stage():
    phases = make_phases((3, 2))
    main, both = (learnt("podnet", phases, podnet_balanced_epochs=n) for n in (0, 2))
    first, second = (method.network.classifier for method in (main, both))
    moved = (second.weight - first.weight).abs().amax(dim=(1, 2))
    assert bool((moved > 0).all())
    assert torch.equal(first.eta, second.eta)
    for name, value in main.network.backbone.named_parameters():
        assert torch.equal(value, both.network.backbone.get_parameter(name)), name
    # Statistics of normalisation follow the exemplars.
    assert not torch.equal(*(one.network.backbone.stage1[1].running_mean for one in (main, both)))
    assert all(parameter.requires_grad for parameter in both.network.backbone.parameters())
    assert second.eta.requires_grad


def test_settings_of_the_authors():
    context = paper_context()
    found = increment_training(context, podnet.PODNet.schedules)
    assert (found.epochs, found.schedule, found.learning_rate) == (160, "cosine", 0.1)
    assert (found.weight_decay, found.augment) == (5e-4, ("crop", "flip", "jitter"))
    method = podnet.PODNet(dataclasses.replace(context, settings={"increment.epochs": 3}))
    assert (method.own_base_inputs, method.training.epochs) == (160, 3)
    assert (method._weights(), method.settings.proxies) == ((3.0, 1.0, 0.05), 10)
    method = podnet.PODNet(dataclasses.replace(context, recipe=RECIPES["imagenet"]))
    found = method.training
    assert method._weights() == (8.0, 10.0, 0.01)
    assert (found.epochs, found.schedule, found.batch_size) == (90, "cosine", 64)
    assert (found.learning_rate, found.weight_decay) == (0.05, 5e-4)


def test_resnet_of_podnet_has_plain_sums_and_four_stages():
    network = build("resnet32", option="A", last_relu=False, plain_sums=True).eval()
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    maps = network.maps(x)
    shapes = [(16, 32, 32), (32, 16, 16), (64, 8, 8), (64, 8, 8)]
    assert [tuple(m.shape[1:]) for m in maps] == shapes
    torch.testing.assert_close(maps[-1].mean((2, 3)), network(x))
    # Blocks start as their shortcuts: every second pixel of the stem, and zeros around its channels.
    torch.testing.assert_close(maps[1][:, 8:24], network.stem(x)[:, :, ::2, ::2])
    torch.testing.assert_close(maps[2], maps[3])
    with torch.no_grad():
        network.stage1[0].bn2.bias.fill_(-10.0)
    assert bool((network.maps(x)[0] < 0).any())
    assert len(build("resnet32").maps(x)) == 3
    assert "plain_sums" not in build("resnet32").options
