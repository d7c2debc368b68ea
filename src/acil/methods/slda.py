"""SLDA: linear discriminant analysis with a running covariance, sample by sample.

Paper: Hayes and Kanan, *Lifelong Machine Learning with Deep Streaming Linear Discriminant Analysis*,
CVPR workshops 2020.

Base phase: class means μ_c, and Σ by the oracle approximation of Chen et al. (OAS) on class-centred
features. Afterwards, for the t-th sample x of class y (t counts from the number of base samples):

    Σ ← (t Σ + t/(t+1) (x − μ_y)(x − μ_y)ᵀ) / (t + 1),    then  μ_y ← (n_y μ_y + x) / (n_y + 1);
    Λ = pinv((1 − ε) Σ + ε I),    w_c = Λ μ_c,    b_c = −½ μ_cᵀ Λ μ_c,    ŷ = argmax_c w_c·x + b_c.

The mean of a class that has no sample yet is 0, so its first sample adds the raw x xᵀ.

Settings: ``slda_shrinkage`` ε = 1e-4, from the authors' code.

Differences from the original:

1. No loop over samples. S = t Σ grows by Σ t/(t+1) δ δᵀ with δ = x − (mean of the earlier samples of
   its class), and those means are running sums: one product for each block of samples, equal to the
   recursion up to rounding.
2. Samples come in the order of the data set. The result depends on that order, as the original's does.
3. Without a base phase Σ begins at 0 (the recursion multiplies whatever it begins with by t = 0).
4. float64 instead of float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from acil.analytic.linalg import add_gram_
from acil.methods.base import Phase
from acil.methods.class_means import MeansMethod, Scorer
from acil.methods.frozen_features import blocks
from acil.methods.lda import linear_discriminant
from acil.training.fields import Settings


@dataclass(frozen=True)
class SLDASettings(Settings):
    """What can be set, see above."""

    slda_shrinkage: Annotated[float, "above 0 and at most 1"] = 1e-4


class SLDA(MeansMethod):
    """Streaming linear discriminant analysis on frozen features; ``means.scatter`` is t Σ."""

    with_scatter = True
    settings_type = SLDASettings

    def scorer(self) -> Scorer:
        share = self.settings.slda_shrinkage
        matrix = self.means.covariance().mul_(1 - share)
        matrix.diagonal().add_(share)
        W, b = linear_discriminant(matrix, self.means.means)
        return lambda rows: rows @ W.mT + b

    def _learn(self, features: Tensor, phase: Phase) -> None:
        if phase.index == 0 and self.means.n_samples == 0:
            super()._learn(features, phase)
            n = self.means.n_samples
            self.means.scatter = oas_covariance(self.means.covariance(), n) * n
            return
        start = 0
        for rows in blocks(features, self.context.device):
            self._stream(rows, phase.labels[start : start + len(rows)])
            start += len(rows)

    def _stream(self, rows: Tensor, labels: Tensor) -> None:
        """Take one block of samples through the recursion, all at once."""
        t = self.means.n_samples + torch.arange(len(rows), dtype=torch.float64, device=rows.device)
        deltas = torch.empty_like(rows)
        for label in torch.unique(labels).tolist():
            members = torch.nonzero(labels == label).flatten().to(rows.device)
            deltas[members] = self._follow_mean(label, rows[members])
        # t Σ grows by t/(t+1) δ δᵀ a sample
        add_gram_(self.means.scatter, deltas * (t / (t + 1)).sqrt().unsqueeze(1))

    def _follow_mean(self, label: int, rows: Tensor) -> Tensor:
        """Add rows to the mean of their class; return their distances to the mean before each."""
        at = self.means.position(label, rows.shape[1])
        n, mean = int(self.means.counts[at]), self.means.means[at]
        seen = n + torch.arange(len(rows), dtype=torch.float64, device=rows.device).unsqueeze(1)
        totals = n * mean + rows.cumsum(dim=0)
        # The class's total before each sample; 0 before its first one, whose mean counts as 0.
        before = torch.cat([(n * mean).unsqueeze(0), totals[:-1]]) / seen.clamp(min=1)
        self.means.counts[at] += len(rows)
        self.means.means[at] = totals[-1] / (n + len(rows))
        return rows - before


def oas_covariance(empirical: Tensor, n: int) -> Tensor:
    """Return the covariance shrunk to a multiple of I by the oracle approximation of Chen et al. (2010).

    ``empirical`` is (1/n) Σ x xᵀ of n centred rows, both triangles.

    Examples
    --------
    >>> import torch
    >>> oas_covariance(torch.diag(torch.tensor([1.0, 0.0], dtype=torch.float64)), 99).diagonal()
    tensor([0.9800, 0.0200], dtype=torch.float64)
    """
    d = len(empirical)
    mu, alpha = float(empirical.trace()) / d, float(empirical.square().mean())
    # ρ = min(1, (α + μ²) / ((n + 1)(α − μ²/d))), Σ = (1 − ρ) E + ρ μ I
    excess = (n + 1) * (alpha - mu**2 / d)
    rho = min(1.0, (alpha + mu**2) / excess) if excess > 0 else 1.0
    shrunk = empirical * (1 - rho)
    shrunk.diagonal().add_(rho * mu)
    return shrunk
