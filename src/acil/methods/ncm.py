"""NCM: the class whose mean feature points the same way.

The nearest class mean of Mensink et al., *Distance-Based Image Classification: Generalizing to New
Classes at Near-Zero Cost*, TPAMI 2013, and of iCaRL's predictions, on a network that is frozen after the
base phase. Let f(x) be the feature of an image, scaled to length 1:

    μ_c = (1/n_c) Σ f(x),    ŷ = argmax_c cos(f(x), μ_c).

There is nothing to set. The state is a sum, so that phases in any grouping give the same classifier.

Differences:

1. The network does not go on learning, and no metric is learnt on top of it.
2. The mean is that of all training images, not of exemplars; mirror images are the recipe's choice.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from acil.methods.base import Phase
from acil.methods.class_means import MeansMethod, Scorer, by_class


class NCM(MeansMethod):
    """Nearest class mean by cosine, on frozen features."""

    grouping_free = True

    def scorer(self) -> Scorer:
        directions = functional.normalize(self.means.means)
        return lambda rows: functional.normalize(rows) @ directions.mT

    def _learn(self, features: Tensor, phase: Phase) -> None:
        for label, rows in by_class(features, phase.labels, self.context.device):
            self.means.add(label, functional.normalize(rows))
