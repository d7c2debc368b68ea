"""Solutions of the normal equations to full precision, from residuals with twice the digits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from acil.analytic.exact import high_tile, strips, tile_pair
from acil.analytic.pairs import Pair, head, two_sum
from acil.analytic.statistics import Statistics

#: Bits of a head. Products of two heads, and sums of 2¹³ of them, are exact in float64.
_HEAD_BITS = 20
_MAX_STEPS = 3
#: Each step leaves about the square of what it corrects, so that after one of this size nothing is left.
_LAST_STEP = 1e-8


@dataclass(frozen=True)
class Unknowns:
    """Weights and, with an intercept, the intercepts beside them; also a right-hand side for both.

    Attributes
    ----------
    weights : Tensor of shape (d, k)
    intercepts : Tensor of shape (k,), or None
    """

    weights: Tensor
    intercepts: Tensor | None


class NormalEquations:
    """(gram + γI) W = moment or, with an intercept b and sums s = Σx, n = Σ1, the bordered equations.

    The equations with an intercept are (gram + γI) W + s bᵀ = moment and sᵀ W + n bᵀ = counts. They are
    those of the centred regression, but in the sums themselves: centring them would round.

    Parameters
    ----------
    sums : Statistics
    gamma : float
    fit_intercept : bool
    """

    def __init__(self, sums: Statistics, gamma: float, fit_intercept: bool) -> None:
        self.sums = sums
        self.gamma = gamma
        self.border: Pair | None = None
        if fit_intercept:
            self.border = Pair(*(part.unsqueeze(1) for part in sums.total))
            self.count = Pair(*(sums.gram.new_tensor([[part]]) for part in sums.total_weight_pair))

    def right(self) -> tuple[Unknowns, Unknowns]:
        """Return the high and the low part of the right-hand side for the weights."""
        high, low = self.sums.moment_pair
        if self.border is None:
            return Unknowns(high, None), Unknowns(low, None)
        weights = [part.to(high) for part in self.sums.weights_pair]
        return Unknowns(high, weights[0]), Unknowns(low, weights[1])

    def refined(
        self,
        solve: Callable[[Tensor], Tensor],
        right: Unknowns,
        right_low: Unknowns | None = None,
    ) -> Tensor:
        """Return the weights that solve the equations, correct to nearly their last digit.

        Parameters
        ----------
        solve : callable
            Multiplies with an approximate inverse of the (centred) matrix.
        right, right_low : Unknowns
        """
        found = self._step(solve, right)
        previous = float("inf")
        for _ in range(_MAX_STEPS):
            rest = self._residual(found, right, right_low)
            step = self._step(solve, rest)
            size = float(step.weights.norm())
            if not size < previous / 2:
                break
            previous = size
            intercepts = None
            if found.intercepts is not None and step.intercepts is not None:
                intercepts = found.intercepts + step.intercepts
            found = Unknowns(found.weights + step.weights, intercepts)
            if size <= _LAST_STEP * float(found.weights.norm()):
                break
        return found.weights

    def _completed(self, weights: Tensor, right: Unknowns) -> Unknowns:
        """Return weights with the intercepts that the last equation gives."""
        if self.border is None or right.intercepts is None:
            return Unknowns(weights, None)
        intercepts = (right.intercepts - self.border.high[:, 0] @ weights) / self.count.high[0, 0]
        return Unknowns(weights, intercepts)

    def _step(self, solve: Callable[[Tensor], Tensor], rest: Unknowns) -> Unknowns:
        """Solve the equations approximately for a residual."""
        weights = rest.weights
        if self.border is not None and rest.intercepts is not None:
            # What is left for the weights when the intercepts are eliminated
            weights = weights - self.border.high * (rest.intercepts / self.count.high[0, 0])
        return self._completed(solve(weights).to(weights), rest)

    def _residual(self, found: Unknowns, right: Unknowns, right_low: Unknowns | None) -> Unknowns:
        """Return the right-hand side minus the left one."""
        weights, scale = found.weights, found.weights.abs().max()
        heads = head(weights, scale, _HEAD_BITS)
        tails = weights - heads
        large, small = self._gram_times(weights, heads, tails)
        small.add_(weights, alpha=self.gamma)
        if self.border is None or found.intercepts is None or right.intercepts is None:
            terms = [-large, -small] if right_low is None else [-large, -small, right_low.weights]
            return Unknowns(_sum(right.weights, *terms), None)
        intercepts = found.intercepts.unsqueeze(0)
        turned = Pair(self.border.high.mT, self.border.low.mT)
        minus = [-large, -small, *_minus_product(self.border, intercepts)]
        minus_last = [*_minus_product(turned, weights), *_minus_product(self.count, intercepts)]
        if right_low is not None and right_low.intercepts is not None:
            minus.append(right_low.weights)
            minus_last.append(right_low.intercepts.unsqueeze(0))
        last = _sum(right.intercepts.unsqueeze(0), *minus_last)
        return Unknowns(_sum(right.weights, *minus), last[0])

    def _gram_times(self, weights: Tensor, heads: Tensor, tails: Tensor) -> tuple[Tensor, Tensor]:
        """Return the product of gram with weights as a part without rounding and a small part."""
        gram, low = self.sums.gram, self.sums.low
        scale = gram.diagonal().max()
        # Side by side, so that heads and tails are multiplied with in one product
        both, total = (
            torch.cat([heads, tails], dim=1),
            weights.new_zeros(len(weights), 2 * weights.shape[1]),
        )
        small = torch.zeros_like(weights)
        for here in strips(gram):
            # The square on the diagonal, and what lies to the left of it, which counts twice
            for there in (here, slice(0, here.start)):
                if low is None:
                    block, rest = high_tile(gram, here, there), None
                else:
                    block, rest = tile_pair(gram, low.diagonal, here, there)
                coarse = head(block, scale, _HEAD_BITS)
                fine = block - coarse if rest is None else (block - coarse).add_(rest)
                total[here].addmm_(coarse, both[there])
                small[here].addmm_(fine, weights[there])
                if here != there:
                    total[there].addmm_(coarse.mT, both[here])
                    small[there].addmm_(fine.mT, weights[here])
        large, middle = total.chunk(2, dim=1)
        return large, small.add_(middle)


def _minus_product(left: Pair, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return −left · right as a part without rounding and a small part."""
    coarse = head(left.high, left.high.abs().max(), _HEAD_BITS)
    heads = head(right, right.abs().max(), _HEAD_BITS)
    rest = coarse @ (right - heads) + ((left.high - coarse) + left.low) @ right
    return -(coarse @ heads), -rest


def _sum(first: Tensor, *terms: Tensor) -> Tensor:
    """Return a sum of terms that nearly cancel, without rounding on the way."""
    total, errors = first, torch.zeros_like(first)
    for term in terms:
        total, error = two_sum(total, term)
        errors += error
    return total + errors
