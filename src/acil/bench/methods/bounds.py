"""The bounds: fine-tuning, which forgets, below; joint training, which keeps all data, above.

``finetune`` goes on training with the new data alone. Loss of an increment: the cross entropy over all
classes seen, on the new classes' images.

``joint`` trains a new network from scratch at every phase, on all data seen, with the cross entropy over
all classes seen. The runner hands out one phase's data, so this method keeps every image in its memory,
and the bytes are counted. Its base phase is the shared base network, which is the same training.
"""

from __future__ import annotations

from typing import Any

from acil.bench.methods.base import Phase
from acil.bench.methods.base_network import new_network
from acil.bench.methods.exemplars import MemoryRule
from acil.bench.methods.incremental import IncrementalNetwork


class Finetune(IncrementalNetwork):
    """Train on, without anything against forgetting."""

    name = "finetune"
    with_auxiliary_tasks = True

    def increment(self, phase: Phase) -> Any:
        return self.fit(self.grown_student(phase), self.data(phase), phase)


class Joint(IncrementalNetwork):
    """Train from scratch on everything seen so far."""

    name = "joint"
    with_auxiliary_tasks = True

    @classmethod
    def memory_rule(cls, settings: Any) -> MemoryRule:
        """Keep every image."""
        return MemoryRule(None, "per class")

    def increment(self, phase: Phase) -> Any:
        return self.fit(new_network(self.context, phase.n_seen), self.data(phase), phase)
