"""NCM, and what it shares with all methods whose state is counts, means and perhaps scatter of classes.

NCM takes the class whose mean feature points the same way: the nearest class mean of Mensink et al.,
*Distance-Based Image Classification: Generalizing to New Classes at Near-Zero Cost*, TPAMI 2013, and of
iCaRL's predictions, on a network that is frozen after the base phase. Let f(x) be the feature of an
image, scaled to length 1:

    μ_c = (1/n_c) Σ f(x),    ŷ = argmax_c cos(f(x), μ_c).

There is nothing to set. The state is a sum, so that phases in any grouping give the same classifier.

Differences:

1. The network does not go on learning, and no metric is learnt on top of it.
2. The mean is that of all training images, not of exemplars; mirror images are the recipe's choice.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from acil.bench.methods.base import Context, MemoryUse, Phase
from acil.bench.methods.frozen_features import FrozenMethod, blocks
from acil.core.linalg import add_gram_, mirror_, pack_lower, unpack_lower_
from acil.errors import NotFittedError


class ClassMeans:
    """Counts n_c and means μ_c, in float64, of classes in the order in which they came.

    They depend only on the set of rows added: classes may come back, and their rows in any grouping.
    ``with_scatter`` keeps the within-class scatter S = Σ (x − μ_y)(x − μ_y)ᵀ, too. It is summed around
    the means: Σ x xᵀ with the means taken off at the end would lose digits.
    """

    def __init__(self, device: torch.device, with_scatter: bool = False) -> None:
        self.device, self.with_scatter = device, with_scatter
        # (classes,), on the CPU
        self.labels = torch.zeros(0, dtype=torch.int64)
        self.counts = torch.zeros(0, dtype=torch.int64)
        self.means = torch.zeros(0, 0, dtype=torch.float64, device=device)  # (classes, d)
        #: Lower triangle of S, the upper one is unspecified; (0, 0) if it is not kept.
        self.scatter = self.means

    @property
    def n_samples(self) -> int:
        """Number of rows added."""
        return int(self.counts.sum())

    @property
    def nbytes(self) -> int:
        """Bytes of counts, means and one triangle of the scatter."""
        d = len(self.scatter)
        return 8 * (self.counts.numel() + self.means.numel() + d * (d + 1) // 2)

    def position(self, label: int, width: int) -> int:
        """Return the position of a class; a new one is made, with no rows yet, of this width."""
        positions = torch.nonzero(self.labels == label).flatten().tolist()
        if positions:
            return int(positions[0])
        if self.with_scatter and not len(self.labels):
            self.scatter = self.means.new_zeros(width, width)
        self.labels = torch.cat([self.labels, torch.tensor([label])])
        self.counts = torch.cat([self.counts, torch.tensor([0])])
        self.means = torch.cat([self.means.reshape(-1, width), self.means.new_zeros(1, width)])
        return len(self.labels) - 1

    def add(self, label: int, rows: Tensor) -> Tensor:
        """Add rows of one class, (k, d), float64, on the device, at least one.

        Returns rows whose Gram matrix is what the scatter of the class grows by.
        """
        at = self.position(label, rows.shape[1])
        n, k, mean = int(self.counts[at]), len(rows), rows.mean(dim=0)
        growth, jump = rows - mean, mean - self.means[at]
        self.counts[at] += k
        self.means[at] += jump * (k / (n + k))
        if n:
            # With n old rows of mean μ and k new ones of mean m, the scatter grows by
            # Σ (x − m)(x − m)ᵀ + nk / (n + k) (m − μ)(m − μ)ᵀ: one more row.
            growth = torch.cat([growth, (jump * (n * k / (n + k)) ** 0.5).unsqueeze(0)])
        if self.with_scatter:
            add_gram_(self.scatter, growth)
        return growth

    def covariance(self) -> Tensor:
        """Return both triangles of S / n, in new memory."""
        return mirror_(self.scatter.clone()) / self.n_samples

    def state_dict(self) -> dict[str, Any]:
        """Return everything, on the CPU; of the scatter one triangle."""
        state = {"classes": self.labels, "counts": self.counts, "means": self.means.cpu()}
        return {**state, "scatter": pack_lower(self.scatter)} if self.with_scatter else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.labels, self.counts = state["classes"].clone(), state["counts"].clone()
        self.means = state["means"].clone().to(self.device)
        if self.with_scatter:
            d = self.means.shape[1]
            self.scatter = unpack_lower_(state["scatter"], self.means.new_zeros(d, d))


#: Turns rows of shape (n, d), float64, into scores of shape (n, classes).
Scorer = Callable[[Tensor], Tensor]


class MeansMethod(FrozenMethod):
    """A method that goes on from class means; the class with the highest score wins."""

    #: Whether one scatter of all classes is kept, from which weights of each class are solved.
    with_scatter: ClassVar[bool] = False
    #: Width that rows grow to while they are scored.
    row_width = 1

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.means = ClassMeans(context.device, self.with_scatter)

    @abstractmethod
    def scorer(self) -> Scorer:
        """Return the scores of the classes seen so far, in the order of ``means.labels``."""

    def _state(self) -> dict[str, Any]:
        return self.means.state_dict()

    def _load(self, state: Mapping[str, Any]) -> None:
        self.means.load_state_dict(state)

    def _learn(self, features: Tensor, phase: Phase) -> None:
        for label, rows in by_class(features, phase.labels, self.context.device):
            self.means.add(label, rows)

    def _predict(self, features: Tensor) -> Tensor:
        labels = self.means.labels
        if len(labels) == 0:
            raise NotFittedError("This method has not learnt any class yet. Let it learn a phase first.")
        score, rows = (
            self.scorer(),
            blocks(features, self.context.device, max(len(labels), self.row_width)),
        )
        return labels[torch.cat([score(block).argmax(dim=1).cpu() for block in rows])]

    def _memory(self) -> MemoryUse:
        """Count means and one triangle of the scatter, and the weights solved from them."""
        weights = self.means.means.numel() + len(self.means.labels) if self.with_scatter else 0
        return MemoryUse(statistics=self.means.nbytes, weights=8 * weights)


def by_class(features: Tensor, labels: Tensor, device: torch.device) -> Iterator[tuple[int, Tensor]]:
    """Yield each class, in the order of labels, with its rows in their own order, float64."""
    for label in torch.unique(labels).tolist():
        yield label, features[labels == label].to(device=device, dtype=torch.float64)


class NCM(MeansMethod):
    """Nearest class mean by cosine, on frozen features."""

    grouping_free = True

    def scorer(self) -> Scorer:
        directions = functional.normalize(self.means.means)
        return lambda rows: functional.normalize(rows) @ directions.mT

    def _learn(self, features: Tensor, phase: Phase) -> None:
        for label, rows in by_class(features, phase.labels, self.context.device):
            self.means.add(label, functional.normalize(rows))
