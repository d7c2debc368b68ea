"""When sums need more digits than float64 has.

Rounding of the sums moves scores by up to its size over the least eigenvalue of gram + γI. That
eigenvalue is at least γ; how much larger it is shows only in a factorization, which is worth its price
when there are enough samples to fill all directions. All rules follow from what a file of the model
holds, so that a model that was saved goes on as if it had not been.
"""

from __future__ import annotations

import math

from torch import Tensor

#: Rounding of one sum that no score can show at 1e-9, for up to 10,000 additions: it grows with the root
#: of their number.
_HARMLESS = 1e-11
#: What rounding of all sums may move scores by, as tried out on samples like those learnt; samples that
#: are unlike them may show a hundred times as much.
_INVISIBLE = 1e-11
#: Rows that matrix products add up before they add to the sums.
_ADDED_TOGETHER = 256
#: Samples for each dimension at which the least eigenvalue is looked at first; then at each doubling.
_FILLED = 2
#: Condition number up to which scores are promised to agree.
_PROMISED = 1e9
#: Widths at which pairs cost next to nothing and are kept for good: rounding that is harmless now may
#: not be so when most samples have been forgotten.
_NARROW = 512


def exact_above(least: float, size: int, unit: float) -> float:
    """Return the largest element of gram whose rounding is still harmless.

    Parameters
    ----------
    least : float
        A lower bound of the least eigenvalue of gram + γI.
    size : int
        Width d.
    unit : float
        Unit roundoff.
    """
    # Rounding d × d numbers adds a random matrix, of norm √d · unit · (the largest of them) at most
    return _HARMLESS * least / (unit * math.sqrt(size))


def noise_of(n_samples: int, block: int, unit: float) -> float:
    """Return the rounding of sums to which samples were added by blocks, relative to their elements.

    Parameters
    ----------
    n_samples : int
        Samples in the sums. As many again are added before the question comes up anew.
    block : int
        Rows of a block.
    unit : float
        Unit roundoff.
    """
    return unit * math.sqrt(2 * n_samples / min(block, _ADDED_TOGETHER))


def invisible(change: float) -> bool:
    """Say whether rounding that moves scores of samples like those learnt by so much may stay."""
    return change <= _INVISIBLE


def is_wide(size: int) -> bool:
    """Say whether digits beyond float64 cost so much that they are kept only where they are needed."""
    return size > _NARROW


def beyond_reach(largest: float, least: float, size: int) -> bool:
    """Say whether a wide matrix is too ill-conditioned for low parts to be worth their time.

    Low parts cost four times the work of plain sums. Up to the condition number for which agreement is
    promised that is what it takes; beyond it, wide models do without. That γ is tiny does not tell:
    samples to come may fill the directions that are empty now.

    Parameters
    ----------
    largest : float
        A lower bound of the largest eigenvalue of gram + γI; see `eigenvalue_bound`.
    least : float
        The least eigenvalue, looked at when samples fill all directions; 0 if there is none.
    size : int
        Width d.
    """
    return is_wide(size) and 0 < _PROMISED * least < largest


def fall_to_come(n_samples: int, size: int) -> float:
    """Return the factor by which κ may still fall when many more samples like those learnt come.

    Parameters
    ----------
    n_samples : int
        At least two for each dimension.
    size : int
        Width d.
    """
    # Of independent samples, λ reaches the share (1 − √(d/n))² of n times its limit (Marchenko–Pastur).
    return (1 - math.sqrt(size / n_samples)) ** -2


def eigenvalue_bound(total: Tensor, weight: float) -> float:
    """Return a lower bound of the largest eigenvalue of Σ w x xᵀ; close to it where no x is negative.

    Parameters
    ----------
    total : Tensor of shape (d,)
        Σ w x.
    weight : float
        Σ w.
    """
    # Σ w x xᵀ ≥ (Σ w x)(Σ w x)ᵀ / Σ w
    return float(total.square().sum()) / weight if weight > 0 else 0.0


def settled(n_samples: int, size: int) -> bool:
    """Say whether the least eigenvalue of sums of so many samples has been looked at."""
    return is_wide(size) and n_samples >= _FILLED * size


def worth_a_look(before: int, after: int, size: int) -> bool:
    """Say whether it is to be looked at (again) when the number of samples has grown."""
    if not settled(after, size):
        return False
    return before < _FILLED * size or math.frexp(before / size)[1] < math.frexp(after / size)[1]
