"""iCaRL as published: sigmoid outputs for all classes from the start, nearest mean of exemplars.

Paper: Rebuffi et al., *iCaRL: Incremental Classifier and Representation Learning*, CVPR 2017.

One sigmoid for each class of all phases. With n old classes and ẑ the scores of the network before the
phase, the targets are t_c = σ(ẑ_c) for c < n, whatever the label, and t_c = [c = y] for the others:

    L = mean over images and outputs of −t_c log σ(z_c) − (1 − t_c) log(1 − σ(z_c))

on new images and exemplars; the same loss, without a teacher, trains the base network. Read-out as in
``icarl``. ``memory_rule`` = "2000 in total". CIFAR: 70 epochs, rate 2 (the mean over 100 outputs makes
gradients small) divided by 5 at 49 and 63, weight decay 2e-5 (1e-5 · Σw²); ImageNet: 60 epochs, divided
by 5 at 20, 30, 40 and 50. Other recipes train as they say. ``increment.NAME`` changes all trainings,
that of the base too, which is the method's own. No ReLU ends the network, where the backbone allows it.

Differences from the original:

1. Pixels are normalised by mean and deviation of each channel, not by the mean image.
2. A backbone that is given keeps its last ReLU, and only the classifier is fitted on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from acil.methods.base import Phase
from acil.methods.icarl import NearestMeanOfExemplars
from acil.methods.memory import MemoryRule
from acil.methods.ownbase import own_base_network
from acil.methods.schedule import Schedules
from acil.training.network import Network
from acil.training.objectives import Capturable, sigmoid_distillation


@dataclass(frozen=True)
class ICaRLBCESettings:
    """Settings of the original iCaRL.

    Attributes
    ----------
    memory_rule : str
        "N per class" or "N in total".
    """

    memory_rule: str = "2000 in total"

    def __post_init__(self) -> None:
        MemoryRule.parse(self.memory_rule)


@dataclass(frozen=True, eq=False)
class SigmoidDistilling(Capturable):
    """Binary cross entropy with the teacher's sigmoids as targets of old classes.

    Attributes
    ----------
    teacher : nn.Module or None
        None in the base phase.
    n_old : int
        Number of old classes.
    """

    teacher: nn.Module | None = field(repr=False)
    n_old: int

    def __call__(
        self, network: nn.Module, x: Tensor, y: Tensor, indices: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the scores."""
        scores = network(x).float()
        with torch.no_grad():
            before = scores if self.teacher is None else self.teacher(x).float()
        return sigmoid_distillation(scores, before[:, : self.n_old], y), scores


class ICaRLBCE(NearestMeanOfExemplars):
    """Sigmoid distillation on new images and exemplars; the nearest mean decides."""

    name = "icarl-bce"
    settings_type = ICaRLBCESettings
    schedules: ClassVar[Schedules] = {
        "paper": {
            "epochs": 70,
            "learning_rate": 2.0,
            "decay": 0.2,
            "milestones": (49, 63),
            "weight_decay": 2e-5,
        },
        "imagenet": {
            "epochs": 60,
            "learning_rate": 2.0,
            "decay": 0.2,
            "milestones": (20, 30, 40, 50),
            "weight_decay": 2e-5,
        },
    }

    def base(self, phase: Phase) -> Any:
        """Return the method's own base network, with an output for every class to come."""
        return own_base_network(
            self.context,
            phase,
            self.name,
            lambda backbone, generator: Network(backbone, self.context.n_classes, generator),
            {"last_relu": False},
            self.training,
            SigmoidDistilling(None, 0),
        )

    @property
    def own_base_epochs(self) -> int:
        """Epochs of the base training, which are those of an increment."""
        return self.training.epochs

    def increment(self, phase: Phase) -> Any:
        """Return the network trained on new images and exemplars, the present one being the teacher."""
        objective = SigmoidDistilling(self.network, self.n_seen)
        return self.fit(self.student(), self.data(phase), phase, objective)
