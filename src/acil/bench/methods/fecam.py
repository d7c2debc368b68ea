"""FeCAM: one Gaussian a class, with its own covariance, on frozen features.

Paper: Goswami et al., *FeCAM: Exploiting the Heterogeneity of Class Distributions in Exemplar-Free
Continual Learning*, NeurIPS 2023.

With Tukey's transform x̃ = x^λ, and μ_c and Σ_c the mean and covariance of x̃ over class c:

    Σ_s = Σ_c + γ₁ V₁ I + γ₂ V₂ (11ᵀ − I),    V₁ = mean of the diagonal of Σ_c, V₂ = mean beside it,
    C_ij = (Σ_s)_ij / (σ_i σ_j)  with σ_i² = (Σ_s)_ii,    ŷ = argmin_c (x̃ − μ_c)ᵀ C_c⁻¹ (x̃ − μ_c).

The power λ needs features that are not negative, as the last ReLU leaves them. Negative features are an
error that says so; with ``fecam_tukey=1`` there is no transform and any features do.

Differences from the original:

1. μ_c is the mean of the transformed features, as in the paper's text; the published code transforms
   the mean of the raw ones.
2. The published code scales x̃ and μ_c to length 1 before it measures the distance, which the paper's
   formula does not have. ``fecam_unit_length=true`` does so.
3. Distances come from a Cholesky factor, not from a pseudo-inverse. A class without any variance (one
   sample) has C = I. A matrix that is not positive definite, possible for γ₁ < γ₂, is an error.
4. All phases are treated alike; the published code measures plain distances in the base phase.
5. Covariances are shrunk once, as in the paper's formula. The published code shrinks them twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn import functional

from acil.bench.methods.base import Context, MemoryUse, Phase
from acil.bench.methods.class_means import ClassMeans, by_class
from acil.bench.methods.frozen_features import FrozenMethod, FrozenPlanning
from acil.bench.training.settings import Settings, read_settings
from acil.core.linalg import add_gram_
from acil.encoders.images.imageset import ImageSet
from acil.errors import InputError, NotFittedError, SingularMatrixError

#: Bytes of matrices, and of whitened rows, that are worked on together.
_BATCH_BYTES = {"cpu": 2**22, "cuda": 2**28}


@dataclass(frozen=True)
class FeCAMSettings(Settings):
    """What can be set; the paper's values."""

    fecam_tukey: Annotated[float, "above 0 and at most 1"] = 0.5  # λ
    fecam_gamma1: Annotated[float, "at least 0"] = 1.0  # γ₁
    fecam_gamma2: Annotated[float, "at least 0"] = 1.0  # γ₂
    fecam_unit_length: bool = False  # see difference 2


class FeCAMPlanning(FrozenPlanning):
    """What a run asks about FeCAM."""

    def refusal(self, images: ImageSet, settings: Mapping[str, Any]) -> str | None:
        """Return what keeps the method from learning features: numbers that have no power."""
        tukey = read_settings(FeCAMSettings, settings).fecam_tukey
        if images.has_pixels or tukey == 1 or float(images.features(None).min()) >= 0:
            return None
        return "negative features; settings.fecam_tukey=1 takes them"

    def kept_bytes(self, n_classes: int, n_features: int) -> int:
        """Return the bytes of one triangle of a covariance for each class."""
        return n_classes * n_features * (n_features + 1) // 2 * 8


