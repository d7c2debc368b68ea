"""PODNet's settings and loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from acil.errors import InputError
from acil.methods.memory import MemoryRule
from acil.training.objectives import Capturable
from acil.vision.backbones import Backbone


@dataclass(frozen=True)
class PODNetSettings:
    """Settings of PODNet.

    Attributes
    ----------
    memory_rule : str
        "N per class" or "N in total".
    proxies : int
        Of each class.
    spatial : float or None
        λ_c, weight of the distance between maps; None is the authors' value for the recipe.
    flat : float or None
        λ_f, weight of the distance between features; None as above.
    gradient_limit : float
        Each entry of a gradient is clamped to ± this number.
    balanced_epochs : int
        Of training the proxies on the exemplars after each phase.
    balanced_rate : float or None
        None is the authors' value for the recipe.
    """

    memory_rule: str = "20 per class"
    proxies: int = 10
    spatial: float | None = None
    flat: float | None = None
    gradient_limit: float = 5.0
    balanced_epochs: int = 20
    balanced_rate: float | None = None

    def __post_init__(self) -> None:
        MemoryRule.parse(self.memory_rule)
        if self.proxies < 1 or self.balanced_epochs < 0:
            raise InputError(
                "proxies must be at least 1 and balanced_epochs at least 0. Got "
                f"proxies={self.proxies} and balanced_epochs={self.balanced_epochs}."
            )
        numbers = (self.spatial or 0.0, self.flat or 0.0)
        if not (all(0 <= n < float("inf") for n in numbers) and self.gradient_limit > 0):
            raise InputError(
                "spatial and flat must be at least 0 and gradient_limit positive. Got "
                f"spatial={self.spatial}, flat={self.flat}, gradient_limit={self.gradient_limit}."
            )


@dataclass(frozen=True, eq=False)
class PooledOutputs(Capturable):
    """Loss of the proxies' scores, distance of pooled maps, direction of features.

    Attributes
    ----------
    teacher : Backbone or None
        Of the phase before, in evaluation mode; None trains with the first part alone.
    spatial, flat : float
        Weights of the distance between maps and of that between features.
    gradient_limit : float
    """

    teacher: Backbone | None = field(repr=False)
    spatial: float
    flat: float
    gradient_limit: float

    def __call__(self, network: Any, x: Tensor, y: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and the scores."""
        if self.teacher is None:
            scores = network(x)
            return neighbourhood_loss(scores, y), scores
        maps = network.backbone.maps(x)
        with torch.no_grad():
            before = self.teacher.maps(x)
        features, old = (found[-1].mean(dim=(2, 3)).float() for found in (maps, before))
        scores = network.classifier(features)
        loss = (
            neighbourhood_loss(scores, y)
            + self.spatial * pooled_distance(maps, before)
            + self.flat * (1 - functional.cosine_similarity(features, old).mean())
        )
        return loss, scores


def neighbourhood_loss(scores: Tensor, y: Tensor) -> Tensor:
    """Return the mean of log(1 + Σ_{i≠y} e^{z_i}) − z_y, z the scores less their largest.

    Where the label has the largest score, this is the cross entropy.

    Parameters
    ----------
    scores : Tensor of shape (n, classes)
    y : Tensor of shape (n,), int64
    """
    z = scores - scores.amax(1, keepdim=True)
    # exp(0) = 1 stands for the label itself.
    others = z.scatter(1, y[:, None], 0.0)
    return (others.logsumexp(1) - z.gather(1, y[:, None])[:, 0]).mean()


def pooled_distance(maps: Sequence[Tensor], before: Sequence[Tensor]) -> Tensor:
    """Return the distance of pooled maps of two networks, mean over images and maps.

    Parameters
    ----------
    maps, before : sequence of Tensor of shape (n, channels, height, width)
    """
    distances = [
        torch.linalg.vector_norm(_pooled(a) - _pooled(b), dim=1).mean()
        for a, b in zip(maps, before, strict=True)
    ]
    return torch.stack(distances).mean()


def _pooled(values: Tensor) -> Tensor:
    """Return the squares summed over the width and over the height, together at length 1."""
    # In float32: squares of half precision overflow.
    squares = values.float().square()
    return functional.normalize(torch.cat([squares.sum(3), squares.sum(2)], dim=2).flatten(1))
