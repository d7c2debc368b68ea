"""Rotated EWC: the function stays, the Fisher information becomes more diagonal, no rotation is EWC."""

import copy
import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from acil.bench.methods.ewc import Anchored, fisher_information
from acil.bench.methods.rotated_ewc import RotatedAnchored, Rotation, rotations_of, turned
from acil.encoders.images.backbones import Preprocessing, normalise
from support.replay_problem import learnt
from support.small_training import CPU, images_of, make_network, same_state

PREPROCESSING = Preprocessing((0.0,), (1.0,), 2)
#: float32 products of some hundreds of terms.
ROUNDING = 1e-5


def problem(n_classes=4):
    network = make_network(n_classes).eval()
    pixels, labels = images_of(range(n_classes), per_class=12)
    return network, pixels, labels, network.backbone.preprocessing


def found_rotations(network, pixels, labels, preprocessing, batch_size=8):
    return rotations_of(network, pixels, labels, preprocessing, batch_size, CPU)


def test_every_layer_is_the_rotated_one_between_two_rotations():
    network, *images = problem()
    rotations = found_rotations(network, *images)
    weights = list(network.parameters())
    kinds = [None if r is None else w.ndim for w, r in zip(weights, rotations, strict=True)]
    assert kinds.count(4) == sum(isinstance(m, nn.Conv2d) for m in network.modules())
    assert kinds.count(2) == 1
    generator = torch.Generator().manual_seed(0)
    for weight, rotation in zip(weights, rotations, strict=True):
        if rotation is None:
            continue
        eye = torch.eye(len(rotation.left))
        torch.testing.assert_close(rotation.left @ rotation.left.mT, eye, atol=ROUNDING, rtol=0)
        # y = U₂ (W′ (U₁ x)), where U₁ and U₂ are convolutions of one pixel
        W, inside = weight.detach(), rotation(weight.detach())
        torch.testing.assert_close(rotation.back(inside), W, atol=ROUNDING, rtol=0)
        x = torch.randn(3, W.shape[1], *([5, 5] if W.ndim == 4 else []), generator=generator)
        if W.ndim == 4:
            U2, U1 = rotation.left.mT[:, :, None, None], rotation.right.mT[:, :, None, None]
            expected = functional.conv2d(x, W, padding=1)
            y = functional.conv2d(functional.conv2d(functional.conv2d(x, U1), inside, padding=1), U2)
        else:
            expected, y = x @ W.mT, x @ rotation.right @ inside.mT @ rotation.left
        torch.testing.assert_close(y, expected, atol=ROUNDING * float(expected.abs().max()), rtol=0)


def share_on_diagonal(gradients):
    """Squared norm of the diagonal of Σ g gᵀ, as a share of the whole."""
    whole = (gradients @ gradients.mT).square().sum()  # of the smaller side: the same norm
    return float(gradients.square().sum(0).square().sum() / whole)


def test_more_of_the_fisher_information_is_on_its_diagonal():
    network, pixels, labels, preprocessing = problem()
    rotations = found_rotations(network, pixels, labels, preprocessing)
    parameters = list(network.parameters())
    plain, rotated = [[] for _ in parameters], [[] for _ in parameters]
    for image, label in zip(pixels, labels, strict=True):
        scores = network(normalise(image[None], preprocessing))
        gradients = torch.autograd.grad(functional.cross_entropy(scores, label[None]), parameters)
        for place, pair in enumerate(zip(gradients, turned(rotations, gradients), strict=True)):
            plain[place].append(pair[0].flatten().double())
            rotated[place].append(pair[1].flatten().double())
    gains = [
        share_on_diagonal(torch.stack(after)) / share_on_diagonal(torch.stack(before))
        for before, after, rotation in zip(plain, rotated, rotations, strict=True)
        if rotation is not None
    ]
    assert math.prod(gains) ** (1 / len(gains)) > 1.5
    assert min(gains) > 0.9


