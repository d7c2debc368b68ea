"""LwF with exemplars: distillation on new images and a few old ones. The "LwF" row of most tables.

The code that such tables come from calls this LwF. With n old classes, scores z and the scores ẑ of the
network before the phase:

    L = CE(z, y) + β · KD,   KD = −Σ_{c<n} softmax(ẑ/T)_c · log softmax(z[:n]/T)_c

on new images and exemplars, CE over all classes. Linear classifier with bias.

Settings: ``lwf_exemplars_distillation`` = β = 1 (there written as T² · 0.25),
``lwf_exemplars_temperature`` = T = 2, ``memory_rule`` = "20 per class", chosen by herding. Training: the
recipe's, which ``increment.NAME`` changes.

Differences from LwF as published (``lwf``):

1. It keeps exemplars.
2. The cross entropy is over all classes, not over the new ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from acil.methods.base import Phase
from acil.methods.incremental import IncrementalNetwork
from acil.methods.lwf import check_distillation
from acil.methods.memory import MemoryRule
from acil.training.objectives import Distilling


@dataclass(frozen=True)
class ReplaySettings:
    """Settings of methods with exemplars and distillation.

    Attributes
    ----------
    memory_rule : str
        "N per class" or "N in total".
    distillation : float
        Weight of the distillation.
    temperature : float
        T of the distillation.
    """

    memory_rule: str = "20 per class"
    distillation: float = 1.0
    temperature: float = 2.0

    def __post_init__(self) -> None:
        MemoryRule.parse(self.memory_rule)
        check_distillation(self.distillation, self.temperature)


class LwFExemplars(IncrementalNetwork):
    """Distil the old network on new images and exemplars."""

    name = "lwf-exemplars"
    settings_type = ReplaySettings

    def increment(self, phase: Phase) -> Any:
        """Return the network trained on new images and exemplars, the present one being the teacher."""
        objective = Distilling(
            self.network,
            self.n_seen,
            self.settings.temperature,
            distillation=self.settings.distillation,
        )
        return self.fit(self.grown_student(phase), self.data(phase), phase, objective)
