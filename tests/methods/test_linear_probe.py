"""Features and scores of a network as it is now."""

import torch
from replay_problem import TwoPixels, upper_rows
from torch import nn

from acil.methods.linear_probe import classifier_scores, network_features

CPU = torch.device("cpu")


def test_network_features_are_those_of_the_present_weights():
    class Scaled(TwoPixels):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return self.scale * x[:, 0, 0]

    backbone = Scaled()
    first = network_features(backbone, upper_rows((5, 0)), CPU)
    with torch.no_grad():
        backbone.scale.fill_(2.0)
    assert (
        network_features(backbone, upper_rows((5, 0)), CPU).tolist()
        == (2 * first).tolist()
        == [[2.0, 0.0]]
    )


def test_scores_leave_the_mode_of_the_classifier_alone():
    classifier = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5)).train()
    features = torch.rand(4, 2)
    scores = classifier_scores(classifier, features, CPU)
    torch.testing.assert_close(scores, classifier[0](features).detach())
    assert classifier[1].training
    assert not scores.requires_grad
