"""A backbone with the classifier that it is trained with."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from acil.encoders.images.backbones import Backbone


class FeatureNetwork(nn.Module):
    """A backbone and a classifier on its features, whose ``weight`` has one row for each class."""

    def __init__(self, backbone: Backbone, classifier: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.classifier: Any = classifier

    @property
    def n_classes(self) -> int:
        """Number of outputs."""
        return len(self.classifier.weight)

    def features(self, x: Tensor) -> Tensor:
        """Return the backbone's features of normalised images, (n, num_features)."""
        features: Tensor = self.backbone(x)
        return features

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of normalised images, (n, n_classes)."""
        scores: Tensor = self.classifier(self.features(x))
        return scores


class Network(FeatureNetwork):
    """A backbone and a linear classifier, to which :meth:`grow` adds outputs.

    A generator on the CPU draws the first weights, uniform in ± 1/√(number of features).
    """

    def __init__(
        self, backbone: Backbone, n_classes: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__(backbone, linear(backbone.num_features, n_classes, generator))

    def grow(self, n_classes: int, generator: torch.Generator | None = None) -> None:
        """Make room for n_classes in all, drawn like the first; scores of old ones stay as they are."""
        old, more = self.classifier, n_classes - self.n_classes
        if more > 0:
            new = linear(old.in_features, more, generator).to(old.weight)
            self.classifier = linear_of(
                torch.cat([old.weight, new.weight]), torch.cat([old.bias, new.bias])
            )


def linear(n_in: int, n_out: int, generator: torch.Generator | None) -> nn.Linear:
    """Return a linear layer with torch's usual distribution, drawn from a generator of ours."""
    bound = 1 / math.sqrt(n_in)
    weight = torch.empty(n_out, n_in).uniform_(-bound, bound, generator=generator)
    return linear_of(weight, torch.empty(n_out).uniform_(-bound, bound, generator=generator))


def linear_of(weight: Tensor, bias: Tensor) -> nn.Linear:
    """Return a linear layer with copies of these weights."""
    n_out, n_in = weight.shape
    # Its constructor would draw weights from the global generator.
    layer = nn.Linear(n_in, n_out, device="meta", dtype=weight.dtype)
    layer.weight, layer.bias = (nn.Parameter(values.detach().clone()) for values in (weight, bias))
    return layer
