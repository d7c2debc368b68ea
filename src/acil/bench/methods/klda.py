"""KLDA: linear discriminants on random Fourier features.

Paper: Momeni, Mazumder and Liu, *Continual Learning Using a Kernel-Based Method Over Foundation Models*,
AAAI 2025. With Ω ~ N(0, 1/σ²) and b ~ U(0, 2π),

    x̃ = √(2/D) cos(x Ω + b),    ŷ = argmax_c μ_cᵀ Σ⁻¹ x̃ − ½ μ_cᵀ Σ⁻¹ μ_c,

μ_c the mean of x̃ over class c and Σ the scatter within all classes: ``lda`` on features whose products
approximate a Gaussian kernel of width σ. All of it follows from sums, given Ω and b.

Settings: ``expansion_size`` (D; 5000 as published, whatever the recipe has), ``klda_shrinkage``.

Differences from the original:

1. σ is the median distance of two features of the first phase. The paper has a σ for each network.
2. Σ is the covariance, shrunk towards a multiple of I as in ``lda``, and factorized. The published code
   takes the pseudo-inverse of the scatter.
3. A class may come in several phases. The published code then depends on their order.
4. The factor √(2/D), which changes no answer, is left out. No ensemble of several Ω (KLDA-E).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from acil.bench.methods.base import Context, MemoryUse, Phase
from acil.bench.methods.class_means import MeansMethod, Scorer, by_class
from acil.bench.training.settings import Settings
from acil.core.expansion import MEASURED, Expansion
from acil.core.inputs import Rows
from acil.errors import InputError, NotFittedError

#: Width of the published code.
_WIDTH = 5_000
_PREFIX = "expansion."


@dataclass(frozen=True)
class KLDASettings(Settings):
    """What can be set beside the width."""

    klda_shrinkage: Annotated[float, "above 0 and at most 1"] = 1e-4


class KLDA(MeansMethod):
    """Linear discriminant analysis on random Fourier features."""

    grouping_free = True
    first_phase_matters = True
    with_scatter = True
    settings_type = KLDASettings
    expansion: Expansion | None = None

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.row_width = self.recorded_settings(context.settings)["expansion_size"]
        if self.row_width is None:
            raise InputError("klda needs a width. Give expansion_size a number, or use lda.")

    @classmethod
    def recorded_settings(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the width, which is not the recipe's."""
        return {"expansion_size": settings.get("expansion_size", _WIDTH)}

    def scorer(self) -> Scorer:
        covariance, means = self.means.covariance(), self.means.means
        share, unit = self.settings.klda_shrinkage, float(covariance.diagonal().mean()) or 1.0
        covariance.mul_(1 - share).diagonal().add_(share * unit)
        # w_c = Σ⁻¹ μ_c and b_c = −½ μ_cᵀ Σ⁻¹ μ_c
        W = torch.cholesky_solve(means.mT, torch.linalg.cholesky(covariance))
        b = (means.mT * W).sum(dim=0) / -2
        return lambda rows: self._expanded(rows) @ W + b

    def _learn(self, features: Tensor, phase: Phase) -> None:
        if self.expansion is None:
            seed = self.context.seed
            samples = Rows(features).drawn(MEASURED, None, seed)
            self.expansion = Expansion.fitted(samples, self.row_width, "fourier", seed)
        for label, rows in by_class(features, phase.labels, self.context.device):
            self.means.add(label, self._expanded(rows))

    def _expanded(self, rows: Tensor) -> Tensor:
        if self.expansion is None:
            raise NotFittedError("klda has not learnt any class yet. Let it learn a phase first.")
        return self.expansion(rows)

    def _memory(self) -> MemoryUse:
        use, expansion = super()._memory(), self._state()
        n_bytes = sum(value.nbytes for name, value in expansion.items() if name.startswith(_PREFIX))
        return replace(use, weights=use.weights + n_bytes)

    def _state(self) -> dict[str, Any]:
        projection: dict[str, Any] = {}
        if self.expansion is not None:
            projection = {"projection": self.expansion.projection, "bias": self.expansion.bias}
        return {**super()._state(), **{_PREFIX + name: value for name, value in projection.items()}}

    def _load(self, state: Mapping[str, Any]) -> None:
        super()._load(state)
        if _PREFIX + "projection" in state:
            projection, bias = (state[_PREFIX + name].clone() for name in ("projection", "bias"))
            self.expansion = Expansion(projection, "fourier", len(projection), None, bias)
