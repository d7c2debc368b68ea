"""EEIL: distillation for each group of classes that came together, then fine-tuning on a balanced set.

Paper: Castro et al., *End-to-End Incremental Learning*, ECCV 2018.

Classes that came in the same phase are a group g. With scores z and the scores ẑ of the network before
the phase:

    L = CE(z, y) + Σ_g KD(ẑ_g, z_g; T)     over the groups of old classes

on new images and exemplars, each softmax of KD over the scores of one group. Then the whole network is
fine-tuned on the exemplars of all classes, as many for new ones as for old ones, with the same loss and
one more group: that of the new classes, whose teacher is the network after the first stage.

Differences from the original:

1. Images are augmented as for all methods here, in each epoch anew: crop and mirror, over the recipe's
   160 epochs. There, 40 epochs go over a set that brightness, contrast, crop and mirror have made twelve
   times as large.
2. No noise is added to gradients.
3. The base network is the shared one, trained by the recipe.
4. Exemplars are chosen once, before the balanced stage.
5. With one new class in a phase, the softmax of its group is 1: there is nothing to distil, and the KD
   of later phases holds the base classes alone. That is a property of the loss.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from acil.bench.methods.base import Phase
from acil.bench.methods.incremental import IncrementalNetwork, Schedules
from acil.bench.training.objectives import Capturable, Scored, distillation
from acil.bench.training.settings import Settings


@dataclass(frozen=True)
class EEILSettings(Settings):
    """``memory_rule``, and what ``eeil_NAME`` sets."""

    memory_rule: str = "2000 in total"
    distillation: Annotated[float, "at least 0"] = 1.0  # weight of KD
    temperature: Annotated[float, "positive"] = 2.0  # T
    balanced_epochs: Annotated[int, "at least 0"] = 30
    balanced_rate: Annotated[float, "positive"] = 0.01  # divided by 10 after each third of them


@dataclass(frozen=True, eq=False)
class GroupDistilling(Capturable):
    """Cross entropy, and distillation within each group of classes.

    The teacher has a score for each class of the groups. Group g has the classes from ``ends[g - 1]``
    (or 0) to before ``ends[g]``.
    """

    teacher: nn.Module = field(repr=False)
    ends: tuple[int, ...]
    temperature: float
    weight: float

    def __call__(self, network: nn.Module, x: Tensor, y: Tensor, indices: Tensor) -> Scored:
        scores = network(x).float()
        with torch.no_grad():
            before = self.teacher(x).float()
        loss = functional.cross_entropy(scores, y)
        for start, end in zip((0, *self.ends), self.ends, strict=False):
            group = slice(start, end)
            loss = loss + self.weight * distillation(
                scores[:, group], before[:, group], self.temperature
            )
        return loss, scores


class TwoTeachers(nn.Module):
    """Scores of old classes from one network, of new ones from another."""

    def __init__(self, old: nn.Module, new: nn.Module) -> None:
        super().__init__()
        self.old, self.new = old, new

    def forward(self, x: Tensor) -> Tensor:
        old = self.old(x)
        return torch.cat([old, self.new(x)[:, old.shape[1] :]], dim=1)


class EEIL(IncrementalNetwork):
    """Distil group by group, then fine-tune on a balanced set."""

    name = "eeil"
    settings_type = EEILSettings
    schedules: ClassVar[Schedules] = {"paper": {"weight_decay": 1e-4}}

    def increment(self, phase: Phase) -> Any:
        student = self.grown_student(phase)
        return self.fit(student, self.data(phase), phase, self._objective(self.network))

    def balanced(self, before: Any) -> Any:
        network, epochs = self.student(), self.settings.balanced_epochs
        self.train_further(
            network,
            (self.exemplars.pixels, self.exemplars.labels),
            "balanced",
            self._objective(TwoTeachers(before, self.network).eval()),
            epochs=epochs,
            learning_rate=self.settings.balanced_rate,
            milestones=tuple(sorted({epochs // 3, 2 * epochs // 3} - {0})),
            decay=0.1,
        )
        return network

    def _objective(self, teacher: nn.Module) -> GroupDistilling:
        """Return the loss with all classes seen so far as groups."""
        ends, settings = tuple(self.history), self.settings
        return GroupDistilling(teacher, ends, settings.temperature, settings.distillation)
