"""AIR and G-AIR: ACIL in which every class counts alike, whatever its number of samples.

Paper: Fang et al., *AIR: Analytic Imbalance Rectifier for Continual Learning*, 2024 (arXiv 2408.10349).
With the samples of class k numbered i, n_k of them, and π_k ∝ 1 / n_k:

    min_W  Σ_k π_k Σ_i ‖y_i − Wᵀ x_i‖² + γ ‖W‖².

The published code keeps Σ x xᵀ of every class, since n_k may still grow: C d² numbers (54 GB on
CIFAR-100). Both methods here keep one matrix, as ACIL does.

``air`` weighs the samples of class k by n̄ / n_k when they are learnt. This is exact where a class comes
in one phase, so that n_k is known: samples of a class that come later, in another phase, are refused,
and it would no longer be exact if samples were forgotten. n̄ is the mean number of samples of a class in
the first phase. Classes of equal size give ACIL.

``g-air`` takes samples of any class at any time. It is ACIL with ``class_balance=1``, which follows from
the sums: the scatter within all classes is pooled (`acil.core.scores.Pooled`). That is AIR where classes
share a covariance.

Settings, beyond the recipe's: those of ``acil``.

Differences from the original:

1. Its π_k have the mean 1 over all classes of the run, also those that are still to come; here n̄ is
   fixed in the first phase. The two are the same for another γ.
2. ``g-air`` pools the scatter of classes. The published code does the same for AIR and G-AIR, with a
   matrix for each class.
3. Sums and one factorization, as ``acil``; no bias of the regression, which fails in the published code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from acil.bench.methods.acil import ACIL, learn_phase
from acil.bench.methods.base import Context, Phase
from acil.bench.methods.frozen_features import FrozenPlanning
from acil.errors import InputError

_MEAN = "air.mean"


class AIR(ACIL):
    """ACIL with samples that are weighed by the size of their class."""

    # Not ACIL's: joint learning would have to know the weights, and a process the sizes of classes.
    planning = FrozenPlanning
    first_phase_matters = True
    classes_return = False
    #: n̄, once a phase was learnt
    mean = 0.0

    def _learn(self, features: Tensor, phase: Phase) -> None:
        labels, places, counts = torch.unique(phase.labels, return_inverse=True, return_counts=True)
        if self.mean:
            known = torch.from_numpy(self.classifier.classes_)
            if bool(torch.isin(labels, known).any()):
                again = labels[torch.isin(labels, known)].tolist()
                raise InputError(
                    f"air weighs a class by its size, and classes {again} have come before: their size "
                    "was another. Use g-air, or bring each class in one phase."
                )
        mean = self.mean or float(counts.double().mean())
        weights = mean / counts[places].double()
        learn_phase(self.classifier, features, phase, weights=weights)
        self.mean = mean

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), _MEAN: self.mean}

    def _load(self, state: Mapping[str, Any]) -> None:
        super()._load({name: value for name, value in state.items() if name != _MEAN})
        self.mean = float(state[_MEAN])


class GAIR(ACIL):
    """ACIL with scores of balanced classes, from the sums."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, class_balance=1.0)
