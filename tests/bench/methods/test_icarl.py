"""iCaRL: the means of exemplars that decide, and the sigmoid loss of the original."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from acil.bench.methods.icarl import exemplar_means, nearest_mean, sigmoid_distillation
from support.replay_problem import TwoPixels, learnt, make_phases, upper_rows
from support.small_training import CPU


def test_means_of_exemplars_include_the_mirror_images():
    # Class 7: (3, 4) and its mirror (4, 3), at length 1: (0.6, 0.8), (0.8, 0.6); mean (0.7, 0.7).
    # Class 2: (5, 0), (0, 5) for one image and (3, 4), (4, 3) for the other: the same direction.
    classes, means = exemplar_means(
        TwoPixels(), upper_rows((3, 4), (5, 0), (3, 4)), torch.tensor([7, 2, 2]), CPU
    )
    assert classes.tolist() == [2, 7]
    torch.testing.assert_close(means, torch.full((2, 2), 0.5).sqrt())


def test_mirrored_features_are_scaled_before_they_are_averaged():
    class Left(TwoPixels):
        def forward(self, x):
            # The mirror image of (5, 0) has features ten times as long: they must not count more.
            left, right = x[:, 0, 0, 0], x[:, 0, 0, 1]
            return torch.stack([left, 10 * right], dim=1)

    _, means = exemplar_means(Left(), upper_rows((5, 0)), torch.tensor([0]), CPU)
    torch.testing.assert_close(means, torch.full((1, 2), 0.5).sqrt())


def test_nearest_mean_is_the_nearest_by_distance_of_directions():
    means = functional.normalize(torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]))
    features = torch.tensor([[10.0, 1.0], [0.02, 0.015], [-1.0, 3.0]])
    found = nearest_mean(features, torch.tensor([4, 9, 5]), means)
    distances = torch.cdist(functional.normalize(features), means)
    assert found.tolist() == [4, 9, 5]
    assert distances.argmin(1).tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["icarl", "icarl-bce"])
def test_classifier_does_not_decide(name):
    phases = make_phases((3, 2))
    method = learnt(name, phases)
    before = method.predict(phases[1].images)
    for parameter in method.network.classifier.parameters():
        parameter.detach().zero_()
    assert len(before.unique()) > 1
    assert torch.equal(method.predict(phases[1].images), before)


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
