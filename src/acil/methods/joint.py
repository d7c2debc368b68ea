"""Joint training: at every phase, a new network from scratch on all data seen. The upper bound.

Loss: the cross entropy over all classes seen. The runner hands out one phase's data, so this method
keeps every image in its memory, and the bytes are counted.

Settings: ``increment.NAME`` changes the training after the base phase, which is the recipe's.

1. The base phase is the shared base network, which is the same training.
"""

from __future__ import annotations

from typing import Any

from acil.methods.base import Phase
from acil.methods.base_network import new_network
from acil.methods.exemplars import MemoryRule
from acil.methods.incremental import IncrementalNetwork


class Joint(IncrementalNetwork):
    """Train from scratch on everything seen so far."""

    name = "joint"

    def memory_rule(self) -> MemoryRule:
        """Keep every image."""
        return MemoryRule(None, "per class")

    def increment(self, phase: Phase) -> Any:
        """Return a network trained on the data of all phases."""
        network = new_network(self.context, phase.n_seen)
        return self.fit(network, self.data(phase), phase)
