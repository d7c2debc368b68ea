"""LUCIR's settings and loss."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from acil.errors import InputError
from acil.methods.memory import MemoryRule
from acil.training.objectives import Capturable


@dataclass(frozen=True)
class LUCIRSettings:
    """Settings of LUCIR.

    Attributes
    ----------
    memory_rule : str
        "N per class" or "N in total".
    distillation : float or None
        λ₀; None is the authors' value for the recipe.
    margin : float
        Between the cosine of the label and those of new classes, for images of old classes.
    candidates : int
        K, how many new classes an image of an old class is held apart from.
    ranking : float
        ρ, weight of the margin loss.
    balanced_epochs : int
        Of fine-tuning on the exemplars after each phase.
    balanced_rate : float
    """

    memory_rule: str = "20 per class"
    distillation: float | None = None
    margin: float = 0.5
    candidates: int = 2
    ranking: float = 1.0
    balanced_epochs: int = 0
    balanced_rate: float = 0.01

    def __post_init__(self) -> None:
        MemoryRule.parse(self.memory_rule)
        if self.candidates < 1 or self.balanced_epochs < 0:
            raise InputError(
                "candidates must be at least 1 and balanced_epochs at least 0. Got "
                f"candidates={self.candidates} and balanced_epochs={self.balanced_epochs}."
            )
        weights = (self.distillation or 0.0, self.ranking)
        if not all(0 <= weight < float("inf") for weight in weights):
            raise InputError(
                "distillation and ranking must be at least 0. Got "
                f"distillation={self.distillation} and ranking={self.ranking}."
            )


@dataclass(frozen=True, eq=False)
class Rebalancing(Capturable):
    """Cross entropy of η cos, direction of features, and margin.

    Attributes
    ----------
    teacher : nn.Module
        Backbone of the phase before, in evaluation mode.
    n_old : int
    distillation : float
        λ.
    margin : float
    candidates : int
        At most the number of new classes.
    ranking : float
        ρ.
    """

    teacher: nn.Module = field(repr=False)
    n_old: int
    distillation: float
    margin: float
    candidates: int
    ranking: float

    def __call__(self, network: Any, x: Tensor, y: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and the scores."""
        features = network.features(x).float()
        with torch.no_grad():
            before = self.teacher(x).float()
        cosines = network.classifier.cosines(features)
        scores = network.classifier.eta * cosines
        loss = (
            functional.cross_entropy(scores, y)
            + self.distillation * (1 - functional.cosine_similarity(features, before).mean())
            + self.ranking * margin_ranking(cosines, y, self.n_old, self.margin, self.candidates)
        )
        return loss, scores


def margin_ranking(cosines: Tensor, y: Tensor, n_old: int, margin: float, candidates: int) -> Tensor:
    """Return the mean of max(0, margin − cos_y + cos_k) over images of old classes; 0 without any.

    Parameters
    ----------
    cosines : Tensor of shape (n, classes)
    y : Tensor of shape (n,), int64
    n_old : int
        Classes below it are old.
    margin : float
    candidates : int
        How many new classes k with the largest cosine are looked at.
    """
    own = cosines.gather(1, y[:, None])
    nearest = cosines[:, n_old:].topk(candidates).values
    each = functional.relu(margin - own + nearest).mean(1)
    # A mask and not a selection: shapes must not depend on labels.
    old = (y < n_old).float()
    return (old * each).sum() / old.sum().clamp(min=1)