def test_gradients_are_rotated_before_they_are_squared():
    generator = torch.Generator().manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False))
    pixels = torch.randint(256, (6, 1, 2, 2), generator=generator, dtype=torch.uint8)
    labels = torch.tensor([0, 1, 2, 1, 0, 2])
    rotations = rotations_of(network, pixels, labels, PREPROCESSING, 4, CPU)
    x = pixels.flatten(1).double() / 255
    # Eigenvectors of Σ x xᵀ, up to their signs
    U1 = rotations[0].right.mT.double()
    moved = U1 @ x.T @ x @ U1.T
    torch.testing.assert_close(moved, moved.diagonal().diag(), atol=1e-5, rtol=0)
    W = network[1].weight.detach().double()
    each = ((x @ W.T).softmax(1) - functional.one_hot(labels, 3)).double()
    expected = torch.zeros(3, 4, dtype=torch.float64)
    for batch in (slice(0, 4), slice(4, 6)):
        gradient = each[batch].T @ x[batch] / len(x[batch])
        expected += (rotations[0].left.double() @ gradient @ U1.T).square() / 2
    (found,) = fisher_information(
        network, pixels, labels, PREPROCESSING, 4, math.inf, CPU, partial(turned, rotations)
    )
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-9)


def test_penalty_is_its_formula_and_without_rotations_that_of_ewc():
    old = make_network(3)
    network = copy.deepcopy(old)
    network.grow(5, torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(1)
    fisher = [torch.rand(p.shape, generator=generator) for p in old.parameters()]
    anchors = [p.detach().clone() for p in old.parameters()]
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    none = [None] * len(fisher)
    plain = Anchored(fisher, anchors, 3, 10.0).penalty_of(network).item()
    assert RotatedAnchored(fisher, anchors, 3, 10.0, none).penalty_of(network).item() == plain
    rotations = []
    for anchor in anchors:
        sizes = anchor.shape[:2] if anchor.ndim > 1 else ()
        turns = [torch.linalg.qr(torch.randn(n, n, generator=generator))[0] for n in sizes]
        rotations.append(Rotation(*turns) if turns else None)
    expected = 0.0
    for F, anchor, weight, turn in zip(fisher, anchors, network.parameters(), rotations, strict=True):
        moved = weight.detach()[: len(anchor)] - anchor
        if turn is not None:
            whole = moved.flatten(2) if moved.ndim == 4 else moved[:, :, None]
            parts = [turn.left @ part @ turn.right for part in whole.unbind(2)]
            moved = torch.stack(parts, dim=2).reshape(moved.shape)
        expected += 5 * float((F * moved.square()).sum())
    found = RotatedAnchored(fisher, anchors, 3, 10.0, rotations).penalty_of(network).item()
    assert found == pytest.approx(expected, rel=1e-4)
    assert found != pytest.approx(plain, rel=1e-3)


def test_diagonal_is_turned_into_other_coordinates():
    generator = torch.Generator().manual_seed(0)
    turns = [torch.linalg.qr(torch.randn(n, n, generator=generator))[0] for n in (3, 2, 3, 2)]
    old, new, F = Rotation(*turns[:2]), Rotation(*turns[2:]), torch.rand(3, 2, generator=generator)
    # The quadratic form Σ F (old W)², as a matrix, in the new coordinates
    units = torch.eye(6).reshape(6, 3, 2)
    there = torch.stack([old(new.back(unit)) for unit in units]).flatten(1)
    whole = there @ F.flatten().diag() @ there.T
    expected = whole.diagonal().reshape(3, 2)
    torch.testing.assert_close(new.diagonal_from(old, F), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(old.diagonal_from(old, F), F, atol=1e-5, rtol=0)


def test_without_rotations_it_is_ewc(monkeypatch):
    def none(network, *_):
        return [None for _ in network.parameters()]

    monkeypatch.setattr("acil.bench.methods.rotated_ewc.rotations_of", none)
    # Trainings are seeded by phase and class, not by method
    rotated, plain = learnt("rotated-ewc"), learnt("ewc")
    assert same_state(rotated, plain)
