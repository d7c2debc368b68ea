"""Distillation losses and the Fisher penalty against formulas."""

import copy
import math

import pytest
import torch
from torch import nn

from acil.methods.ewc import Anchored, fisher_information, merged
from acil.methods.icarl import sigmoid_distillation
from acil.training.network import Network
from acil.training.objectives import Distilling, distillation
from acil.vision.backbones import Preprocessing, build

CPU = torch.device("cpu")


def make_network(n_classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Network(build("smallcnn", generator), n_classes, generator=generator)


def batch(n=12, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 1, 8, 8, generator=generator), torch.arange(n) % 3, torch.arange(n)


def test_distillation_is_the_cross_entropy_of_softened_scores():
    # One row, two classes, T = 2: p = softmax(0, ln 3) = (1/4, 3/4), q = (1/2, 1/2).
    teacher = torch.tensor([[0.0, 2 * math.log(3.0)]])
    assert float(distillation(torch.zeros(1, 2), teacher, 2.0)) == pytest.approx(math.log(2))
    # q = (3/4, 1/4): −(1/4 ln 3/4 + 3/4 ln 1/4)
    expected = -(0.25 * math.log(0.75) + 0.75 * math.log(0.25))
    assert float(distillation(-teacher, teacher, 2.0)) == pytest.approx(expected)


def test_distillation_is_the_mean_over_rows():
    generator = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, 5, 4, generator=generator)
    rows = [float(distillation(student[i : i + 1], teacher[i : i + 1], 2.0)) for i in range(5)]
    assert float(distillation(student, teacher, 2.0)) == pytest.approx(sum(rows) / 5)


def test_identical_teacher_gives_no_gradient():
    network = make_network().eval()
    x, y, indices = batch()
    objective = Distilling(copy.deepcopy(network), 3, 2.0, cross_entropy=0.0)
    loss, _ = objective(network, x, y, indices)
    loss.backward()
    assert all(float(parameter.grad.abs().max()) < 1e-7 for parameter in network.parameters())


def test_other_teacher_gives_a_gradient_to_the_student_only():
    network, teacher = make_network().eval(), make_network(seed=1).eval()
    loss, _ = Distilling(teacher, 3, 2.0, cross_entropy=0.0)(network, *batch())
    loss.backward()
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


def test_sigmoid_targets_are_the_teachers_for_old_classes_and_labels_for_new_ones():
    student = torch.zeros(1, 3)
    teacher = torch.tensor([[math.log(3.0)]])  # σ = 3/4
    assert float(sigmoid_distillation(student, teacher, torch.tensor([2]))) == pytest.approx(math.log(2))
    # −(3/4 ln σ(1) + 1/4 ln σ(−1)) − ln σ(2) − ln σ(−3), where −ln σ(z) = ln(1 + e^−z)
    student = torch.tensor([[1.0, 2.0, 3.0]])
    softplus = lambda z: math.log1p(math.exp(z))  # noqa: E731
    expected = (0.75 * softplus(-1) + 0.25 * softplus(1) + softplus(-2) + softplus(3)) / 3
    assert float(sigmoid_distillation(student, teacher, torch.tensor([1]))) == pytest.approx(expected)
    # The label of an old class is not a target: its teacher's sigmoid is.
    old = float(sigmoid_distillation(student, teacher, torch.tensor([0])))
    assert old == pytest.approx(
        (0.75 * softplus(-1) + 0.25 * softplus(1) + softplus(2) + softplus(3)) / 3
    )


def test_sigmoid_loss_without_a_teacher_is_that_of_labels():
    student = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 2, 1, 1])
    expected = nn.functional.binary_cross_entropy_with_logits(student, nn.functional.one_hot(y).float())
    assert float(sigmoid_distillation(student, torch.empty(4, 0), y)) == pytest.approx(float(expected))


PREPROCESSING = Preprocessing((0.0,), (1.0,), 2)


def test_fisher_information_is_the_mean_of_squared_batch_gradients():
    # A linear network: the gradient of a batch is the mean of (softmax(Wx) − onehot(y)) xᵀ.
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False))
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (5, 1, 2, 2), generator=generator, dtype=torch.uint8)
    labels = torch.tensor([0, 1, 2, 1, 0])
    with torch.no_grad():
        network[1].weight.copy_(torch.randn(3, 4, generator=generator))
    x = pixels.flatten(1).double() / 255
    probabilities = (x @ network[1].weight.detach().double().T).softmax(1)
    each = (probabilities - nn.functional.one_hot(labels, 3))[:, :, None] * x[:, None]
    batches = [each[:2].mean(0), each[2:4].mean(0), each[4:].mean(0)]
    expected = sum(gradient.square() for gradient in batches) / 3
    (found,) = fisher_information(network, pixels, labels, PREPROCESSING, 2, math.inf, CPU)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-9)
    clip = float(expected.median())
    (clipped,) = fisher_information(network, pixels, labels, PREPROCESSING, 2, clip, CPU)
    torch.testing.assert_close(clipped.double(), expected.clamp(max=clip), rtol=1e-5, atol=1e-9)


def test_measuring_fisher_information_changes_nothing():
    network = make_network().train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    pixels = torch.randint(256, (6, 1, 8, 8), generator=torch.Generator().manual_seed(0)).byte()
    found = fisher_information(
        network, pixels, torch.arange(6) % 3, network.backbone.preprocessing, 4, 1e-4, CPU
    )
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert network.training
    assert [entry.shape for entry in found] == [parameter.shape for parameter in network.parameters()]
    assert all(parameter.grad is None for parameter in network.parameters())
    assert any(float(entry.max()) > 0 for entry in found)


def test_penalty_is_its_formula_also_after_the_classifier_has_grown():
    old = make_network(3)
    fisher = [torch.rand(p.shape, generator=torch.Generator().manual_seed(i)) for i, p in
              enumerate(old.parameters())]  # fmt: skip
    anchors = [parameter.detach().clone() for parameter in old.parameters()]
    network = copy.deepcopy(old)
    network.grow(5, torch.Generator().manual_seed(3))
    objective = Anchored(fisher, anchors, 3, penalty=10.0)
    assert objective.penalty_of(network).item() == 0.0
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.1
    # (λ/2) Σ F · 0.1²; the new class weights are not held.
    expected = 10 / 2 * sum(float(entry.sum()) for entry in fisher) * 0.01
    assert objective.penalty_of(network).item() == pytest.approx(expected, rel=1e-4)
    x, _, indices = batch()
    y = 3 + torch.arange(12) % 2
    loss, scores = objective(network.eval(), x, y, indices)
    ce = nn.functional.cross_entropy(scores[:, 3:], y - 3)
    assert loss.item() == pytest.approx(ce.item() + expected, rel=1e-4)


def test_merging_weighs_by_classes_and_takes_new_rows_as_they_are():
    old, new = [torch.full((2, 2), 1.0)], [torch.full((3, 2), 4.0)]
    (found,) = merged(old, new, share=2 / 3)
    assert found.tolist() == [[2.0, 2.0], [2.0, 2.0], [4.0, 4.0]]
    assert new[0].tolist() == [[4.0, 4.0]] * 3
