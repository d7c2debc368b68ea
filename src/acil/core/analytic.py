"""Expansion and regression together: features in, scores out, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from acil.core.expansion import Expansion
from acil.core.recursion import Recursion
from acil.core.ridge import Ridge
from acil.core.sums import Block, Matrix, Precision, Sums
from acil.errors import InputError, UnsupportedError

#: Size of one block of expanded rows: large enough for full speed, small beside the sums.
_BLOCK_BYTES = {"cpu": 2**24, "cuda": 2**28}
#: On a CPU it grows with the sums, of which it is this share, up to a limit.
_BLOCK_SHARE, _MAX_BLOCK_BYTES = 1 / 16, 2**26


def require_numbers(values: Tensor) -> Tensor:
    """Return values; raise if one is NaN or +∞, which no answer may be."""
    if bool((values.isnan() | values.isposinf()).any()):
        raise InputError(
            "The numbers of this model overflow, so it cannot answer: its file was edited, or features "
            "are too large. See what `acil verify` says of the file, or scale features and learn again."
        )
    return values


class Weights(NamedTuple):
    """What scores are made of: x W, mapped if there is a mixing, plus intercepts; never changed.

    W has shape (d, n_classes); ``empty`` says which classes have no samples.
    """

    regression: Tensor
    mixing: Tensor | None
    intercept: Tensor
    empty: Tensor

    @property
    def coef(self) -> Tensor:
        """Weights of shape (d, n_classes) that score."""
        return self.regression if self.mixing is None else self.regression @ self.mixing


@dataclass(frozen=True)
class Frozen:
    """Weights for prediction without the sums they came from."""

    weights: tuple[Tensor, Tensor]
    counts: Tensor
    precision: Precision
    gamma: float | None
    temperature: float
    matrix: Matrix = field(default_factory=lambda: Matrix(torch.empty(0, 0)))
    version: int = 0
    solver: str = "frozen"

    def coefficients(self) -> tuple[Tensor, Tensor]:
        """Return W of shape (d, n_classes) and the intercepts of shape (n_classes,)."""
        return self.weights


Answer = TypeVar("Answer")
Head = Ridge | Recursion | Frozen
Mixer = Callable[["AnalyticModel"], tuple[Tensor, Tensor]] | None


class AnalyticModel:
    """The closed-form learner on features: expand, regress, score.

    Like `Ridge`, it is replaced and not changed when it learns, forgets or merges. A ``mixer`` returns a
    square map from the weights of the regression to those that score, and their intercepts.
    """

    def __init__(self, expansion: Expansion, head: Head, device: torch.device, mixer: Mixer) -> None:
        self.expansion, self.head, self.precision = expansion, head, head.precision
        self.device, self.mixer = device, mixer
        #: What is derived from this state, once it was asked for.
        self.ready: Weights | None = None
        self.known_mixing: tuple[Tensor, Tensor] | None = None
        self.known_temperature: float | None = None
        self.known_discriminant: Any = None
        self._freedom: float | None = None

    @property
    def _owner(self) -> Sums | Recursion | Frozen:
        return self.head.sums if isinstance(self.head, Ridge) else self.head

    @property
    def is_whole(self) -> bool:
        """Whether the matrix is that of this state: not of a later one, nor just being written."""
        return self._owner.matrix.version == self._owner.version

    def require_whole(self) -> None:
        """Raise unless the matrix is that of this state."""
        self._owner.matrix.require(self._owner.version)

    def release(self, memory: bool) -> None:
        """Drop the factor and every trace of recent rows; see `Ridge.release`."""
        if isinstance(self.head, Ridge):
            self.head.release(memory)

    def solve_again(self) -> None:
        """Make sure that the weights come from the sums alone."""
        if isinstance(self.head, Ridge) and (self.head.solution is None or self.head.solution.corrected):
            self.head.solve(self.head.solution)
            self.ready = self.known_mixing = self.known_discriminant = None

    @property
    def learner(self) -> Ridge | Recursion:
        """The head, unless it can only predict."""
        if isinstance(self.head, Frozen):
            raise UnsupportedError(
                "This model can only predict: it was saved or loaded for inference, without the sums "
                "that learning, forgetting, merging and novelty need. Load the full model file instead."
            )
        return self.head

    @property
    def ridge(self) -> Ridge:
        """The head, if it keeps sums."""
        if not isinstance(self.head, Ridge):
            raise UnsupportedError(
                "merge, solve, select_gamma, set_gamma and gamma_relative_ need the sums, which neither "
                'solver="recursive" nor a model loaded for inference has. Learn with solver="gram".'
            )
        return self.head

    @property
    def block_rows(self) -> int:
        """Number of rows that blocks of features should have."""
        width = max(self.expansion.size, self.expansion.in_features)
        least = _BLOCK_BYTES.get(self.device.type, 2**24)
        share = int(_BLOCK_SHARE * self.expansion.size**2 * self.precision.sums.itemsize)
        size = max(least, min(share, _MAX_BLOCK_BYTES)) // (width * self.precision.products.itemsize)
        return max(16, min(size, self.precision.max_block_rows))

    def with_head(self, head: Head) -> AnalyticModel:
        """Return the same model around another head."""
        return AnalyticModel(self.expansion, head, self.device, self.mixer)

    def widened(self, expansion: Expansion) -> AnalyticModel:
        """Return the same model of more features, which were 0 in all samples so far."""
        if self.expansion.projection is None:
            head = self.learner.widened(expansion.size)
            return AnalyticModel(expansion, head, self.device, self.mixer)
        new = copy(self)
        new.expansion = expansion
        return new

    def blocks(
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

    def gamma(self) -> float:
        """Return γ, after choosing it if that is left to the solution."""
        gamma = self.head.solved().gamma if isinstance(self.head, Ridge) else self.head.gamma
        if gamma is None:
            raise UnsupportedError("This model comes from an inference file, which stores no gamma.")
        return gamma

    def weights(self) -> Weights:
        """Return the weights as used for scoring."""
        if self.ready is None:
            coef, intercept = self.head.coefficients()
            mixing, mixed = None, self.mixing()
            if mixed is not None:
                mixing, intercept = (part.to(coef) for part in mixed)
            for part in (coef, intercept) if mixing is None else (coef, mixing, intercept):
                least, most = torch.aminmax(part)
                require_numbers(torch.stack([-least, most]))
            empty = (self.head.counts == 0).to(coef.device)
            self.ready = Weights(coef, mixing, intercept, empty)
        return self.ready

    def mixing(self) -> tuple[Tensor, Tensor] | None:
        """Return what the mixer returns, if there is one."""
        if self.known_mixing is None and self.mixer is not None and not isinstance(self.head, Frozen):
            self.known_mixing = self.mixer(self)
        return self.known_mixing

    def scores(self, features: Iterable[Tensor], weights: Weights) -> Iterator[Tensor]:
        """Yield scores of shape (block, n_classes); classes without samples score −inf."""
        kind = self.precision.products
        coef, intercept = weights.regression.to(kind), weights.intercept.to(kind)
        for block in features:
            scores = self.expansion(block) @ coef
            if weights.mixing is not None:
                # Here, because it changes with every sample that is learnt, and W · mixing is long
                scores = (scores.to(weights.mixing) @ weights.mixing).to(kind)
            yield (scores + intercept).masked_fill_(weights.empty, -torch.inf)

    def degrees_of_freedom(self) -> float:
        """Return tr H, which takes as long as a factorization."""
        if self._freedom is None:
            self._freedom = self.ask(lambda head: head.degrees_of_freedom())
        return self._freedom

    def ask(self, question: Callable[[Ridge | Recursion], Answer]) -> Answer:
        """Ask the regression what it may have to solve anew for, then perhaps with another γ."""
        before, answer = getattr(self.head, "solution", None), question(self.learner)
        if getattr(self.head, "solution", None) is not before:
            self.ready = self.known_mixing = self.known_discriminant = None
        return answer
