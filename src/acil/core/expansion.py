"""The random feature expansion in front of the ridge regression."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from acil.errors import InputError

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,
    "tanh": torch.tanh_,
    "gelu": functional.gelu,
    "identity": lambda X: X,
}


@dataclass(eq=False)
class Expansion:
    """Map features to ``activation(X W_fe + b)``; without b, the paper's feature expansion (Eq. 2).

    The projection W_fe has shape (in_features, size), the bias b shape (size,), both float32. Without a
    projection, features pass unchanged. With a clip norm, rows that are longer are scaled to it.

    >>> expansion = Expansion.draw(in_features=3, size=8, activation="relu", seed=0)
    >>> expansion(torch.ones(2, 3, dtype=torch.float64)).shape
    torch.Size([2, 8])
    """

    projection: Tensor | None
    activation: str
    in_features: int
    clip_norm: float | None = None
    bias: Tensor | None = None
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
    ) -> Expansion:
        """Draw W_fe ~ N(0, 1) on the CPU in float32, so that the seed alone decides it.

        ``bias`` is the standard deviation of b; with 0 there is none.
        """
        projection = offsets = None
        if size is not None:
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
        return cls(projection, activation, in_features, clip, offsets)

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
        return self.in_features if self.projection is None else self.projection.shape[1]

    def __call__(self, X: Tensor) -> Tensor:
        """Expand rows of shape (n, in_features), in their own dtype and on their own device."""
        # Eq. (2): X_fe = f_act(X_cnn W_fe), where there is no bias
        rows = X if self.projection is None else ACTIVATIONS[self.activation](self.project(X))
        if self.clip_norm is not None:
            factors: Tensor = self.clip_norm / rows.norm(dim=1, keepdim=True)
            rows = rows * factors.clamp(max=1.0)
        return rows

    def project(self, X: Tensor) -> Tensor:
        """Return X W_fe + b, to which no activation is applied; X itself without a projection."""
        if self.projection is None:
            return X
        if self._cast is None or self._cast[0].dtype != X.dtype or self._cast[0].device != X.device:
            self._cast = self.projection.to(X), None if self.bias is None else self.bias.to(X)
        projection, bias = self._cast
        return X @ projection if bias is None else torch.addmm(bias, X, projection)

    def column_norm(self) -> float:
        """Return the largest Euclidean norm of a column of W_fe: how far a row can be stretched."""
        if self.projection is None:
            return 1.0
        if self._column_norm is None:
            # Several times as fast as norms by columns
            self._column_norm = math.sqrt(float(self.projection.square().sum(dim=0).max()))
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
        if self.clip_norm is not None:
            digest.update(f"clip {self.clip_norm!r}".encode())
        return digest.hexdigest()
