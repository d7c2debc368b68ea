"""Expansion and head together: features in, scores out, block by block."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from acil.analytic.expansion import Expansion
from acil.analytic.frozen import FrozenHead
from acil.analytic.head import Block, GramHead
from acil.analytic.precision import Precision
from acil.analytic.probability import softmax_temperature
from acil.analytic.recursion import RecursiveHead
from acil.analytic.repeatable import Repeatable
from acil.analytic.selection import LEFT_OVER
from acil.errors import UnsupportedError

Head = GramHead | RecursiveHead | FrozenHead

#: Size of one block of expanded rows: large enough for full speed, small beside the sums.
_BLOCK_BYTES = {"cpu": 2**24, "cuda": 2**28}
#: On a CPU it grows with the sums, of which it is this share, up to a limit.
_BLOCK_SHARE, _MAX_BLOCK_BYTES = 1 / 16, 2**26


class AnalyticModel:
    """The closed-form learner on features: expand, add to the head, score.

    Parameters
    ----------
    expansion : Expansion
    head : GramHead, RecursiveHead or FrozenHead
    precision : Precision
    device : torch.device
    balanced : bool
        Scale the weights of each class by (mean class weight) / (its class weight). The same as
        regressing onto targets of that height, because the solution is linear in the targets.
    """

    def __init__(
        self,
        expansion: Expansion,
        head: Head,
        precision: Precision,
        device: torch.device,
        balanced: bool = False,
    ) -> None:
        self.expansion = expansion
        self.head = head
        self.precision = precision
        self.device = device
        self.balanced = balanced
        self._temperature: float | None = None
        self._expected_novelty: float | None = None

    @property
    def block_rows(self) -> int:
        """Number of rows that blocks of features should have."""
        width = max(self.expansion.size, self.expansion.in_features)
        least = _BLOCK_BYTES.get(self.device.type, 2**24)
        share = int(_BLOCK_SHARE * self.expansion.size**2 * self.precision.sums.itemsize)
        size = max(least, min(share, _MAX_BLOCK_BYTES)) // (width * self.precision.products.itemsize)
        return max(16, min(size, self.precision.max_block_rows))

    def learn(
        self, features: Iterable[Tensor], columns: Tensor, weights: Tensor | None, n_rows: int
    ) -> None:
        """Add samples; ``features`` yields blocks of ``n_rows`` rows in all, each time anew."""
        self._outdate()
        self.head.learn(Repeatable(lambda: self._blocks(features, columns, weights)), n_rows)

    def forget(self, features: Iterable[Tensor], columns: Tensor, weights: Tensor | None) -> None:
        """Remove samples, or raise and leave everything as it was."""
        self.head.forget(self._blocks(features, columns, weights))
        self._outdate()

    def merge(self, other: AnalyticModel, positions: Tensor) -> None:
        """Add the sums of another model; its column i is our column ``positions[i]``."""
        self.require_sums().merge(other.require_sums(), positions)
        self._outdate()

    def absorb(self, branch: GramHead, positions: Tensor) -> None:
        """Add the sums of a branch of this model's head; its column i is ``positions[i]``."""
        self.require_sums().absorb(branch, positions)
        self._temperature = None

    def require_sums(self) -> GramHead:
        """Return the head that keeps sums, or say what needs them."""
        if not isinstance(self.head, GramHead):
            raise UnsupportedError(
                "merge, select_gamma and gamma_relative_ need the sums, which neither "
                'solver="recursive" nor a model loaded for inference has. Learn with solver="gram".'
            )
        return self.head

    def copy(self) -> AnalyticModel:
        """Return an independent model with the same sums; only the expansion is shared."""
        head = self.require_sums().copy()
        return AnalyticModel(self.expansion, head, self.precision, self.device, self.balanced)

    def learner(self) -> GramHead | RecursiveHead:
        """Return the head, or raise if this model can only predict."""
        if isinstance(self.head, FrozenHead):
            self.head.refuse()
        return self.head

    def set_temperature(self, temperature: float) -> None:
        """Take a temperature that was measured on exactly this state before."""
        self._temperature = temperature

    def stored_bytes(self) -> dict[str, int]:
        """Return the bytes of each tensor that has to be kept, one triangle of symmetric ones."""
        d, c, number = self.expansion.size, len(self.head.counts), self.precision.sums.itemsize
        parts = {"coef": d * c * number, "intercept": c * number}
        if self.expansion.projection is not None:
            parts["projection"] = self.expansion.in_features * d * 4
        if isinstance(self.head, GramHead):
            sums = {"gram": d * (d + 1) // 2 * number, "moment": d * c * number}
            parts |= sums
            if self.head.statistics.low is not None:
                parts |= {f"{name}_low": size for name, size in sums.items()}
                parts["weights_low"] = c * number
        elif isinstance(self.head, RecursiveHead):
            parts["rfaum"] = d * (d + 1) // 2 * number
        return parts

    def gamma(self) -> float:
        """Return γ, after selecting it if that was left to the first solve."""
        if self.head.gamma is None:
            self.head.coefficients()
        return float(self.head.gamma or 0.0)

    def select_gamma(self, gammas: Tensor | None) -> float:
        """Set γ by generalized cross-validation over the sums and return it."""
        self._outdate()
        return self.require_sums().select_gamma(gammas).best

    def set_gamma(self, gamma: float, relative: bool) -> float:
        """Set γ, or γ in units of the mean squared length of a sample, and return it."""
        head = self.require_sums()
        value = gamma * head.statistics.sample_square if relative else gamma
        self._outdate()
        head.set_gamma(value)
        return value

    def weights(self) -> tuple[Tensor, Tensor]:
        """Return coef of shape (classes, d) and the intercepts, as used for scoring."""
        coef, intercept = self.head.coefficients()
        if self.balanced and not isinstance(self.head, FrozenHead):
            scale = balance_factors(self.head.weights).to(coef)
            coef, intercept = coef * scale, intercept * scale
        return coef.mT, intercept

    def scores(self, features: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield scores of shape (block, classes); classes without samples score −inf."""
        coef, intercept = self.weights()
        columns, shift = coef.mT.to(self.precision.products), intercept.to(self.precision.products)
        empty = (self.head.counts == 0).to(columns.device)
        for block in features:
            yield (self.expansion(block) @ columns + shift).masked_fill_(empty, -torch.inf)

    def novelty(self, features: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield the leverage of each row, block by block."""
        for block in features:
            yield self.head.novelty(self.expansion(block))

    def expected_novelty(self) -> float:
        """Return the novelty to expect of a new sample that is like those learnt; from the sums alone.

        Notes
        -----
        With R = (gram + γI)⁻¹ and h_i = x_iᵀ R x_i the leverage of a sample learnt, its leverage in the
        model that never learnt it is h_i / (1 − h_i). The mean of h_i is tr(R · gram) / n =
        (d − γ tr R) / n: no sample is needed, and the result is the same in any order of learning,
        merging and forgetting. Infinite where γ = 0 and there are no more samples than dimensions.
        """
        if self._expected_novelty is None:
            head = self.learner()
            mean = self._freedom(head) / float(head.weights.sum())
            self._expected_novelty = mean / (1 - mean) if mean < 1 else math.inf
        return self._expected_novelty

    def relative_novelty(self, features: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield how novel the direction of each row is: about 1 for rows like those learnt.

        Notes
        -----
        The leverage xᵀ R x grows with the length of x. Here each row is first scaled to the root of the
        mean square of those learnt (trace(gram) / n), then its leverage divided by what is expected.
        """
        head = self.require_sums()
        scale = head.statistics.sample_square / self.expected_novelty()
        for block in features:
            rows = self.expansion(block)
            square = rows.square().sum(dim=1)
            # A row of zeros has no direction: it counts as orthogonal to everything learnt.
            share = torch.where(square > 0, head.novelty(rows) / square, 1 / max(self.gamma(), 1e-300))
            yield scale * share

    def temperature(self) -> float:
        """Return the temperature of the softmax; see `softmax_temperature`."""
        if isinstance(self.head, FrozenHead):
            return self.head.temperature
        if self._temperature is None:
            self._temperature = self._measured_temperature(self.head)
        return self._temperature

    def _measured_temperature(self, head: GramHead | RecursiveHead) -> float:
        W, _ = head.coefficients()
        gamma, weights = self.gamma(), head.weights.to(W)
        n = float(weights.sum())
        targets = weights * (1 - weights / n) if head.fit_intercept else weights
        # Σ (y_c − x w_c)² = Σ y_c² − w_cᵀ moment_c − γ ‖w_c‖², because (gram + γI) W = moment
        squares = targets - (W * (head.moment() + gamma * W)).sum(dim=0)
        if self.balanced:
            squares = squares * balance_factors(head.weights).to(W).square()
        left = max(1 - self._freedom(head) / n, LEFT_OVER)
        return softmax_temperature(float(squares[weights > 0].mean()) / n / left**2)

    def _outdate(self) -> None:
        """Forget what was derived from the sums as they were."""
        self._temperature = self._expected_novelty = None

    def _freedom(self, head: GramHead | RecursiveHead) -> float:
        """Return the degrees of freedom, tr(R · gram) = d − γ tr R."""
        return head.size - self.gamma() * head.trace_of_inverse() + float(head.fit_intercept)

    def _blocks(
        self, features: Iterable[Tensor], columns: Tensor, weights: Tensor | None
    ) -> Iterator[Block]:
        """Yield expanded blocks with their columns and weights, without rows of weight zero."""
        start = 0
        for block in features:
            stop = start + len(block)
            column = columns[start:stop]
            weight = None if weights is None else weights[start:stop]
            if weight is not None:
                kept = weight > 0
                block, column, weight = block[kept.to(block.device)], column[kept], weight[kept]
            if len(column):
                yield self.expansion(block), column, weight
            start = stop


def balance_factors(weights: Tensor) -> Tensor:
    """Return (mean class weight) / (class weight) of each class that has samples, else 1.

    Parameters
    ----------
    weights : Tensor of shape (classes,)
        Sum of the sample weights of each class.
    """
    present = weights > 0
    factors = torch.ones_like(weights)
    factors[present] = weights[present].mean() / weights[present]
    return factors
