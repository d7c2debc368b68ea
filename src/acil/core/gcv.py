"""The choice of γ from the sums alone, by generalized cross-validation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from acil.core.cholesky import Factor
from acil.core.sums import Sums
from acil.errors import SingularMatrixError

#: γ relative to trace(gram) / d: half decades from 1e-6 to 10. The last one is never taken: it is best
#: where nothing can be told, as with one sample of each class.
GRID = tuple(10 ** (exponent / 2) for exponent in range(-12, 3))
#: Criteria that differ by less, relatively, are the same: for one sample all are, and rounding must not
#: choose. The largest of such candidates is taken.
_SAME = 1e-6
#: A candidate is judged only if this share of the samples is left over by its degrees of freedom, and
#: this share of Σ‖y‖² is not explained: below that the criterion is a ratio of small differences.
_LEAST_LEFT, _LEAST_RESIDUAL = 0.01, 1e-8


def choose_gamma(sums: Sums, intercept: bool, least: float = 0.0) -> float:
    """Return the candidate in ``GRID`` that is best by `criterion`; trace / d if none can be judged.

    It depends on the sums alone and takes at most eight factorizations: of every fourth candidate, then
    of the neighbours of the best. Candidates below ``least`` are left out.
    """
    unit, seen = float(sums.gram.diagonal().mean()), dict[int, float]()
    if not math.isfinite(unit):
        raise SingularMatrixError(
            "No gamma can be chosen: the squares of the features add up to more than a number can hold. "
            "Scale the features and learn again."
        )

    def try_candidate(index: int) -> None:
        if 0 <= index < len(GRID) and index not in seen:
            gamma = GRID[index] * unit
            seen[index] = criterion(sums, gamma, intercept) if gamma >= least else math.inf

    for index in range(0, len(GRID), 4):
        try_candidate(index)
    for step in (2, 1):
        best = _best(seen)
        try_candidate(best - step)
        try_candidate(best + step)
    best = _best(seen)
    if math.isfinite(seen[best]) and best < len(GRID) - 1:
        return GRID[best] * unit
    return max(unit, least) or 1.0  # sums of zeros have no scale: any γ gives the weights 0


def _best(seen: dict[int, float]) -> int:
    """Return the candidate of the least criterion, the largest of those that share it."""
    least = min(seen.values())
    return max(index for index, value in seen.items() if value <= least * (1 + _SAME))


def criterion(sums: Sums, gamma: float, intercept: bool) -> float:
    r"""Return the squared error to expect on unseen samples; infinite where it cannot be told.

    Notes
    -----
    With R = (gram + γI)⁻¹, W = R · moment, the hat matrix H and n the total weight,

    .. math::

        \mathrm{GCV} = \frac{n \, \mathrm{RSS}}{(n - \mathrm{tr} H)^2}, \qquad
        \mathrm{tr} H = d - γ \, \mathrm{tr} R, \qquad
        \mathrm{RSS} = Σ‖y‖² - \mathrm{tr}(Wᵀ \mathrm{moment}) - γ‖W‖².
    """
    n = sums.total_weight
    try:
        factor = Factor(sums, gamma, intercept, sums.moment.dtype)
    except SingularMatrixError:
        return math.inf
    coef = factor.solve(right_hand_side(sums, intercept))
    rss = float(residual_squares(coef, sums, gamma, intercept).sum())
    left = n - degrees_of_freedom(factor, gamma, overwrite=True)
    if left < _LEAST_LEFT * n or rss < _LEAST_RESIDUAL * float(sums.target_squares.sum()):
        return math.inf
    # Weights may be so large that their square overflows.
    return n / left * (rss / left)


def degrees_of_freedom(factor: Factor, gamma: float, overwrite: bool = False) -> float:
    """Return tr H = d − γ tr R, and 1 for the intercept; the factor is lost if it may be overwritten."""
    d = len(factor.L) - factor.first
    return d - gamma * factor.trace_of_inverse(overwrite) + factor.first


def right_hand_side(sums: Sums, intercept: bool) -> Tensor:
    """Return the right-hand side of the normal equations, of shape (d, k) or (d + 1, k)."""
    if not intercept:
        return sums.moment
    return torch.cat([sums.target_total.to(sums.moment).unsqueeze(0), sums.moment])


def residual_squares(coef: Tensor, sums: Sums, gamma: float, intercept: bool) -> Tensor:
    """Return Σ w (y_c − x w_c)² of each class: Σ y_c² − w_cᵀ right_c − γ ‖w_c‖²."""
    W, right = coef[int(intercept) :], right_hand_side(sums, intercept)
    return sums.target_squares.to(W) - (coef * right).sum(dim=0) - gamma * W.square().sum(dim=0)
