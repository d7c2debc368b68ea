"""Weights from a float32 factor of float64 sums, and when that is not good enough."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from acil.analytic.factor import CorrectedFactor
from acil.analytic.precision import Precision
from acil.errors import SingularMatrixError

#: Relative residual at which the refined weights of mixed precision are as good as its sums, whose
#: products are rounded to 6e-8.
_REFINED = 1e-8
_MAX_REFINEMENTS = 10
#: Mixed precision is refused when float32 rounding, times the condition number, exceeds this.
_MAX_MIXED_ERROR = 1e-2


def refined_weights(
    factor: CorrectedFactor, multiply: Callable[[Tensor], Tensor], moment: Tensor
) -> Tensor | None:
    """Improve the weights that a factor of lower precision gives.

    Parameters
    ----------
    factor : CorrectedFactor
    multiply : callable
        Multiplies the matrix, in the precision of the sums, with a block of columns.
    moment : Tensor of shape (d, n_classes)

    Returns
    -------
    Tensor of shape (d, n_classes) or None
        None if it does not converge.
    """
    coef: Tensor = factor.solve(moment).to(moment)
    scale, previous = float(moment.norm()), float("inf")
    for _ in range(_MAX_REFINEMENTS):
        rest = moment - multiply(coef)
        error = float(rest.norm())
        if error <= _REFINED * scale:
            return coef
        if not error < previous / 2:
            return None
        previous = error
        coef += factor.solve(rest).to(coef)
    return None


def require_enough_precision(
    precision: Precision, gamma: float, bound: float | None, condition: Callable[[], float]
) -> None:
    """Raise if products of this precision cannot give weights of such a matrix.

    Parameters
    ----------
    precision : Precision
    gamma : float
    bound : float or None
        An upper bound of the condition number, if one is known.
    condition : callable
        Estimates the condition number.
    """
    if bound is not None and precision.rounding * bound <= _MAX_MIXED_ERROR:
        return
    estimate = condition()
    error = precision.rounding * estimate
    if error > _MAX_MIXED_ERROR:
        raise SingularMatrixError(
            f"The condition number of gram + γI is {estimate:.2g}, too large for "
            f'dtype="{precision.name}" (γ = {gamma:g}): float32 products would leave a relative error '
            f'of about {error:.1g}. Take a larger gamma or dtype="float64".'
        )
