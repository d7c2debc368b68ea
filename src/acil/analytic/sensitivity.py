"""How much rounding shows in the scores: tried out on the factor, not bounded."""

from __future__ import annotations

import math
from collections.abc import Callable

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
    whitened = factor.whiten(moment @ _combinations(moment, generator))
    W = factor.unwhiten(whitened)
    square = float(whitened.square().sum() - gamma * W.square().sum())
    if not square > 0:
        # Nothing has been learnt that is more than rounding.
        return math.inf
    root = diagonal.to(W).clamp(min=0).sqrt().unsqueeze(1)
    drawn = torch.randn(W.shape, generator=generator).to(W)
    error = factor.whiten(noise * drawn * root * (root * W).norm(dim=0))
    return float(error.norm()) / math.sqrt(square)


def solution_error(
    factor: CorrectedFactor,
    multiply: Callable[[Tensor], Tensor],
    coef: Tensor,
    moment: Tensor,
    gamma: float,
) -> float:
    """Return how far scores of samples like those learnt are off because the solution was rounded.

    Parameters
    ----------
    factor : CorrectedFactor
        Of A = gram + γI, corrections included, centred if the regression is.
    multiply : callable
        Multiplies A with columns.
    coef, moment : Tensor of shape (d, n_classes)
        W and M of A W = M.
    gamma : float

    Notes
    -----
    A residual r moves the scores of the samples by at most the root of rᵀ A⁻¹ r ≤ ‖L⁻¹ r‖², where L is
    of the last factorization, to which rows have only been added. It is computed in working precision,
    so that its own rounding, which is as large as that of a good solution, counts as well. The scores
    have the square ‖X W‖² = Wᵀ M − γ ‖W‖².
    """
    signs = _combinations(moment, torch.Generator().manual_seed(0))
    W, M = coef @ signs, moment @ signs
    rest = M - multiply(W)
    squares = torch.stack([factor.whiten(rest).square().sum(), (W * M).sum() - gamma * W.square().sum()])
    # In one go: the device is waited for once.
    error, scores = squares.tolist()
    return math.sqrt(error / scores) if scores > 0 and math.isfinite(error) else math.inf


def _combinations(moment: Tensor, generator: torch.Generator) -> Tensor:
    """Return random combinations of classes, of shape (n_classes, trials)."""
    trials = min(_TRIALS, moment.shape[1])
    return torch.randn(moment.shape[1], trials, generator=generator).to(moment)
