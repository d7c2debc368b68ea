"""GKEAL: ACIL, with Gaussian kernels around training features in place of the random projection.

Paper: Zhuang et al., *GKEAL: Gaussian Kernel Embedded Analytic Learning for Few-Shot Class Incremental
Task*, CVPR 2023.

The expanded features are φ_j(x) = exp(−‖x − c_j‖² / (2 σ²)) for D centres c_j. Everything else is ACIL:
exact, given the centres. **The centres are training features**: whoever has the state has them, records
count them as samples, and `acil.privacy` refuses such a model.

Settings: those of ``acil``; ``gamma`` is 0.1 as published, whatever the recipe has: kernels lie between
0 and 1 at any scale of the features.

Differences from the original:

1. σ is the median distance of two features of the first phase. The published code has σ = 10 for its own
   networks, which says nothing about features of another scale.
2. The centres are a random part of the first phase, drawn without replacement. The published code takes
   the first rows that its loader gives.
3. With fewer samples than D in the first phase, each is a centre, and D is their number. The published
   code adds random signed combinations, whose divisor can be near zero.
4. No augmented copies of few-shot samples, which the paper has and its code has not.
5. Sums and one factorization, as ``acil``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from acil.bench.methods.acil import ACIL
from acil.bench.methods.base import Context, MemoryUse, Phase
from acil.bench.methods.frozen_features import FrozenPlanning
from acil.errors import InputError

#: γ of the published code.
_GAMMA = 0.1


class GKEAL(ACIL):
    """ACIL on kernels around features of the first phase."""

    # Not ACIL's: processes that share a phase would have different centres, and so would joint learning.
    planning = FrozenPlanning
    first_phase_matters = True

    def __init__(self, context: Context) -> None:
        own = self.recorded_settings(context.settings)
        super().__init__(context, activation="gaussian", **own)
        if self.parameters["expansion_size"] is None:
            raise InputError("gkeal needs centres. Give expansion_size a number.")

    @classmethod
    def recorded_settings(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return γ, which is not the recipe's."""
        return {"gamma": settings.get("gamma", _GAMMA)}

    def _learn(self, features: Tensor, phase: Phase) -> None:
        classifier = self.classifier
        if not classifier.__sklearn_is_fitted__() and classifier.expansion_size is not None:
            classifier.expansion_size = min(classifier.expansion_size, len(features))
        super()._learn(features, phase)

    def _memory(self) -> MemoryUse:
        """Count the centres as what they are: samples."""
        use, centres = super()._memory(), self.classifier.stored_bytes()["projection"]
        return replace(use, samples=centres, weights=use.weights - centres)
