"""Linear discriminants of Gaussian classes that share one covariance."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from acil.methods.base import Context, MemoryUse
from acil.methods.class_means import ScatteredMeans
from acil.methods.frozen import FrozenMethod, highest


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


def oas_covariance(scatter: Tensor, n: int) -> Tensor:
    """Return the covariance shrunk to a multiple of I by the oracle approximation of Chen et al. (2010).

    Parameters
    ----------
    scatter : Tensor of shape (d, d), float64
        Σ x xᵀ of n centred rows, both triangles.
    n : int

    Examples
    --------
    >>> import torch
    >>> oas_covariance(torch.diag(torch.tensor([99.0, 0.0], dtype=torch.float64)), 99).diagonal()
    tensor([0.9800, 0.0200], dtype=torch.float64)
    """
    d, empirical = scatter.shape[0], scatter / n
    mu, alpha = float(empirical.trace()) / d, float(empirical.square().mean())
    # ρ = min(1, (α + μ²) / ((n + 1)(α − μ²/d))), Σ = (1 − ρ) E + ρ μ I
    excess = (n + 1) * (alpha - mu**2 / d)
    rho = min(1.0, (alpha + mu**2) / excess) if excess > 0 else 1.0
    shrunk = empirical * (1 - rho)
    shrunk.diagonal().add_(rho * mu)
    return shrunk


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
