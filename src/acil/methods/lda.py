"""LDA: linear discriminant analysis from exact sums, the order-free relative of SLDA.

Classes are Gaussian with means μ_c and one covariance. Both follow from sums over all samples:

    S = Σ (x − μ_y)(x − μ_y)ᵀ,    Σ = S / n,    Σ_s = (1 − s) Σ + s (tr Σ / d) I,
    w_c = Σ_s⁻¹ μ_c,    b_c = −½ μ_cᵀ Σ_s⁻¹ μ_c (+ log(n_c / n)),    ŷ = argmax_c w_c·x + b_c.

This is what scikit-learn's LinearDiscriminantAnalysis(solver="lsqr", shrinkage=s) has on all data at
once.

Settings: ``lda_shrinkage`` s = 1e-4, SLDA's number, here relative to the mean variance; ``lda_priors``,
"equal" (default, as SLDA) or "empirical" (adds the logarithm of the class's share).

Differences from SLDA (Hayes and Kanan, *Lifelong Machine Learning with Deep Streaming Linear
Discriminant Analysis*, CVPR workshops 2020):

1. S is the exact within-class scatter around the final means. SLDA sums distances to the means of the
   moment, which begin at 0; its result depends on the order of samples, this one only on their set.
2. Shrinkage is relative to the mean variance, so that scaling the features changes nothing. Without any
   variance (one sample a class) it is the nearest mean.
3. There is no separate estimate on the base phase: all samples count alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from acil.methods.class_means import MeansMethod, Scorer
from acil.training.fields import Settings


@dataclass(frozen=True)
class LDASettings(Settings):
    """What can be set, see above."""

    lda_shrinkage: Annotated[float, "from 0 to 1"] = 1e-4
    lda_priors: Literal["equal", "empirical"] = "equal"


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
