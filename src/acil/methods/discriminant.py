"""Linear discriminants of Gaussian classes that share one covariance."""

from __future__ import annotations

import torch
from torch import Tensor


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
