"""LFL: the old class weights stay, and features are held near those of the network before.

Paper: Jung et al., *Less-forgetting Learning in Deep Neural Networks*, arXiv 1607.00122, 2016; in its
class-incremental form.

With features f, f̂ those of the network before the phase, and scores z over all classes:

    L = CE(z, y) + λ · ½ ‖f − f̂‖²     on the new images alone

The weights and biases of old classes are frozen, so that the boundaries between them stay where they
are as long as features do. Those of new classes are trained.

Differences from the original:

1. There the classes stay the same and the images change, so that the whole last layer is frozen. Here
   new classes come, and need weights of their own.
2. The base network is the shared one, trained by the recipe; the rate of increments is the recipe's,
   too (there a smaller one than that of the first training).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn import functional

from acil.bench.methods.base import Phase
from acil.bench.methods.incremental import IncrementalNetwork
from acil.bench.training.network import Network, linear_of
from acil.bench.training.objectives import Capturable, Scored
from acil.bench.training.settings import Settings


@dataclass(frozen=True)
class LFLSettings(Settings):
    """What ``lfl_NAME`` sets."""

    distance: Annotated[float, "at least 0"] = 3.9e-4  # λ, the paper's on CIFAR-10


@dataclass(frozen=True, eq=False)
class HeldFeatures(Capturable):
    """Cross entropy with frozen weights of old classes, and λ times the distance to old features.

    The teacher's classifier scores the old classes. The network's own has the new ones alone, and labels
    count from the first of them.
    """

    teacher: Network = field(repr=False)
    distance: float

    def __call__(self, network: Any, x: Tensor, y: Tensor, indices: Tensor) -> Scored:
        features = network.features(x).float()
        with torch.no_grad():
            before = self.teacher.features(x).float()
        old, new = self.teacher.classifier(features).float(), network.classifier(features).float()
        # λ · ½ ‖f − f̂‖², mean over the images
        distance = (features - before).square().sum(1).mean() / 2
        ce = functional.cross_entropy(torch.cat([old, new], dim=1), y + old.shape[1])
        return ce + self.distance * distance, new


class LFL(IncrementalNetwork):
    """Freeze the old class weights and hold the features; keep no image."""

    name = "lfl"
    settings_type = LFLSettings

    def increment(self, phase: Phase) -> Any:
        student = self.grown_student(phase)
        grown = student.classifier
        # Only the rows of new classes are a parameter of the training.
        student.classifier = linear_of(grown.weight[self.n_seen :], grown.bias[self.n_seen :])
        for parameter in self.network.classifier.parameters():
            parameter.requires_grad_(False)
        images, labels = self.data(phase)
        objective = HeldFeatures(self.network, self.settings.distance)
        self.fit(student, (images, labels - self.n_seen), phase, objective)
        old, new = self.network.classifier, student.classifier
        student.classifier = linear_of(
            torch.cat([old.weight, new.weight]), torch.cat([old.bias, new.bias])
        )
        return student
