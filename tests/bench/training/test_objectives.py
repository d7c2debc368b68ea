"""Distillation against formulas."""

import copy
import math

import pytest
import torch
from torch import nn

from acil.bench.training.objectives import Distilling, distillation
from support.small_training import batch, make_network


def test_distillation_is_the_cross_entropy_of_softened_scores():
    # One row, two classes, T = 2: p = softmax(0, ln 3) = (1/4, 3/4), q = (1/2, 1/2).
    teacher = torch.tensor([[0.0, 2 * math.log(3.0)]])
    assert float(distillation(torch.zeros(1, 2), teacher, 2.0)) == pytest.approx(math.log(2))
    # q = (3/4, 1/4): −(1/4 ln 3/4 + 3/4 ln 1/4)
    expected = -(0.25 * math.log(0.75) + 0.75 * math.log(0.25))
    assert float(distillation(-teacher, teacher, 2.0)) == pytest.approx(expected)


def test_other_teacher_gives_a_gradient_to_the_student_only_and_an_identical_one_none():
    network, teacher = make_network().eval(), make_network(seed=1).eval()
    same = copy.deepcopy(network)
    Distilling(same, 3, 2.0, cross_entropy=0.0)(network, *batch())[0].backward()
    assert all(float(parameter.grad.abs().max()) < 1e-7 for parameter in network.parameters())
    Distilling(teacher, 3, 2.0, cross_entropy=0.0)(network, *batch())[0].backward()
    assert float(network.classifier.weight.grad.abs().max()) > 1e-3
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_distilling_weighs_both_losses_and_looks_at_old_classes_only():
    network, teacher = make_network(5).eval(), make_network(3, seed=1).eval()
    x, y, indices = batch()
    scores, old = network(x), teacher(x)
    ce = nn.functional.cross_entropy(scores, y)
    kd = distillation(scores[:, :3], old, 2.0)
    loss, _ = Distilling(teacher, 3, 2.0, cross_entropy=0.25, distillation=3.0)(network, x, y, indices)
    assert loss.item() == pytest.approx((0.25 * ce + 3 * kd).item(), rel=1e-6)
    new = 3 + y % 2
    new_ce = nn.functional.cross_entropy(scores[:, 3:], new - 3)
    loss, _ = Distilling(teacher, 3, 2.0, new_only=True)(network, x, new, indices)
    assert loss.item() == pytest.approx((new_ce + kd).item(), rel=1e-6)


def test_identity_names_the_numbers_and_not_the_teacher():
    first, second = (Distilling(make_network(seed=seed), 3, 2.0) for seed in (0, 1))
    assert first.identity == second.identity
    assert first.identity != Distilling(make_network(), 4, 2.0).identity
