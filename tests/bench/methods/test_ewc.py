"""EWC: the Fisher information, its merging and its penalty."""

import copy
import math

import pytest
import torch
from torch import nn

from acil.bench.methods.ewc import Anchored, fisher_information, merged
from acil.encoders.images.backbones import Preprocessing
from support.small_training import CPU, batch, make_network

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
