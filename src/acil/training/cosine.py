"""A backbone with a cosine classifier: scores are η · cos(feature, class weight)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from acil.errors import InputError
from acil.vision.backbones import Backbone


class CosineClassifier(nn.Module):
    """Scores η · cos(f, w_c) with one learned η, which starts at 1.

    The weights of old classes are a parameter of their own that is not trained: neither gradient nor
    weight decay moves it.

    Parameters
    ----------
    n_features : int
    n_old, n_new : int
        Numbers of classes whose weights are frozen and trained.
    generator : torch.Generator, optional
        On the CPU; draws the weights, uniform in ± 1/√(number of features).
    """

    def __init__(
        self, n_features: int, n_old: int, n_new: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        if n_old < 0 or n_new < 1:
            raise InputError(f"A classifier needs at least one new class. Got {n_old} old, {n_new} new.")
        bound = 1 / math.sqrt(n_features)
        drawn = torch.empty(n_old + n_new, n_features).uniform_(-bound, bound, generator=generator)
        self.old = nn.Parameter(drawn[:n_old].clone(), requires_grad=False)
        self.new = nn.Parameter(drawn[n_old:].clone())
        self.eta = nn.Parameter(torch.ones(()))

    @property
    def weight(self) -> Tensor:
        """Weights of all classes, (n_classes, n_features)."""
        return torch.cat([self.old, self.new])

    def cosines(self, features: Tensor) -> Tensor:
        """Return cos(f, w_c) of each feature and class, (n, n_classes), in float32."""
        # A cosine of bfloat16 has three digits, and η multiplies what is lost.
        with torch.autocast(features.device.type, enabled=False):
            unit = functional.normalize(features.float())
            return functional.linear(unit, functional.normalize(self.weight))

    def forward(self, features: Tensor) -> Tensor:
        """Return η · cos(f, w_c), (n, n_classes)."""
        return self.eta * self.cosines(features)


class CosineNetwork(nn.Module):
    """A backbone and a cosine classifier on its features.

    Parameters
    ----------
    backbone : Backbone
    n_old, n_new : int
        Classes whose weights are frozen and trained.
    generator : torch.Generator, optional
        On the CPU; draws the class weights.

    Examples
    --------
    >>> import torch
    >>> from acil.training.cosine import CosineNetwork, imprinted
    >>> from acil.vision.backbones import build
    >>> network = CosineNetwork(build("smallcnn"), n_old=0, n_new=3)
    >>> features, labels = torch.rand(8, 64), torch.tensor([3, 3, 4, 4, 3, 4, 3, 4])
    >>> network.grow(imprinted(features, labels, [3, 4], network.classifier.weight))
    >>> network.n_classes, network.classifier.old.shape[0]
    (5, 3)
    """

    def __init__(
        self, backbone: Backbone, n_old: int, n_new: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.classifier = CosineClassifier(backbone.num_features, n_old, n_new, generator)

    @property
    def n_classes(self) -> int:
        """Number of outputs."""
        return len(self.classifier.old) + len(self.classifier.new)

    def features(self, x: Tensor) -> Tensor:
        """Return the backbone's features of normalised images, (n, num_features)."""
        found: Tensor = self.backbone(x)
        return found

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of normalised images, (n, n_classes)."""
        scores: Tensor = self.classifier(self.features(x))
        return scores

    def grow(self, weights: Tensor) -> None:
        """Freeze the weights of all classes so far and add new ones; η stays.

        Parameters
        ----------
        weights : Tensor of shape (new classes, num_features)
        """
        head = self.classifier
        grown = CosineClassifier(self.backbone.num_features, self.n_classes, len(weights))
        with torch.no_grad():
            grown.old.copy_(head.weight)
            grown.new.copy_(weights)
            grown.eta.copy_(head.eta)
        self.classifier = grown.to(head.new.device)


def imprinted(features: Tensor, labels: Tensor, classes: list[int], old_weights: Tensor) -> Tensor:
    """Return first weights of new classes from their features.

    w_c = ‖old‖ · normalise(mean over class c of normalise(f)), ‖old‖ the mean norm of the old weights.

    Parameters
    ----------
    features : Tensor of shape (n, num_features)
    labels : Tensor of shape (n,)
    classes : list of int
        Each must have at least one row.
    old_weights : Tensor of shape (old classes, num_features)

    Returns
    -------
    Tensor of shape (len(classes), num_features), on the features' device
    """
    unit = functional.normalize(features)
    means = torch.stack([unit[labels == label].mean(0) for label in classes])
    norm: Tensor = old_weights.detach().norm(dim=1).mean().to(features.device)
    return norm * functional.normalize(means)
