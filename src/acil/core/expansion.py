"""The random feature expansion, and with a regression behind it: features in, scores out."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from acil.core.recursion import Recursion
from acil.core.ridge import Ridge
from acil.core.sums import Block, Matrix, Precision, Sums
from acil.errors import InputError, UnsupportedError

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,
    "tanh": torch.tanh_,
    "gelu": functional.gelu,
    "identity": lambda X: X,
    # Made from the first samples: cos(x Ω + b), and exp(−‖x − c‖² / 2σ²) of what `project` returns
    "fourier": torch.cos_,
    "gaussian": torch.exp_,
}
#: How much longer the features themselves are than random units of them, where they are among the units.
_HEAVIER = 3.0
#: Most samples whose distances to each other give the width of a kernel.
MEASURED = 512
#: Size of one block of expanded rows: large enough for full speed, small beside the sums.
_BLOCK_BYTES = {"cpu": 2**24, "cuda": 2**28}
#: On a CPU it grows with the sums, of which it is this share, up to a limit.
_BLOCK_SHARE, _MAX_BLOCK_BYTES = 1 / 16, 2**26


@dataclass(eq=False)
class Expansion:
    """Map features to ``activation(X W_fe + b)``; without b, the paper's feature expansion (Eq. 2).

    The projection W_fe has shape (in_features, size), the bias b shape (size,), both float32. Without a
    projection, features pass unchanged. With a clip norm, rows that are longer are scaled to it.

    With "fourier" and "gaussian", products of expanded rows approximate exp(−‖x − x′‖² / 2σ²) up to a
    factor, or are sums of such kernels around centres, which are learnt features: the columns of the
    projection. The bias is then 1 / σ.

    >>> expansion = Expansion.draw(in_features=3, size=8, activation="relu", seed=0)
    >>> expansion(torch.ones(2, 3, dtype=torch.float64)).shape
    torch.Size([2, 8])
    """

    projection: Tensor | None
    activation: str
    in_features: int
    clip_norm: float | None = None
    bias: Tensor | None = None
    #: Factor of the features themselves, which are the first units; 0 if they are not among them.
    linear: float = 0.0
    _cast: tuple[Tensor, Tensor | None] | None = field(default=None, init=False, repr=False)
    _column_norm: float | None = field(default=None, init=False, repr=False)

    @classmethod
    def draw(
        cls,
        in_features: int,
        size: int | None,
        activation: str,
        seed: int,
        clip: float | None = None,
        bias: float = 0.0,
        linear: bool = False,
    ) -> Expansion:
        """Draw W_fe ~ N(0, 1) on the CPU in float32, so that the seed alone decides it.

        ``bias`` is the standard deviation of b; with 0 there is none. ``linear`` says whether the first
        of the ``size`` units are the features themselves.
        """
        projection, offsets, factor = None, None, 0.0
        if size is not None:
            if linear:
                size -= in_features
                # Of a row x, random units have the length √(size / 2 · (1 + 1/4)) |x|, with a bias.
                factor = _HEAVIER * math.sqrt(size / 2 * (1 + 1 / 4))
            generator = torch.Generator().manual_seed(seed)
            try:
                projection = torch.randn(in_features, size, generator=generator, dtype=torch.float32)
                if bias:
                    offsets = bias * torch.randn(size, generator=generator, dtype=torch.float32)
            except RuntimeError as error:
                raise InputError(
                    f"An expansion of {in_features} features to {size} does not fit into memory. Use a "
                    "smaller expansion_size."
                ) from error
        return cls(projection, activation, in_features, clip, offsets, factor)

    @classmethod
    def fitted(cls, samples: Tensor, size: int, activation: str, seed: int) -> Expansion:
        """Return an expansion of the kind "fourier" or "gaussian" from samples in random order.

        σ is the median distance of two of them; the first ones are the centres.
        """
        generator = torch.Generator().manual_seed(seed)
        in_features = samples.shape[1]
        distances = torch.pdist(samples[:MEASURED])
        distances = distances[distances > 0]
        inverse = 1 / float(distances.median()) if len(distances) else 1.0
        if activation == "fourier":
            projection = inverse * torch.randn(in_features, size, generator=generator)
            bias = 2 * math.pi * torch.rand(size, generator=generator)
        elif len(samples) < size:
            raise InputError(
                f'activation="gaussian" takes its {size} centres from the samples of the first call, '
                f"which are {len(samples)}. Give more samples, or a smaller expansion_size."
            )
        else:
            projection, bias = samples[:size].mT, torch.full((size,), inverse)
        return cls(projection.float().contiguous(), activation, in_features, None, bias.float())

    def widened(self, names: Sequence[str], seed: int) -> Expansion:
        """Return that of more features: the seed and the name of each decide its row of W_fe."""
        projection, rows = self.projection, []
        if projection is not None:
            for name in names:
                digest = hashlib.sha256(f"{seed} {name}".encode("utf-8", "surrogatepass")).digest()
                generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
                rows.append(torch.randn(1, self.size, generator=generator, dtype=torch.float32))
            projection = torch.cat([projection, *rows])
        width = self.in_features + len(names)
        return Expansion(projection, self.activation, width, self.clip_norm, self.bias)

    @property
    def size(self) -> int:
        """Width d of the expanded features."""
        units = self.in_features if self.projection is None else self.projection.shape[1]
        return units + self.in_features if self.linear else units

    def __call__(self, X: Tensor) -> Tensor:
        """Expand rows of shape (n, in_features), in their own dtype and on their own device."""
        # Eq. (2): X_fe = f_act(X_cnn W_fe), where there is no bias
        rows = X if self.projection is None else ACTIVATIONS[self.activation](self.project(X))
        if self.linear:
            rows = torch.cat([self.linear * X, rows], dim=1)
        if self.clip_norm is not None:
            factors: Tensor = self.clip_norm / rows.norm(dim=1, keepdim=True)
            rows = rows * factors.clamp(max=1.0)
        return rows

    def project(self, X: Tensor) -> Tensor:
        """Return X W_fe + b, to which the activation is applied; X itself without a projection."""
        if self.projection is None:
            return X
        if self._cast is None or self._cast[0].dtype != X.dtype or self._cast[0].device != X.device:
            self._cast = self.projection.to(X), None if self.bias is None else self.bias.to(X)
        projection, bias = self._cast
        if self.activation == "gaussian" and bias is not None:
            # −‖x − c‖² / 2σ²
            distances = torch.cdist(X, projection.mT, compute_mode="use_mm_for_euclid_dist")
            return distances.mul_(bias).square_().div_(-2)
        return X @ projection if bias is None else torch.addmm(bias, X, projection)

    def column_norm(self) -> float:
        """Return the largest Euclidean norm of a column of W_fe: how far a row can be stretched."""
        if self.projection is None:
            return 1.0
        if self._column_norm is None:
            # Several times as fast as norms by columns
            random = math.sqrt(float(self.projection.square().sum(dim=0).max()))
            self._column_norm = max(random, self.linear)
        return self._column_norm

    def fingerprint(self) -> str:
        """Return a hash of everything that decides the expanded features."""
        digest = hashlib.sha256()
        if self.projection is None:
            digest.update(f"none {self.in_features}".encode())
        else:
            digest.update(f"{self.activation} {tuple(self.projection.shape)}".encode())
            digest.update(self.projection.numpy().tobytes())
        if self.bias is not None:
            digest.update(b"bias" + self.bias.numpy().tobytes())
        if self.linear:
            digest.update(f"linear {self.linear!r}".encode())
        if self.clip_norm is not None:
            digest.update(f"clip {self.clip_norm!r}".encode())
        return digest.hexdigest()


def require_numbers(values: Tensor) -> Tensor:
    """Return values; raise if one is NaN or +∞, which no answer may be."""
    if not bool((values < torch.inf).all()):  # neither is less
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

    @property
    def has_samples(self) -> bool:
        """Whether there is anything to predict with."""
        return self.ready is not None or bool(self.head.counts.any())

    def require_whole(self) -> None:
        """Raise unless the matrix is that of this state."""
        self._owner.matrix.require(self._owner.version)

    def drop_factor(self, memory: bool) -> None:
        """Drop the factor and every trace of recent rows; see `Ridge.drop_factor`."""
        if isinstance(self.head, Ridge):
            self.head.drop_factor(memory)

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
            parts = (coef, intercept) if mixing is None else (coef, mixing, intercept)
            # A sum that is a number has no other terms, and takes a tenth of the time
            if not math.isfinite(sum(float(part.sum()) for part in parts)):
                for least, most in map(torch.aminmax, parts):
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
