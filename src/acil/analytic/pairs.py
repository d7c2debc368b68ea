"""Numbers held as the unevaluated sum of two floats, a high and a low part: twice the digits.

The high part is the number rounded to its type, the low part what the rounding took away. Operations
are short chains of additions whose rounding errors are numbers themselves, and are kept.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

#: Bits after the leading digit of the largest number of float64 and float32
_MANTISSA = {torch.float64: 52, torch.float32: 23}


class Pair(NamedTuple):
    """A tensor of high parts and one of low parts, of the same shape."""

    high: Tensor
    low: Tensor


def two_sum(a: Tensor, b: Tensor) -> Pair:
    """Return a + b rounded, and what the rounding took away.

    Examples
    --------
    >>> one, tiny = torch.tensor(1.0, dtype=torch.float64), torch.tensor(1e-30, dtype=torch.float64)
    >>> [float(part) for part in two_sum(one, tiny)]
    [1.0, 1e-30]
    """
    total = a + b
    share = total - a
    error = b - share
    # error + (a − (total − share)), in memory that is there already
    torch.sub(total, share, out=share)
    return Pair(total, error.add_(torch.sub(a, share, out=share)))


def add_pairs(pair: Pair, other: Pair) -> Pair:
    """Return the sum of two pairs; high parts are added without rounding, low parts are rounded."""
    high, error = two_sum(pair.high, other.high)
    return two_sum(high, error.add_(pair.low).add_(other.low))


def sum_columns(pair: Pair) -> Pair:
    """Return the sum over the columns of matrices of shape (d, k), as vectors of shape (d,)."""
    high, low = pair
    while high.shape[1] > 1:
        # Halves are added to each other; the column in the middle of an odd number waits.
        half, rest = high.shape[1] // 2, (high.shape[1] + 1) // 2
        total = add_pairs(Pair(high[:, :half], low[:, :half]), Pair(high[:, rest:], low[:, rest:]))
        high = torch.cat([total.high, high[:, half:rest]], dim=1)
        low = torch.cat([total.low, low[:, half:rest]], dim=1)
    return Pair(high.sum(dim=1), low.sum(dim=1))


def sum_all(pair: Pair) -> tuple[float, float]:
    """Return the high and the low part of the sum over all elements of vectors."""
    numbers = [*pair.high.tolist(), *pair.low.tolist()]
    high = math.fsum(numbers)
    return high, math.fsum([*numbers, -high])


def head(values: Tensor, scale: Tensor, bits: int) -> Tensor:
    """Round to ``bits`` bits below a power of two that exceeds ``scale``.

    Parameters
    ----------
    values : Tensor
    scale : Tensor that broadcasts against ``values``
        Largest magnitude of the values that share a grid; zero is allowed.
    bits : int

    Returns
    -------
    Tensor
        Whole multiples, at most 2 to the power ``bits``, of one unit for each scale. What is left,
        ``values - head``, is exact.
    """
    # A power of two, exact because a division whose result is a float does not round
    power = torch.where(scale > 0, scale / torch.frexp(scale).mantissa, 1.0)
    # A number so large that its own last digit is the unit: adding it rounds to the grid.
    shift = power * (1.5 * 2.0 ** (_MANTISSA[values.dtype] - bits))
    return (values + shift).sub_(shift)
