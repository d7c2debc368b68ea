"""NCM: the class whose mean feature points the same way.

The nearest class mean of Mensink et al., *Distance-Based Image Classification: Generalizing to New
Classes at Near-Zero Cost*, TPAMI 2013, and of iCaRL's read-out, on a network that is frozen after the
base phase. Let f(x) be the feature of an image, scaled to length 1:

    μ_c = (1/n_c) Σ f(x),    ŷ = argmax_c cos(f(x), μ_c).

There is nothing to set. The state is a sum, so that phases in any grouping give the same classifier.

Differences:

1. The network does not go on learning, and no metric is learnt on top of it.
2. The mean is that of all training images, not of exemplars; mirror images are the recipe's choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional

from acil.methods.base import Context, MemoryUse, Phase
from acil.methods.class_means import ClassMeans, by_class
from acil.methods.frozen_features import FrozenMethod, highest


class NCM(FrozenMethod):
    """Nearest class mean by cosine, on frozen features.

    Parameters
    ----------
    context : Context
    """

    grouping_free = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.means = ClassMeans(context.device)

    def state_dict(self) -> dict[str, Any]:
        """Return counts and means."""
        return {**self.means.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from saved means; the network comes from the base phase's checkpoint."""
        self.means.load_state_dict(state)

    def scores(self, rows: Tensor) -> Tensor:
        """Return the cosine of each row of shape (n, d) and each class, (n, classes)."""
        return functional.normalize(rows) @ functional.normalize(self.means.means).mT

    def _learn(self, features: Tensor, phase: Phase) -> None:
        for label, rows in by_class(features, phase.labels, self.context.device):
            self.means.add(label, functional.normalize(rows))

    def _predict(self, features: Tensor) -> Tensor:
        return highest(self.scores, self.means.labels, features, self.context.device)

    def _memory(self) -> MemoryUse:
        """Count the means; they are what learning goes on from, and all that prediction needs."""
        return MemoryUse(statistics=self.means.nbytes)
