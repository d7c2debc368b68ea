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

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from acil.errors import InputError
from acil.methods.base import Context, MemoryUse, Phase, read_settings
from acil.methods.class_means import ScatteredMeans, by_class
from acil.methods.frozen_features import FrozenMethod, highest


@dataclass(frozen=True)
class LDASettings:
    """What can be set.

    Attributes
    ----------
    lda_shrinkage : float
        Share of the mean variance in the covariance, from 0 to 1.
    lda_priors : {"equal", "empirical"}
    """

    lda_shrinkage: float = 1e-4
    lda_priors: Literal["equal", "empirical"] = "equal"

    def __post_init__(self) -> None:
        if not 0 <= self.lda_shrinkage <= 1:
            raise InputError(f"lda_shrinkage must be from 0 to 1. Got {self.lda_shrinkage}.")


def linear_discriminant(covariance: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights and intercepts that rank classes by their Gaussian density.

    Parameters
    ----------
    covariance : Tensor of shape (d, d), float64
        Σ, both triangles. Directions without variance do not count.
    means : Tensor of shape (classes, d), float64
        μ_c.

    Returns
    -------
    W : Tensor of shape (classes, d)
    b : Tensor of shape (classes,)
    """
    # w_c = Λ μ_c and b_c = −½ μ_cᵀ Λ μ_c with Λ = pinv(Σ)
    W = means @ torch.linalg.pinv(covariance, hermitian=True)
    return W, (W * means).sum(dim=1).mul_(-0.5)


class DiscriminantMethod(FrozenMethod):
    """A method whose state is class means and one scatter, from which linear scores are solved.

    Parameters
    ----------
    context : Context
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.sums = ScatteredMeans(context.device)
        #: What `solve` returned; None when the sums have changed since.
        self.solved: tuple[Tensor, Tensor] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return counts, means and scatter; the weights follow from them."""
        return {**self.sums.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; the network comes from the base phase's checkpoint."""
        self.sums.load_state_dict(state)
        self.solved = None

    @abstractmethod
    def solve(self) -> tuple[Tensor, Tensor]:
        """Return W of shape (classes, d) and b of shape (classes,)."""

    def scores(self, rows: Tensor) -> Tensor:
        """Return w_c·x + b_c for rows of shape (n, d), (n, classes)."""
        if self.solved is None:
            self.solved = self.solve()
        W, b = self.solved
        return rows @ W.mT + b

    def _predict(self, features: Tensor) -> Tensor:
        return highest(self.scores, self.sums.labels, features, self.context.device)

    def _memory(self) -> MemoryUse:
        """Count means, one triangle of the scatter, and the weights solved from them."""
        weights = 8 * (self.sums.means.numel() + len(self.sums.labels))
        return MemoryUse(statistics=self.sums.nbytes, weights=weights)


class LDA(DiscriminantMethod):
    """Linear discriminant analysis on frozen features, from sums.

    Parameters
    ----------
    context : Context
    """

    grouping_free = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.settings = read_settings(LDASettings, context.settings)

    def solve(self) -> tuple[Tensor, Tensor]:
        """Return W of shape (classes, d) and b of shape (classes,)."""
        share = self.settings.lda_shrinkage
        covariance = self.sums.full_scatter() / self.sums.n_samples
        # 1 where there is no variance at all: then the nearest mean is the best guess.
        unit = float(covariance.diagonal().mean()) or 1.0
        covariance.mul_(1 - share).diagonal().add_(share * unit)
        W, b = linear_discriminant(covariance, self.sums.means)
        if self.settings.lda_priors == "empirical":
            b = b + torch.log(self.sums.counts.to(b) / self.sums.n_samples)
        return W, b

    def _learn(self, features: Tensor, phase: Phase) -> None:
        self.solved = None
        for label, rows in by_class(features, phase.labels, self.context.device):
            self.sums.add(label, rows)
