"""Whether samples that are to be forgotten can have been learnt."""

from __future__ import annotations

from acil.analytic.linalg import cholesky_
from acil.analytic.statistics import Statistics
from acil.errors import InputError, SingularMatrixError


def require_possible(
    before: Statistics, remaining: Statistics, gamma: float | None, unit: float
) -> None:
    """Raise unless what is left after forgetting can be a sum of x xᵀ.

    Parameters
    ----------
    before, remaining : Statistics
    gamma : float or None
    unit : float
        Unit roundoff of the products in the sums.
    """
    noise = 200 * before.size**0.5 * unit * before.largest
    shift = 0.0 if gamma == 0 else noise
    matrix = remaining.gram.clone()
    matrix.diagonal().add_(shift)
    try:
        cholesky_(matrix, shift)
    except SingularMatrixError as error:
        raise InputError(
            "These samples cannot be forgotten: without them the sums would no longer be those of "
            "any set of samples (the matrix is not positive definite). They were not all learnt "
            "by this model, or not with these weights."
        ) from error
