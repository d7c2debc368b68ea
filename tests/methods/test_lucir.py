"""LUCIR: margin, frozen and imprinted weights, strength of the distillation."""

import copy
import math

import pytest
import torch
from replay_problem import make_context, make_phases
from torch.nn import functional

from acil.errors import InputError
from acil.methods import lucir
from acil.methods.linear_probe import network_features
from acil.methods.lucir import CosineNetwork, LUCIRSettings, Rebalancing, imprinted, margin_ranking
from acil.vision.backbones import build

CPU = torch.device("cpu")


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


def test_margin_with_one_new_class():
    cosines = torch.tensor([[0.9, 0.1, 0.2], [0.8, 0.2, 0.9]])
    found = margin_ranking(cosines, torch.tensor([0, 1]), n_old=2, margin=0.5, candidates=1)
    assert found.item() == pytest.approx((0.0 + 1.2) / 2)


def test_margin_without_old_classes_in_the_batch_is_zero():
    found = margin_ranking(torch.rand(3, 4), torch.tensor([2, 3, 2]), 2, 0.5, 2)
    assert found.item() == 0.0


def test_loss_is_the_sum_of_its_three_parts():
    generator = torch.Generator().manual_seed(0)
    network = CosineNetwork(build("smallcnn", generator), 3, 2, generator).eval()
    teacher = build("smallcnn", torch.Generator().manual_seed(1)).eval()
    x, y = torch.randn(10, 1, 8, 8, generator=generator), torch.arange(10) % 5
    objective = Rebalancing(teacher, 3, distillation=7.0, margin=0.5, candidates=2, ranking=1.5)
    loss, scores = objective(network, x, y, torch.arange(10))
    features, before = network.features(x), teacher(x)
    directions = (functional.normalize(features) * functional.normalize(before)).sum(1)
    cosines = network.classifier.cosines(features)
    expected = (
        functional.cross_entropy(scores, y)
        + 7 * (1 - directions.mean())
        + 1.5 * margin_ranking(cosines, y, 3, 0.5, 2)
    )
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    loss.backward()
    assert network.classifier.old.grad is None
    assert all(parameter.grad is None for parameter in teacher.parameters())


@pytest.fixture
def objectives(monkeypatch):
    """Collect the objectives of the increments."""
    made = []

    def collect(*arguments, **options):
        made.append(Rebalancing(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(lucir, "Rebalancing", collect)
    return made


def test_distillation_grows_with_the_share_of_old_classes_and_candidates_are_limited(objectives):
    method = lucir.LUCIR(make_context(settings={"lucir_distillation": 4.0}))
    for phase in make_phases((3, 2, 1)):
        method.learn(phase)
    assert [o.distillation for o in objectives] == pytest.approx(
        [4 * math.sqrt(3 / 2), 4 * math.sqrt(5)]
    )
    assert [o.candidates for o in objectives] == [2, 1]


def test_old_class_weights_do_not_move_in_an_increment():
    method = lucir.LUCIR(make_context())
    phases = make_phases((3, 2, 1))
    method.learn(phases[0])
    first = method.network.classifier.weight.detach().clone()
    method.learn(phases[1])
    second = method.network.classifier.weight.detach().clone()
    assert torch.equal(second[:3], first)
    method.learn(phases[2])
    assert torch.equal(method.network.classifier.weight[:5], second)


def test_training_starts_from_imprinted_weights(monkeypatch):
    method = lucir.LUCIR(make_context())
    phases = make_phases((3, 2))
    method.learn(phases[0])
    old = copy.deepcopy(method.network)
    started = []
    monkeypatch.setattr(
        lucir.LUCIR, "fit", lambda self, network, *rest: started.append(network) or network
    )
    method.learn(phases[1])
    features = network_features(old.backbone, phases[1].images, CPU)
    expected = imprinted(features, phases[1].labels, [3, 4], old.classifier.weight)
    torch.testing.assert_close(started[0].classifier.new.detach(), expected)
    lengths = started[0].classifier.new.detach().norm(dim=1)
    mean_length = old.classifier.weight.detach().norm(dim=1).mean()
    torch.testing.assert_close(lengths, mean_length.expand(2))


def test_base_network_has_no_last_relu_where_the_backbone_allows_it(monkeypatch):
    asked = {}
    monkeypatch.setattr(
        lucir, "own_base_network", lambda *arguments: asked.update(options=arguments[4]) or "network"
    )
    assert lucir.LUCIR(make_context()).base(make_phases()[0]) == "network"
    assert asked["options"] == {"option": "B", "last_relu": False}


def test_balanced_fine_tuning_moves_old_weights_and_not_the_backbone():
    phases = make_phases((3, 2))
    plain, tuned = (
        lucir.LUCIR(make_context(settings={"lucir_balanced_epochs": epochs})) for epochs in (0, 2)
    )
    for phase in phases:
        plain.learn(phase)
        tuned.learn(phase)
    assert tuned.network.n_classes == 5
    assert not torch.equal(tuned.network.classifier.weight, plain.network.classifier.weight)
    ours, theirs = (m.network.backbone.state_dict() for m in (plain, tuned))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    "wrong",
    [{"candidates": 0}, {"balanced_epochs": -1}, {"ranking": -1.0}, {"distillation": -1.0}],
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        LUCIRSettings(**wrong)
