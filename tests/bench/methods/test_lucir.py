"""LUCIR: margin, frozen and imprinted weights, strength of the distillation."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from acil.bench.methods.base_network import network_features
from acil.bench.methods.lucir import CosineClassifier, Rebalancing, imprinted, margin_ranking
from acil.bench.training.network import FeatureNetwork
from acil.encoders.images.backbones import build
from support.replay_problem import learnt, make_context, make_phases
from support.small_training import CPU, batch, same_state


def cosine_network(n_old=0, n_new=3):
    generator = torch.Generator().manual_seed(0)
    drawn = CosineClassifier.drawn((n_old + n_new, 64), generator).weight
    return FeatureNetwork(build("smallcnn", generator), CosineClassifier(drawn, n_old))


def test_margin_is_the_one_computed_by_hand():
    cosines = torch.tensor(
        [
            [0.9, 0.1, 0.2, 0.6, 0.5],  # old, label 0: 0.5 − 0.9 + (0.6, 0.5) → 0.2, 0.1
            [0.8, 0.2, 0.9, 0.1, 0.7],  # old, label 1: 0.5 − 0.2 + (0.9, 0.7) → 1.2, 1.0
            [0.0, 0.0, 0.9, 0.9, 0.9],  # new: does not count
        ]
    )
    y = torch.tensor([0, 1, 3])
    found = margin_ranking(cosines, y, n_old=2, margin=0.5, candidates=2)
    assert found.item() == pytest.approx((0.2 + 0.1 + 1.2 + 1.0) / 4)
    # One candidate, the nearest; and no image of an old class.
    found = margin_ranking(cosines[:2], y[:2], n_old=2, margin=0.5, candidates=1)
    assert found.item() == pytest.approx((0.2 + 1.2) / 2)
    assert margin_ranking(cosines[2:], y[2:], n_old=2, margin=0.5, candidates=2).item() == 0.0


def test_loss_is_the_sum_of_its_three_parts():
    network = cosine_network(n_old=3, n_new=2).eval()
    network.classifier.eta.data.fill_(4.0)
    teacher = build("smallcnn", torch.Generator().manual_seed(1)).eval()
    x, y, indices = batch(10, 5)
    objective = Rebalancing(teacher, 3, distillation=7.0, margin=0.5, candidates=2, ranking=1.5)
    loss, scores = objective(network, x, y, indices)
    torch.testing.assert_close(scores, network(x))
    features, before = network.features(x), teacher(x)
    directions = (functional.normalize(features) * functional.normalize(before)).sum(1)
    cosines = network.classifier.similarities(features)
    expected = (
        functional.cross_entropy(scores, y)
        + 7 * (1 - directions.mean())
        + 1.5 * margin_ranking(cosines, y, 3, 0.5, 2)
    )
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    loss.backward()
    assert network.classifier.old.grad is None
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_training_starts_from_imprinted_weights(fits):
    phases = make_phases((3, 2))
    method = learnt("lucir", phases[:1])
    old = copy.deepcopy(method.network)
    method.learn(phases[1])
    features = network_features(old.backbone, phases[1].images, CPU)
    expected = imprinted(features, phases[1].labels, old.classifier.weight)
    torch.testing.assert_close(fits[0][0].classifier.new.detach(), expected)


@pytest.mark.parametrize(("recipe", "strength"), [("test", 5.0), ("imagenet", 10.0)])
def test_strength_of_the_distillation_is_the_authors(recipe, strength, fits):
    context = make_context()
    context = replace(context, recipe=replace(context.recipe, name=recipe))
    learnt("lucir", make_phases((3, 3)), context)
    assert fits[0][2].distillation == strength


def test_balanced_fine_tuning_moves_old_weights_and_not_the_backbone():
    phases = make_phases((3, 2))
    plain, tuned = (learnt("lucir", phases, lucir_balanced_epochs=epochs) for epochs in (0, 2))
    assert tuned.network.n_classes == 5
    assert bool((tuned.network.classifier.weight != plain.network.classifier.weight).any(1).all())
    assert same_state(tuned.network.backbone, plain.network.backbone)


def test_cosines_keep_float32_under_autocast():
    head = CosineClassifier.drawn((3, 8), torch.Generator().manual_seed(0))
    features = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", torch.bfloat16):
        found = head(features)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, head(features), rtol=0, atol=0)


def test_growing_keeps_old_scores_and_eta():
    network, x = cosine_network().eval(), batch()[0]
    network.classifier.eta.data.fill_(4.0)
    before = network(x)
    network.classifier = network.classifier.grown(torch.ones(2, 64))
    assert network.n_classes == 5
    # A product of another shape may sum in another order.
    torch.testing.assert_close(network(x)[:, :3], before)
    assert not network.classifier.old.requires_grad
    grown = network.classifier.grown(torch.ones(1, 64))
    assert (len(grown.old), len(grown.new)) == (5, 1)
    assert (len(grown.thawed().old), len(grown.thawed().new)) == (0, 6)
    assert grown.thawed().eta.item() == 4.0


def test_imprinted_weights_are_mean_directions_at_the_mean_length_of_old_ones():
    features = torch.tensor([[5.0, 0.0], [0.0, 0.1], [0.0, -2.0]])
    old = torch.tensor([[3.0, 4.0], [0.0, 1.0]])  # lengths 5 and 1
    found = imprinted(features, torch.tensor([7, 7, 4]), old)
    expected = 3 * torch.tensor([[0.0, -1.0], [0.5**0.5, 0.5**0.5]])
    torch.testing.assert_close(found, expected)
