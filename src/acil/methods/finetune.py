"""Fine-tuning: go on training with the new data alone. The lower bound: it forgets.

Loss of an increment: the cross entropy over all classes seen, on the new classes' images.

Settings: ``increment.NAME`` changes the training of increments, which is the recipe's (for ``paper``:
160 epochs, rate 0.1 divided by 10 at 80 and 120, weight decay 5e-4, batches of 128, momentum 0.9).
"""

from __future__ import annotations

from acil.methods.base import Phase
from acil.methods.incremental import IncrementalNetwork
from acil.training.network import Network


class Finetune(IncrementalNetwork):
    """Train on, without anything against forgetting."""

    name = "finetune"

    def increment(self, phase: Phase) -> Network:
        """Return the network trained on the new data."""
        network: Network = self.fit(self.grown_student(phase), self.data(phase), phase)
        return network
