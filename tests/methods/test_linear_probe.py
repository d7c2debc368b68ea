"""Features and scores of a network as it is now."""

import torch
from torch import nn

from acil.methods.linear_probe import classifier_scores, network_features
from acil.vision.backbones import Backbone, Preprocessing

CPU = torch.device("cpu")


def pixels(*rows):
    """Return images whose upper row is given, in units of 51 (a fifth of the brightest)."""
    made = torch.zeros(len(rows), 1, 2, 2, dtype=torch.uint8)
    made[:, 0, 0] = 51 * torch.tensor(rows, dtype=torch.uint8)
    return made


class TwoPixels(Backbone):
    """Features are the two pixels of the upper row, as numbers from 0 to 1."""

    def __init__(self):
        super().__init__("twopixels", 2, Preprocessing((0.0,), (1.0,), 2))

    def forward(self, x):
        return x[:, 0, 0]


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
