"""Read-outs against values computed by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from acil.methods.icarl import exemplar_means, nearest_mean
from acil.methods.linear_probe import classifier_scores, network_features
from acil.vision.backbones import Backbone, Preprocessing

CPU = torch.device("cpu")


class TwoPixels(Backbone):
    """Features are the two pixels of the upper row, as numbers from 0 to 1."""

    def __init__(self):
        super().__init__("twopixels", 2, Preprocessing((0.0,), (1.0,), 2))

    def forward(self, x):
        return x[:, 0, 0]


def pixels(*rows):
    """Return images whose upper row is given, in units of 51 (a fifth of the brightest)."""
    made = torch.zeros(len(rows), 1, 2, 2, dtype=torch.uint8)
    made[:, 0, 0] = 51 * torch.tensor(rows, dtype=torch.uint8)
    return made


def test_means_of_exemplars_include_the_mirror_images():
    # Class 7: (3, 4) and its mirror (4, 3), at length 1: (0.6, 0.8), (0.8, 0.6); mean (0.7, 0.7).
    # Class 2: (5, 0), (0, 5) for one image and (3, 4), (4, 3) for the other: the same direction.
    classes, means = exemplar_means(
        TwoPixels(), pixels((3, 4), (5, 0), (3, 4)), torch.tensor([7, 2, 2]), CPU
    )
    assert classes.tolist() == [2, 7]
    torch.testing.assert_close(means, torch.full((2, 2), 0.5).sqrt())


def test_mirrored_features_are_scaled_before_they_are_averaged():
    class Left(TwoPixels):
        def forward(self, x):
            # The mirror image of (5, 0) has features ten times as long: they must not count more.
            left, right = x[:, 0, 0, 0], x[:, 0, 0, 1]
            return torch.stack([left, 10 * right], dim=1)

    _, means = exemplar_means(Left(), pixels((5, 0)), torch.tensor([0]), CPU)
    torch.testing.assert_close(means, torch.full((1, 2), 0.5).sqrt())


def test_nearest_mean_is_the_nearest_by_distance_of_directions():
    means = functional.normalize(torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]))
    features = torch.tensor([[10.0, 1.0], [0.02, 0.015], [-1.0, 3.0]])
    found = nearest_mean(features, torch.tensor([4, 9, 5]), means)
    distances = torch.cdist(functional.normalize(features), means)
    assert found.tolist() == [4, 9, 5]
    assert distances.argmin(1).tolist() == [0, 1, 2]


def test_network_features_are_those_of_the_present_weights():
    class Scaled(TwoPixels):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return self.scale * x[:, 0, 0]

    backbone = Scaled()
    first = network_features(backbone, pixels((5, 0)), CPU)
    with torch.no_grad():
        backbone.scale.fill_(2.0)
    assert (
        network_features(backbone, pixels((5, 0)), CPU).tolist() == (2 * first).tolist() == [[2.0, 0.0]]
    )


def test_scores_leave_the_mode_of_the_classifier_alone():
    classifier = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5)).train()
    features = torch.rand(4, 2)
    scores = classifier_scores(classifier, features, CPU)
    torch.testing.assert_close(scores, classifier[0](features).detach())
    assert classifier[1].training
    assert not scores.requires_grad


@pytest.mark.parametrize("n", [1, 3])
def test_any_number_of_exemplars_will_do(n):
    _, means = exemplar_means(TwoPixels(), pixels(*[(3, 4)] * n), torch.zeros(n, dtype=torch.int64), CPU)
    torch.testing.assert_close(means.norm(dim=1), torch.ones(1))
