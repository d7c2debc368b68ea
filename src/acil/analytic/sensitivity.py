"""How much rounding of the sums shows in the scores: tried out on the factor, not bounded."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from acil.analytic.factor import CorrectedFactor

#: Random combinations of classes that are tried.
_TRIALS = 4


def score_change(
    factor: CorrectedFactor, diagonal: Tensor, moment: Tensor, gamma: float, noise: float
) -> float:
    """Return how far scores of samples like those learnt move, relative to their size.

    Parameters
    ----------
    factor : CorrectedFactor
        Of A = gram + γI, centred if the regression is.
    diagonal : Tensor of shape (d,)
        Of gram.
    moment : Tensor of shape (d, n_classes)
        Centred if the regression is.
    gamma : float
    noise : float
        Relative size of the rounding: an element of gram is off by noise · √(g_ii g_jj), typically.

    Notes
    -----
    With E the rounding of gram, the weights W = A⁻¹ M move by A⁻¹ E W, and the scores X W of the samples
    by at most the root of Wᵀ E A⁻¹ E W = ‖L⁻¹ E W‖². E W is drawn at random: its elements are sums over
    independent errors. The scores themselves have the square ‖X W‖² = ‖L⁻¹ M‖² − γ ‖W‖².
    """
    generator = torch.Generator().manual_seed(0)
    signs = torch.randn(moment.shape[1], min(_TRIALS, moment.shape[1]), generator=generator)
    whitened = factor.whiten(moment @ signs.to(moment))
    W = factor.unwhiten(whitened)
    square = float(whitened.square().sum() - gamma * W.square().sum())
    if not square > 0:
        # Nothing has been learnt that is more than rounding.
        return math.inf
    root = diagonal.to(W).clamp(min=0).sqrt().unsqueeze(1)
    drawn = torch.randn(W.shape, generator=generator).to(W)
    error = factor.whiten(noise * drawn * root * (root * W).norm(dim=0))
    return float(error.norm()) / math.sqrt(square)
