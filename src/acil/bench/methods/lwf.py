"""LwF: the old network's scores on new images stand in for the old images. With and without exemplars.

Paper: Li and Hoiem, *Learning without Forgetting*, ECCV 2016; in its class-incremental form.

With n old classes, m new ones, scores z and the scores ẑ of the network before the phase:

    KD = −Σ_{c<n} softmax(ẑ/T)_c · log softmax(z[:n]/T)_c
    ``lwf``            L = CE(z[n:], y) + λ · KD    on the new images alone
    ``lwf-exemplars``  L = CE(z, y) + β · KD        on new images and exemplars, CE over all classes

``lwf-exemplars`` is the "LwF" row of most tables: the code that they come from calls it so.

Differences from the original:

1. One classifier for all classes, and no warm-up of the new part alone: there is no task label.
2. The old class weights are trained too (FACIL freezes them, with λ = 1).
3. The base network is the shared one, trained by the recipe (PyCIL: 200 epochs).
4. With one new class in a phase, the CE of ``lwf`` over one score is zero: the new class is hardly
   learnt. That is a property of the loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from acil.bench.methods.base import Phase
from acil.bench.methods.incremental import IncrementalNetwork, Schedules
from acil.bench.training.objectives import Distilling
from acil.bench.training.settings import Settings


@dataclass(frozen=True)
class LwFSettings(Settings):
    """What ``lwf_NAME`` sets; PyCIL's values."""

    distillation: Annotated[float, "at least 0"] = 3.0  # λ
    temperature: Annotated[float, "positive"] = 2.0  # T


@dataclass(frozen=True)
class ReplaySettings(LwFSettings):
    """What ``lwf_exemplars_NAME`` sets."""

    distillation: Annotated[float, "at least 0"] = 1.0  # β, there written as T² · 0.25
    memory_rule: str = "20 per class"


class LwF(IncrementalNetwork):
    """Distil the old network on new images; keep no image."""

    name = "lwf"
    settings_type = LwFSettings
    #: Whether the cross entropy is over the new classes' scores alone.
    new_only: ClassVar[bool] = True
    #: PyCIL's, for CIFAR.
    schedules: ClassVar[Schedules] = {
        "paper": {"epochs": 250, "milestones": (60, 120, 180, 220), "weight_decay": 2e-4},
    }

    def increment(self, phase: Phase) -> Any:
        weight, temperature = self.settings.distillation, self.settings.temperature
        objective = Distilling(
            self.network, self.n_seen, temperature, distillation=weight, new_only=self.new_only
        )
        return self.fit(self.grown_student(phase), self.data(phase), phase, objective)


class LwFExemplars(LwF):
    """Distil the old network on new images and exemplars."""

    name = "lwf-exemplars"
    settings_type = ReplaySettings
    new_only = False
    schedules: ClassVar[Schedules] = {}
