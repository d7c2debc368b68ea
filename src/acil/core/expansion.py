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
    # Made from the first samples: cos(x Ω + b), and exp(−‖x − c‖² / 2σ²) of what `project` returns
    "fourier": torch.cos_,
    "gaussian": torch.exp_,
}
#: Most samples whose distances to each other give the width of a kernel.
MEASURED = 512


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
