"""DS-AL: ACIL, and a second ridge regression that learns what the first one leaves over.

Paper: Zhuang et al., *DS-AL: A Dual-Stream Analytic Learning for Exemplar-Free Class-Incremental
Learning*, AAAI 2024.

Main stream: ACIL on X = relu(X_cnn W_fe), with weights W. Compensation stream: Z = tanh(s X_cnn W_fe),
the same projection at the scale s = 1 / √(3 features) of the authors' code, regressed onto what W, as it
is after the phase, leaves over of the phase's own targets, with the columns of classes of earlier phases
set to zero ("previous label cleansing"):

    V = (Σ_k Z_kᵀ Z_k + γ_C I)⁻¹ Σ_k Z_kᵀ Ỹ_k,    Ỹ_k = [0, (Y_k − X_k W)_new],    scores X W + C Z V.

The targets depend on the weights of the moment, so the result depends on the grouping into phases:
unlike ACIL, it can be neither merged nor made to forget.

Differences from the original:

1. The compensation stream keeps the sums Σ ZᵀZ and Σ ZᵀỸ and solves by Cholesky, where the paper
   updates the inverse: the same solution without its rounding.
2. Residuals are taken once a phase, after the main stream has learnt all of it, as in the paper's
   formulas. The published code does so after each batch.
3. Without an expansion the second stream sees tanh(X_cnn).
4. C is the paper's 0.6 of CIFAR-100 for all data, unless it is set; on ImageNet the paper has 1.5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from acil.bench.methods.acil import classifier_memory, learn_phase, new_classifier
from acil.bench.methods.base import Context, MemoryUse, Phase
from acil.bench.methods.frozen_features import FrozenMethod
from acil.bench.training.settings import Settings
from acil.core.cholesky import cholesky_
from acil.core.classifier import learnt_of
from acil.core.expansion import AnalyticModel
from acil.core.files import pack, unpack
from acil.core.inputs import Rows
from acil.core.linalg import add_gram_, pack_lower, solve_lower, spread, unpack_lower_

_PREFIX = "compensation."


@dataclass(frozen=True)
class DSALSettings(Settings):
    """What can be set beside the settings of ACIL, which are the main stream's."""

    ds_al_compensation: Annotated[float, "at least 0"] = 0.6  # C
    ds_al_gamma: Annotated[float | None, "at least 0"] = None  # γ_C; None: the main stream's γ times s²


class DSAL(FrozenMethod):
    """Dual-stream analytic learning on frozen features."""

    settings_type = DSALSettings
    analytic_heads = 2

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.main = new_classifier(context)
        #: Σ ZᵀZ (lower triangle), Σ ZᵀỸ and V, with a column for each class of the main stream.
        self.gram = self.moment = self.coef = torch.zeros(0, 0, dtype=torch.float64)

    def _state(self) -> dict[str, Any]:
        second = {"gram": pack_lower(self.gram), "moment": self.moment.cpu(), "coef": self.coef.cpu()}
        return pack(self.main) | {_PREFIX + name: tensor for name, tensor in second.items()}

    def _load(self, state: Mapping[str, Any]) -> None:
        first = {name: value for name, value in state.items() if not name.startswith(_PREFIX)}
        self.main = unpack(first, device=str(self.context.device))
        device = self._model().device
        self.moment = state[_PREFIX + "moment"].clone().to(device)
        self.coef = state[_PREFIX + "coef"].clone().to(device)
        d = len(self.moment)
        self.gram = unpack_lower_(state[_PREFIX + "gram"], self.moment.new_zeros(d, d))

    def scores(self, rows: Tensor) -> Tensor:
        """Return X W + C Z V for rows of shape (n, features), (n, classes)."""
        model = self._model()
        (main,) = model.scores([rows], model.weights())
        second: Tensor = self._second_rows(rows) @ self.coef.to(rows.dtype)
        return main.add_(second, alpha=self.settings.ds_al_compensation)

    def _learn(self, features: Tensor, phase: Phase) -> None:
        known = self.main.classes_ if self.moment.numel() else np.zeros(0, dtype=np.int64)
        learn_phase(self.main, features, phase)
        model, classes = self._model(), self.main.classes_
        self._grow(np.searchsorted(classes, known), len(classes))
        new = torch.from_numpy(~np.isin(classes, known)).to(model.device)
        columns = torch.from_numpy(np.searchsorted(classes, phase.labels.numpy()))
        parts = torch.split(columns, model.block_rows)
        for rows, places in zip(self._blocks(features), parts, strict=True):
            (scores,) = model.scores([rows], model.weights())
            targets = torch.zeros_like(scores)
            targets[torch.arange(len(rows)), places] = 1.0
            # Ỹ = Y − X W in the columns of new classes, 0 in the others
            left_over = (targets - scores) * new
            second = self._second_rows(rows)
            add_gram_(self.gram, second)
            self.moment += (second.mT @ left_over).to(self.moment)
        self._solve()

    def _grow(self, places: np.ndarray, n_classes: int) -> None:
        """Make room for new classes; column i moves to ``places[i]``."""
        model = self._model()
        if not self.moment.numel():
            d, dtype = model.expansion.size, model.precision.sums
            self.gram = torch.zeros(d, d, dtype=dtype, device=model.device)
            self.moment = torch.zeros(d, 0, dtype=dtype, device=model.device)
        self.moment = spread(self.moment, torch.from_numpy(places), n_classes)

    def _solve(self) -> None:
        gamma = self.settings.ds_al_gamma
        gamma = self.main.gamma_ * self._scale() ** 2 if gamma is None else gamma
        L = self.gram.clone()
        L.diagonal().add_(gamma)
        cholesky_(L, gamma)
        # V = (Σ ZᵀZ + γI)⁻¹ Σ ZᵀỸ
        self.coef = solve_lower(L, solve_lower(L, self.moment), transposed=True).contiguous()

    def _predict(self, features: Tensor) -> Tensor:
        labels = torch.from_numpy(self.main.classes_)
        best = [self.scores(rows).argmax(dim=1).cpu() for rows in self._blocks(features)]
        return labels[torch.cat(best)] if best else labels[:0]

    def _blocks(self, features: Tensor) -> Iterator[Tensor]:
        model = self._model()
        return Rows(features).blocks(model.block_rows, model.precision.products, model.device)

    def _second_rows(self, rows: Tensor) -> Tensor:
        return torch.tanh(self._scale() * self._model().expansion.project(rows))

    def _scale(self) -> float:
        """Return s: the authors draw W_fe from U(± 1/√features); at our N(0, 1) tanh saturates."""
        expansion = self._model().expansion
        return 1.0 if expansion.projection is None else 1 / math.sqrt(3 * expansion.in_features)

    def _model(self) -> AnalyticModel:
        return learnt_of(self.main).model

    def _memory(self) -> MemoryUse:
        """Count both streams: one triangle of each matrix, moments, weights, and the projection once."""
        main, d, number = classifier_memory(self.main), len(self.gram), self.gram.element_size()
        statistics = (d * (d + 1) // 2 + self.moment.numel()) * number
        return MemoryUse(
            statistics=main.statistics + statistics, weights=main.weights + self.coef.numel() * number
        )