class FeCAM(FrozenMethod):
    """Nearest class by a Mahalanobis distance of its own, on frozen features."""

    planning = FeCAMPlanning
    grouping_free = True
    settings_type = FeCAMSettings

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.means = ClassMeans(context.device)
        #: Lower triangle of Σ (x̃ − μ_c)(x̃ − μ_c)ᵀ of each class, as one vector each.
        self.scatters: list[Tensor] = []

    def _state(self) -> dict[str, Any]:
        scatters = {f"scatter.{i}": scatter.cpu() for i, scatter in enumerate(self.scatters)}
        return {**self.means.state_dict(), **scatters}

    def _load(self, state: Mapping[str, Any]) -> None:
        self.means.load_state_dict(state)
        count = len(self.means.labels)
        self.scatters = [state[f"scatter.{i}"].clone().to(self.context.device) for i in range(count)]

    def correlations(self, first: int, last: int) -> Tensor:
        """Return the matrices C of some classes, of shape (last - first, d, d)."""
        d, settings = self.means.means.shape[1], self.settings
        rows, columns = torch.tril_indices(d, d, device=self.context.device)
        # The scatter for the covariance: C is the same for any multiple of it.
        packed = torch.stack(self.scatters[first:last])
        matrices = packed.new_empty(last - first, d, d)
        matrices[:, rows, columns] = matrices[:, columns, rows] = packed
        diagonal = matrices.diagonal(dim1=1, dim2=2)
        on = diagonal.mean(dim=1)
        beside = (matrices.sum(dim=(1, 2)) - diagonal.sum(dim=1)) / max(1, d * (d - 1))
        # Σ_s = Σ + γ₁ V₁ I + γ₂ V₂ (11ᵀ − I)
        shift = settings.fecam_gamma2 * beside
        matrices += shift.view(-1, 1, 1)
        diagonal += (settings.fecam_gamma1 * on - shift).unsqueeze(1)
        deviation = diagonal.sqrt()
        deviation[deviation == 0] = 1.0
        matrices /= deviation.unsqueeze(1) * deviation.unsqueeze(2)
        # Also of features without variance, whose diagonal would be 0
        diagonal.fill_(1.0)
        return matrices

    def _learn(self, features: Tensor, phase: Phase) -> None:
        self._check_sign(features)
        d = features.shape[1]
        triangle = torch.tril_indices(d, d, device=self.context.device).unbind()
        for label, rows in by_class(features, phase.labels, self.context.device):
            growth = self.means.add(label, rows.pow(self.settings.fecam_tukey))
            scatter = add_gram_(growth.new_zeros(d, d), growth)[triangle]
            at = self.means.position(label, d)
            if at == len(self.scatters):
                self.scatters.append(scatter)
            else:
                self.scatters[at] = self.scatters[at] + scatter

    def _predict(self, features: Tensor) -> Tensor:
        if not self.scatters:
            raise NotFittedError("This method has not learnt any class yet. Let it learn a phase first.")
        self._check_sign(features)
        n, d, classes = len(features), features.shape[1], len(self.scatters)
        budget = _BATCH_BYTES.get(self.context.device.type, 2**22) // 8
        group = max(1, min(classes, budget // d**2))
        step = max(16, budget // (group * d))
        device = self.context.device
        nearest = torch.full((n,), torch.inf, dtype=torch.float64, device=device)
        winner = torch.zeros(n, dtype=torch.int64, device=device)
        for first in range(0, classes, group):
            whitening = self._whitening(first, min(first + group, classes))
            for start in range(0, n, step):
                part = slice(start, start + step)
                rows = self._transformed(features[part].to(device=device, dtype=torch.float64))
                distance, place = _lengths(rows, *whitening).min(dim=1)
                winner[part] = torch.where(distance < nearest[part], place + first, winner[part])
                nearest[part] = torch.minimum(distance, nearest[part])
        return self.means.labels[winner.cpu()]

    def _whitening(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Return L⁻¹ and L⁻¹ μ of some classes, C = L Lᵀ, as (classes, d, d) and (classes, d)."""
        factors, status = torch.linalg.cholesky_ex(self.correlations(first, last))
        if bool(status.any()):
            label = int(self.means.labels[first + int(torch.nonzero(status)[0])])
            raise SingularMatrixError(
                f"The shrunk covariance of class {label} is not positive definite (fecam_gamma1 = "
                f"{self.settings.fecam_gamma1:g}, fecam_gamma2 = {self.settings.fecam_gamma2:g}, "
                f"{self.means.means.shape[1]} features). Take a larger fecam_gamma1."
            )
        # As a matrix, not by solving for each row: a product of all classes at once is faster.
        unit = torch.eye(factors.shape[1], dtype=factors.dtype, device=factors.device)
        inverse = torch.linalg.solve_triangular(factors, unit, upper=False)
        means = self._scaled(self.means.means[first:last])
        return inverse, (inverse @ means.unsqueeze(2)).squeeze(2)

    def _transformed(self, rows: Tensor) -> Tensor:
        return self._scaled(rows.pow(self.settings.fecam_tukey))

    def _scaled(self, rows: Tensor) -> Tensor:
        return functional.normalize(rows) if self.settings.fecam_unit_length else rows

    def _check_sign(self, features: Tensor) -> None:
        if self.settings.fecam_tukey != 1 and features.numel() and float(features.min()) < 0:
            raise InputError(
                f"FeCAM takes the power {self.settings.fecam_tukey:g} of features, which must not be "
                f"negative. Got {float(features.min()):.3g}. Use a backbone that keeps its last ReLU, "
                "or set fecam_tukey=1, which leaves the features as they are."
            )

    def _memory(self) -> MemoryUse:
        scatters = sum(scatter.nbytes for scatter in self.scatters)
        return MemoryUse(statistics=self.means.nbytes + scatters)


def _lengths(rows: Tensor, inverse: Tensor, offsets: Tensor) -> Tensor:
    """Return ‖L⁻¹ x − L⁻¹ μ‖² of each row and class, (n, classes)."""
    classes, d = offsets.shape
    whitened = (rows @ inverse.reshape(classes * d, d).mT).sub_(offsets.reshape(-1))
    return whitened.square_().view(len(rows), classes, d).sum(dim=2)
