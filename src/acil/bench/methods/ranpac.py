"""RanPAC: ridge regression on a random projection, with a strength that each phase chooses anew.

Paper: McDonnell et al., *RanPAC: Random Projections and Pre-trained Models for Continual Learning*,
NeurIPS 2023. The head is ACIL's, X = relu(X_cnn W_fe) with W_fe ~ N(0, 1), 10,000 wide. In each phase γ
is chosen from 10^-8 … 10^8: the one with the least squared error on a fifth of the phase's samples, when
the other four fifths of them alone are learnt. The weights follow from the sums of all phases.

The choice knows the present phase alone, so the result depends on the grouping into phases, and a last
phase of few classes decides for all. ``acil`` with ``gamma="auto"`` is the same head with a choice from
the sums of all samples.

Settings: ``expansion_size`` (10,000, whatever the recipe has), ``dtype``.

Differences from the original:

1. The network is not adapted to the first phase, which most of the published gain comes from.
2. Sums and products are in float64. The eigenvalues of the smaller side give the errors of all 17 values
   of γ at once.
3. The fifth is drawn by the run's seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from acil.bench.methods.acil import ACIL
from acil.bench.methods.base import Context, Phase
from acil.bench.methods.frozen_features import FrozenPlanning
from acil.core.classifier import learnt_of
from acil.core.inputs import Rows
from acil.core.linalg import add_gram_, mirror_

#: Width, and values of γ that are tried, of the published code.
_WIDTH = 10_000
RIDGES = tuple(10.0**power for power in range(-8, 9))
#: Share of a phase that the weights for the choice are learnt from.
_LEARNT = 0.8


class RanPAC(ACIL):
    """Ridge regression on a random projection, with γ chosen by the present phase."""

    planning = FrozenPlanning
    grouping_free = False

    def __init__(self, context: Context) -> None:
        super().__init__(context, **self.recorded_settings(context.settings))

    @classmethod
    def recorded_settings(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the width, which is not the recipe's."""
        return {"expansion_size": settings.get("expansion_size", _WIDTH)}

    def _learn(self, features: Tensor, phase: Phase) -> None:
        super()._learn(features, phase)
        n = len(features)
        generator = torch.Generator().manual_seed(self.context.seed_for("choice", phase.n_seen, n))
        order = torch.randperm(n, generator=generator)
        learnt, held_out = order[: int(_LEARNT * n)], order[int(_LEARNT * n) :]
        if len(learnt):
            columns = torch.unique(phase.labels, return_inverse=True)[1]
            targets = torch.eye(int(columns.max()) + 1, dtype=torch.float64)[columns]
            parts = [(features[part], targets[part]) for part in (learnt, held_out)]
            errors = self._errors(*parts[0], *parts[1], RIDGES)
            self.classifier.set_gamma(RIDGES[errors.index(min(errors))])

    def _errors(
        self, X: Tensor, Y: Tensor, queries: Tensor, answers: Tensor, ridges: Sequence[float]
    ) -> list[float]:
        """Return the squared errors on queries of regressions with these γ, learnt from X and Y."""
        d = learnt_of(self.classifier).model.expansion.size
        few = torch.cat(list(self._expanded(X))) if len(X) < d else None
        if few is not None:
            # x_q Xᵀ (X Xᵀ + γI)⁻¹ Y
            values, Q = torch.linalg.eigh(few @ few.mT)
            right = Q.mT @ Y.to(Q)
        else:
            # x_q (XᵀX + γI)⁻¹ XᵀY
            gram = torch.zeros(d, d, dtype=torch.float64, device=self.context.device)
            moment = gram.new_zeros(d, Y.shape[1])
            for rows, targets in zip(self._expanded(X), self._split(Y), strict=True):
                add_gram_(gram, rows)
                moment += rows.mT @ targets.to(rows)
            values, Q = torch.linalg.eigh(mirror_(gram))
            right = Q.mT @ moment
        values, errors = values.clamp(min=0), torch.zeros(len(ridges), dtype=torch.float64)
        for rows, targets in zip(self._expanded(queries), self._split(answers), strict=True):
            projected = (rows if few is None else rows @ few.mT) @ Q
            for place, ridge in enumerate(ridges):
                error = (projected / (values + ridge)) @ right - targets.to(projected)
                errors[place] += float(error.square().sum())
        return errors.tolist()

    def _expanded(self, features: Tensor) -> Iterator[Tensor]:
        model = learnt_of(self.classifier).model
        blocks = Rows(features).blocks(model.block_rows, torch.float64, model.device)
        return map(model.expansion, blocks)

    def _split(self, targets: Tensor) -> tuple[Tensor, ...]:
        return torch.split(targets, learnt_of(self.classifier).model.block_rows)
