"""AEF-OCL: ACIL that fills up small classes with features drawn from a Gaussian, whenever it predicts.

Paper: Fang et al., *Online Analytic Exemplar-Free Continual Learning with Large Models for Imbalanced
Autonomous Driving Task*, IEEE Transactions on Vehicular Technology 2024.

Beside ACIL's sums it keeps mean μ_k and deviation σ_k of each class and dimension of the features, and
n_k. To predict, it draws n_max − n_k features of class k from N(μ_k, diag(s² σ_k²)), s the noise, learns
them, and forgets them again. Classes of equal size give ACIL.

Settings: those of ``acil``, and ``aef_ocl_noise`` (s; 1 in the published code).

Differences from the original:

1. Draws follow from the run's seed, the class and n_max alone, so that predictions do not depend on how
   often they are asked for, nor on the grouping into phases.
2. Deviations come from sums around the mean. The published code has E[x²] − μ², which rounding can make
   negative, and stops then. Of one sample the deviation is 0 in both.
3. Drawn features may be negative, where a ReLU leaves none; as in the published code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from acil.bench.methods.acil import ACIL
from acil.bench.methods.base import Context, MemoryUse, Phase
from acil.bench.methods.class_means import ClassMeans, by_class
from acil.bench.methods.frozen_features import FrozenPlanning
from acil.bench.training.settings import Settings
from acil.core.classifier import ACILClassifier

_PREFIX = "gaussians."


@dataclass(frozen=True)
class AEFOCLSettings(Settings):
    """What can be set beside the settings of ACIL."""

    aef_ocl_noise: Annotated[float, "at least 0"] = 1.0  # s


class AEFOCL(ACIL):
    """ACIL, and drawn features for what small classes lack."""

    planning = FrozenPlanning
    settings_type = AEFOCLSettings
    analytic_heads = 2

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.means = ClassMeans(context.device)
        #: Σ (x − μ_k)² of each class, (classes, d).
        self.squares = self.means.means
        self._balanced: ACILClassifier | None = None

    def drawn(self) -> tuple[Tensor, Tensor]:
        """Return features that make all classes as large as the largest one, and their labels."""
        counts, features = self.means.counts, []
        missing = counts.max() - counts
        deviations = (self.squares.cpu().T / (counts - 1).clamp(min=1)).T.sqrt()
        for label, lacking, mean, deviation in zip(
            self.means.labels.tolist(), missing.tolist(), self.means.means.cpu(), deviations, strict=True
        ):
            generator = torch.Generator().manual_seed(self.context.seed_for("drawn features", label))
            noise = torch.randn(lacking, len(mean), generator=generator, dtype=torch.float64)
            features.append(mean + self.settings.aef_ocl_noise * deviation * noise)
        return torch.cat(features), self.means.labels.repeat_interleave(missing)

    def _learn(self, features: Tensor, phase: Phase) -> None:
        super()._learn(features, phase)
        self._balanced = None
        for label, rows in by_class(features, phase.labels, self.context.device):
            growth = self.means.add(label, rows).square().sum(dim=0, keepdim=True)
            at = self.means.position(label, features.shape[1])
            if at == len(self.squares):
                self.squares = torch.cat([self.squares.reshape(-1, features.shape[1]), growth])
            else:
                self.squares[at] += growth[0]

    def _predict(self, features: Tensor) -> Tensor:
        if len(self.means.labels) == 0 or len(features) == 0:
            return super()._predict(features)
        if self._balanced is None:
            self._balanced = self.classifier.copy().compact()
            rows, labels = self.drawn()
            if len(rows):
                self._balanced.partial_fit(rows, labels)
        predicted: Tensor = self._balanced.predict(features)
        return predicted.cpu()

    def _memory(self) -> MemoryUse:
        use = super()._memory()
        return replace(use, statistics=use.statistics + self.means.nbytes + self.squares.nbytes)

    def _state(self) -> dict[str, Any]:
        values = {**self.means.state_dict(), "squares": self.squares.cpu()}
        return {**super()._state(), **{_PREFIX + name: value for name, value in values.items()}}

    def _load(self, state: Mapping[str, Any]) -> None:
        super()._load({name: value for name, value in state.items() if not name.startswith(_PREFIX)})
        values = {n.removeprefix(_PREFIX): value for n, value in state.items() if n.startswith(_PREFIX)}
        self.squares = values["squares"].clone().to(self.context.device)
        self.means.load_state_dict(values)
        self._balanced = None
