"""LDA and SLDA: linear discriminant analysis on frozen features, from exact sums or sample by sample.

Classes are Gaussian with means μ_c and one covariance Σ. Both methods shrink it to Σ_s, and

    w_c = Σ_s⁻¹ μ_c,    b_c = −½ μ_cᵀ Σ_s⁻¹ μ_c,    ŷ = argmax_c w_c·x + b_c.

``slda`` is that of Hayes and Kanan, *Lifelong Machine Learning with Deep Streaming Linear Discriminant
Analysis*, CVPR workshops 2020. Base phase: μ_c, and Σ by the oracle approximation of Chen et al. (OAS)
on class-centred features. Afterwards, for the t-th sample x of class y (t counts from the number of base
samples):

    Σ ← (t Σ + t/(t+1) (x − μ_y)(x − μ_y)ᵀ) / (t + 1),    then  μ_y ← (n_y μ_y + x) / (n_y + 1);
    Σ_s = (1 − ε) Σ + ε I.

The mean of a class that has no sample yet is 0, so its first sample adds the raw x xᵀ.

``lda`` is its relative that does not depend on order. Everything follows from sums over all samples:

    S = Σ (x − μ_y)(x − μ_y)ᵀ,    Σ = S / n,    Σ_s = (1 − s) Σ + s (tr Σ / d) I.

This is what scikit-learn's LinearDiscriminantAnalysis(solver="lsqr", shrinkage=s) has on all data at
once.

Differences of ``slda`` from the original:

1. No loop over samples. S = t Σ grows by Σ t/(t+1) δ δᵀ with δ = x − (mean of the earlier samples of
   its class), and those means are running sums: one product for each block of samples, equal to the
   recursion up to rounding.
2. Samples come in the order of the data set. The result depends on that order, as the original's does.
3. Without a base phase Σ begins at 0 (the recursion multiplies whatever it begins with by t = 0).
4. float64 instead of float32.

Differences of ``lda`` from ``slda``:

1. S is the exact within-class scatter around the final means. SLDA sums distances to the means of the
   moment, which begin at 0.
2. Shrinkage is relative to the mean variance, so that scaling the features changes nothing. Without any
   variance (one sample a class) it is the nearest mean.
3. There is no separate estimate on the base phase: all samples count alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from acil.bench.methods.base import Phase
from acil.bench.methods.class_means import MeansMethod, Scorer
from acil.bench.methods.frozen_features import blocks
from acil.bench.training.settings import Settings
from acil.core.linalg import add_gram_


@dataclass(frozen=True)
class LDASettings(Settings):
    """What can be set for ``lda``."""

    lda_shrinkage: Annotated[float, "from 0 to 1"] = 1e-4  # s
    #: "empirical" adds log(n_c / n), the logarithm of the class's share, to b_c; SLDA does not.
    lda_priors: Literal["equal", "empirical"] = "equal"


@dataclass(frozen=True)
class SLDASettings(Settings):
    """What can be set for ``slda``."""

    slda_shrinkage: Annotated[float, "above 0 and at most 1"] = 1e-4  # ε, from the authors' code


def linear_discriminant(covariance: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights (classes, d) and intercepts (classes,) that rank classes by their Gaussian density.

    The covariance Σ of shape (d, d) has both triangles; directions without variance do not count. The
    means μ_c have shape (classes, d).
    """
    # w_c = Λ μ_c and b_c = −½ μ_cᵀ Λ μ_c with Λ = pinv(Σ)
    W = means @ torch.linalg.pinv(covariance, hermitian=True)
    return W, (W * means).sum(dim=1).mul_(-0.5)


class LDA(MeansMethod):
    """Linear discriminant analysis on frozen features, from sums."""

    grouping_free = True
    with_scatter = True
    settings_type = LDASettings

    def scorer(self) -> Scorer:
        share, covariance = self.settings.lda_shrinkage, self.means.covariance()
        # 1 where there is no variance at all: then the nearest mean is the best guess.
        unit = float(covariance.diagonal().mean()) or 1.0
        covariance.mul_(1 - share).diagonal().add_(share * unit)
        W, b = linear_discriminant(covariance, self.means.means)
        if self.settings.lda_priors == "empirical":
            b = b + torch.log(self.means.counts.to(b) / self.means.n_samples)
        return lambda rows: rows @ W.mT + b


class SLDA(MeansMethod):
    """Streaming linear discriminant analysis on frozen features; ``means.scatter`` is t Σ."""

    with_scatter = True
    classes_return = True
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
