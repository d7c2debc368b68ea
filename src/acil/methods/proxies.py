"""PODNet's classifier: several proxies for each class, compared with features by direction."""

from __future__ import annotations

import math

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor, nn
from torch.nn import functional

from acil.vision.backbones import Backbone

#: Starts of k-means, of which the best counts.
_STARTS = 10


class ProxyClassifier(nn.Module):
    """Scores η · s_c, s_c the similarity of a feature to the proxies of class c.

    With f̂ and ŵ the feature and a proxy at length 1, s_k = −‖f̂ − ŵ_k‖² = 2 cos − 2, and

        s_c = Σ_k softmax_k(s) · s_k     over the proxies k of c.

    One learned η, which starts at 1. The proxies of old classes are a parameter of their own that is
    not trained.

    Parameters
    ----------
    n_features : int
    n_old, n_new : int
        Numbers of classes whose proxies are frozen and trained.
    n_proxies : int
        Of each class.
    generator : torch.Generator, optional
        On the CPU; draws the proxies from N(0, 1 / number of features).
    """

    def __init__(
        self,
        n_features: int,
        n_old: int,
        n_new: int,
        n_proxies: int,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        deviation = 1 / math.sqrt(n_features)
        drawn = torch.empty(n_old + n_new, n_proxies, n_features)
        drawn.normal_(0.0, deviation, generator=generator)
        self.old = nn.Parameter(drawn[:n_old].clone(), requires_grad=False)
        self.new = nn.Parameter(drawn[n_old:].clone())
        self.eta = nn.Parameter(torch.ones(()))

    @property
    def weight(self) -> Tensor:
        """Proxies of all classes, (n_classes, n_proxies, n_features)."""
        return torch.cat([self.old, self.new])

    def similarities(self, features: Tensor) -> Tensor:
        """Return s_c of each feature and class, (n, n_classes), in float32."""
        # Half precision would leave three digits of a distance.
        with torch.autocast(features.device.type, enabled=False):
            weight = self.weight
            unit = functional.normalize(features.float())
            cosines = functional.linear(unit, functional.normalize(weight.flatten(0, 1)))
            each = (2 * cosines - 2).reshape(len(unit), *weight.shape[:2])
            found: Tensor = (each.softmax(2) * each).sum(2)
        return found

    def forward(self, features: Tensor) -> Tensor:
        """Return η · s_c, (n, n_classes)."""
        return self.eta * self.similarities(features)


class ProxyNetwork(nn.Module):
    """A backbone and a classifier by proxies on its features.

    Parameters
    ----------
    backbone : Backbone
    n_old, n_new : int
        Classes whose proxies are frozen and trained.
    n_proxies : int
    generator : torch.Generator, optional
        On the CPU; draws the proxies.
    """

    def __init__(
        self,
        backbone: Backbone,
        n_old: int,
        n_new: int,
        n_proxies: int,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.classifier = ProxyClassifier(backbone.num_features, n_old, n_new, n_proxies, generator)

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

    def grow(self, proxies: Tensor) -> None:
        """Freeze the proxies of all classes so far and add new ones; η stays.

        Parameters
        ----------
        proxies : Tensor of shape (new classes, n_proxies, num_features)
        """
        self._replace(self.classifier.weight, proxies)

    def thaw(self) -> None:
        """Let the proxies of all classes be trained."""
        self._replace(self.classifier.old[:0], self.classifier.weight)

    def _replace(self, old: Tensor, new: Tensor) -> None:
        head = self.classifier
        made = ProxyClassifier(new.shape[2], len(old), len(new), new.shape[1])
        with torch.no_grad():
            made.old.copy_(old)
            made.new.copy_(new)
            made.eta.copy_(head.eta)
        self.classifier = made.to(head.new.device)


def imprinted_proxies(
    features: Tensor, labels: Tensor, classes: list[int], old: Tensor, seed: int
) -> Tensor:
    """Return first proxies of new classes: centres of k-means on their features.

    w_ck = ‖old‖ · centre k of normalise(f) over class c, ‖old‖ the mean norm of the old proxies. A
    class with fewer images than proxies repeats its centres.

    Parameters
    ----------
    features : Tensor of shape (n, num_features)
    labels : Tensor of shape (n,)
    classes : list of int
        Each must have at least one row.
    old : Tensor of shape (old classes, n_proxies, num_features)
    seed : int

    Returns
    -------
    Tensor of shape (len(classes), n_proxies, num_features), float32
    """
    n_proxies = old.shape[1]
    unit = functional.normalize(features)
    found = []
    for label in classes:
        rows = unit[labels == label]
        count = min(n_proxies, len(np.unique(rows.numpy(), axis=0)))
        fitted = KMeans(count, n_init=_STARTS, random_state=seed % 2**32).fit(rows.numpy())
        centres = torch.from_numpy(fitted.cluster_centers_).float()
        found.append(centres[torch.arange(n_proxies) % count])
    norm: Tensor = old.detach().norm(dim=2).mean().to(features.device)
    return norm * torch.stack(found)
