"""AnaCP: a ridge regression onto spread-out class means, and a second one on Gaussian draws behind it.

Paper: Momeni et al., *AnaCP: Toward Upper-Bound Continual Learning via Analytic Contrastive Projection*,
2025 (arXiv 2511.13880).

Features are scaled to length 1. With μ_k the class means, S the covariance within all classes, and
Z = gelu(x W_1), W_1 ~ N(0, 1):

    targets   (M − 1 m̄ᵀ) S^-½ = U diag(s) Vᵀ,    T = U diag(s + 1) Vᵀ S^-½, rows scaled to length 1
    first     o(x) = Z (Σ ZᵀZ + γI)⁻¹ Σ Zᵀ Y T, scaled to length 1
    second    ridge regression onto one-hot labels of gelu(o W_2), learnt from o of features that are
              drawn from N(μ_k, S), equally many of each class, whenever it predicts.

As targets enter linearly, the first regression is ACIL's onto one-hot labels, times T. All that is kept
are sums, so the grouping into phases does not matter.

Settings: ``expansion_size``, ``gamma`` and ``dtype`` of both regressions, ``anacp_draws``,
``anacp_shrinkage``.

Differences from the original:

1. S is exact (the published code counts a new batch twice), and shrunk as in ``lda``, which keeps S^-½
   finite.
2. T ends with S^-½, as published; the inverse of the whitening would be S^½.
3. Draws and W_2 follow from the run's seed and the class alone: predicting twice gives the same.
4. Centred means have an empty direction if there are no more classes than features. Nothing is added
   there, where rounding would decide what it is.
5. One first regression; the published code can take the mean of several.
6. Defaults of the published code were not found: width and γ are the recipe's, 100 draws a class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn import functional

from acil.bench.methods.acil import classifier_memory, learn_phase, new_classifier
from acil.bench.methods.base import Context, MemoryUse, Phase
from acil.bench.methods.class_means import ClassMeans, by_class
from acil.bench.methods.frozen_features import FrozenMethod
from acil.bench.training.settings import Settings
from acil.core.classifier import ACILClassifier, learnt_of
from acil.core.files import pack, unpack
from acil.core.inputs import Rows
from acil.errors import NotFittedError

_PREFIX = "means."
#: Singular values below this share of the largest are rounding.
_LEAST = 1e-9


@dataclass(frozen=True)
class AnaCPSettings(Settings):
    """What can be set beside the settings of ACIL."""

    anacp_draws: Annotated[int, "at least 1"] = 100  # of each class
    anacp_shrinkage: Annotated[float, "above 0 and at most 1"] = 1e-4


def spread_targets(means: Tensor, covariance: Tensor) -> Tensor:
    """Return T for class means (classes, d) and a covariance (d, d) that is positive definite."""
    values, vectors = torch.linalg.eigh(covariance)
    whitening = (vectors * values.rsqrt()) @ vectors.mT
    U, s, Vh = torch.linalg.svd((means - means.mean(dim=0)) @ whitening, full_matrices=False)
    positive = s > _LEAST * s.max()
    return functional.normalize((U * (s + positive.to(s)) * positive) @ Vh @ whitening)


class AnaCP(FrozenMethod):
    """Two ridge regressions, of which the second learns from draws."""

    grouping_free = True
    settings_type = AnaCPSettings
    analytic_heads = 2

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.first = new_classifier(context, activation="gelu")
        self.means = ClassMeans(context.device, with_scatter=True)
        #: The second regression and T, until the next phase.
        self._second: tuple[ACILClassifier, Tensor] | None = None

    def _learn(self, features: Tensor, phase: Phase) -> None:
        rows = functional.normalize(features)
        learn_phase(self.first, rows, phase)
        self._second = None
        for label, rows_of_class in by_class(rows, phase.labels, self.context.device):
            self.means.add(label, rows_of_class)

    def _predict(self, features: Tensor) -> Tensor:
        if len(features) == 0:
            return self.means.labels[:0]
        if not len(self.means.labels):
            raise NotFittedError("This method has not learnt any class yet. Let it learn a phase first.")
        classifier, targets = self._second or self._solved()
        self._second = classifier, targets
        labels: Tensor = classifier.predict(self._outputs(functional.normalize(features), targets))
        return labels.cpu()

    def _solved(self) -> tuple[ACILClassifier, Tensor]:
        """Return the second regression, learnt from draws, and T."""
        covariance, share = self.means.covariance(), self.settings.anacp_shrinkage
        unit = float(covariance.diagonal().mean()) or 1.0
        covariance.mul_(1 - share).diagonal().add_(share * unit)
        # In the order of the regression's columns
        order = torch.argsort(self.means.labels)
        means, labels = self.means.means[order.to(self.means.device)], self.means.labels[order]
        targets = spread_targets(means, covariance)
        L, draws = torch.linalg.cholesky(covariance), []
        for label, mean in zip(labels.tolist(), means, strict=True):
            generator = torch.Generator().manual_seed(self.context.seed_for("draws", label))
            size = self.settings.anacp_draws, len(mean)
            noise = torch.randn(size, generator=generator, dtype=torch.float64)
            draws.append(mean + noise.to(mean) @ L.mT)
        second = new_classifier(
            self.context, activation="gelu", random_state=self.context.seed_for("second") % 2**31
        )
        outputs = self._outputs(torch.cat(draws), targets)
        return second.fit(outputs, labels.repeat_interleave(self.settings.anacp_draws)), targets

    def _outputs(self, rows: Tensor, targets: Tensor) -> Tensor:
        """Return o of rows (n, d)."""
        model = learnt_of(self.first).model
        weights = model.weights()
        blocks = Rows(rows).blocks(model.block_rows, model.precision.products, model.device)
        scores = model.scores(blocks, weights)
        outputs = [functional.normalize(block.double() @ targets.to(model.device)) for block in scores]
        return torch.cat(outputs) if outputs else rows.double()

    def _memory(self) -> MemoryUse:
        """Count the first regression and the means, and the weights of both regressions, and T."""
        use = classifier_memory(self.first)
        return replace(
            use,
            statistics=use.statistics + self.means.nbytes,
            weights=2 * use.weights + self.means.means.nbytes,
        )

    def _state(self) -> dict[str, Any]:
        means = {_PREFIX + name: value for name, value in self.means.state_dict().items()}
        return {**pack(self.first), **means}

    def _load(self, state: Mapping[str, Any]) -> None:
        first = {name: value for name, value in state.items() if not name.startswith(_PREFIX)}
        self.first = unpack(first, device=str(self.context.device))
        self.means.load_state_dict(
            {n.removeprefix(_PREFIX): value for n, value in state.items() if n.startswith(_PREFIX)}
        )
        self._second = None
