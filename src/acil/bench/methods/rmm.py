"""RMM, around a host method: old exemplars and new images share one memory, split by a list of actions.

Paper: Liu et al., *RMM: Reinforced Memory Management for Class-Incremental Learning*, NeurIPS 2021.

The memory is strict: in a phase of n_k new images, exemplars and new images together are at most
B + n_k, B the host's ``memory_rule`` (20 per class of 100: 2,000). The action r_k of phase k says

    exemplars of old classes: B + r_k n_k        new images: (1 − r_k) n_k

in equal parts for the classes, of each new one at least one image. New images are drawn at random, and
the others are never seen. The actions are those that the authors' policy found, by K; for another K give
a list.

Differences from the original:

1. The list is fixed: no policy is learnt. Rates of single classes are 0, as in the published lists.
2. Both parts follow the action of their phase, so that they add up to the memory. PyCIL's code takes
   exemplars by the action of the phase before.
3. Shares of classes are rounded down, so that up to one image a class stays unused. Images that were
   dropped once do not come back when a later action allows more.
4. Exemplars of a new class are chosen among the images that the phase had. PyCIL's code chooses among
   all images of the class, those that the memory had no room for included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch

from acil.bench.methods.base import Context, Phase
from acil.bench.methods.exemplars import MemoryRule
from acil.bench.methods.incremental import IncrementalNetwork, Wrapper
from acil.bench.training.settings import Settings
from acil.errors import InputError

#: Published actions of phases 0 … K, by K: for CIFAR-100, and for the recipe of ImageNet-Subset.
ACTIONS: dict[int, tuple[float, ...]] = {
    5: (0.8, 0.8, 0.6, 0.6, 0.6, 0.6),
    10: (*[0.7] * 5, *[0.6] * 4, *[0.7] * 2),
    25: (*[0.7] * 10, *[0.8] * 5, *[0.9] * 11),
}
IMAGENET_ACTIONS: dict[int, tuple[float, ...]] = {
    5: (0.8, 0.8, 0.7, 0.8, 0.6, 0.7),
    10: (0.7, 0.7, 0.7, 0.8, 0.8, 0.6, 0.6, 0.7, 0.7, 0.7, 0.7),
    25: ACTIONS[25],
}


@dataclass(frozen=True)
class RMMSettings(Settings):
    """What can be set beside the settings of the host."""

    #: One for each phase; the first, that of the base phase, has no effect. Empty: published ones.
    rmm_actions: Annotated[tuple[float, ...], "at least 0 and below 1"] = ()


def split(action: float, n_new: int, memory: int) -> tuple[int, int]:
    """Return how many exemplars of old classes and how many of n_new images a phase has, by its action.

    Examples
    --------
    >>> split(0.8, 5000, 2000)
    (6000, 1000)
    """
    # Rounded, not cut: (1 − 0.9) · 1000 is a little less than 100 in floating point.
    moved = round(action * n_new)
    return memory + moved, n_new - moved


class RMM(Wrapper):
    """Split one memory between the exemplars and the new images of a host method."""

    name = "rmm"
    settings_type = RMMSettings

    def __init__(self, host: IncrementalNetwork) -> None:
        super().__init__(host)
        context = host.context
        self.phase_sizes = context.phase_sizes
        self.budget = host.exemplars.rule.budget(context.n_classes)
        self.actions = self._actions(context)

    def before(self, phase: Phase) -> Phase:
        """Return a phase with its share of the memory; exemplars are kept for the next one's."""
        index = len(self.host.history)
        self.host.exemplars.rule = MemoryRule(self._old_images(index + 1), "in total")
        return self._cut(phase, index) if index else phase

    def sizes(self, sizes: Sequence[int]) -> Sequence[int]:
        return [self._split(k)[1] if k else size for k, size in enumerate(sizes)]

    def quota(self, quota: int | None, index: int, n_seen: int) -> int:
        return self._old_images(index + 1) // n_seen

    def _actions(self, context: Context) -> tuple[float, ...]:
        """Return the actions of all phases: those set, or the published ones."""
        n_phases = len(self.phase_sizes)
        if not n_phases:
            raise InputError(
                f"{self.host.name}+rmm plans ahead: it must be told the sizes of all phases."
            )
        published = IMAGENET_ACTIONS if context.recipe.name == "imagenet" else ACTIONS
        actions: tuple[float, ...] = self.settings.rmm_actions or published.get(n_phases - 1, ())
        if len(actions) != n_phases:
            raise InputError(
                f"{self.host.name}+rmm needs an action for each of {n_phases} phases, the base phase "
                f"included, and there are {len(actions)}. Set rmm_actions to a list such as "
                f"[0.7, 0.7, …], or take K from {', '.join(str(k) for k in published)}."
            )
        return actions

    def _split(self, index: int) -> tuple[int, int]:
        return split(self.actions[index], self.phase_sizes[index], self.budget)

    def _old_images(self, index: int) -> int:
        """Return the exemplars for a phase; after the last one, as many as it had itself."""
        return self._split(min(index, len(self.actions) - 1))[0]

    def _cut(self, phase: Phase, index: int) -> Phase:
        """Return a phase with its share of new images, drawn in equal parts from its classes."""
        _, wanted = self._split(index)
        generator = self.host.generator("share of new images", phase)
        share, rest = divmod(wanted, len(phase.classes))
        chosen = []
        for place, label in enumerate(phase.classes):
            members = torch.nonzero(phase.labels == label).flatten()
            count = max(1, share + (place < rest))
            chosen.append(members[torch.randperm(len(members), generator=generator)[:count]])
        rows = torch.cat(chosen).sort().values
        return replace(phase, images=phase.images.subset(rows), labels=phase.labels[rows])
