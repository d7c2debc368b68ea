"""FeTrIL: old classes stand in by new samples moved to the old means, and a linear classifier on top.

Paper: Petit et al., *FeTrIL: Feature Translation for Exemplar-Free Class-Incremental Learning*, WACV
2023.

Of each class only the mean feature μ_c is kept. In each phase, for each old class c, let s be the class
of the phase whose mean is nearest to μ_c. The features of s become pseudo-features of c:

    x̂ = x − μ_s + μ_c   for x of class s.

All rows, real and pseudo, are scaled to length 1, and a linear classifier is trained on them anew.

Differences from the original:

1. All rows are scaled to length 1. The authors' code leaves the first 512 rows as they are, a bug.
2. The base network is the recipe's. The authors use ResNet-18 at 224 pixels with longer training.
3. The layer is drawn anew from the seed in each phase, and trained by the common loop: SGD with
   momentum 0.9, batches of 128, a cosine schedule, weight decay 2e-4.
4. A class that comes back has its mean updated and its new samples used; it needs no pseudo-features
   then.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from acil.bench.methods.base import Context, MemoryUse, Phase
from acil.bench.methods.class_means import ClassMeans, MeansMethod, Scorer, by_class
from acil.bench.training.loop import train
from acil.bench.training.network import linear
from acil.bench.training.settings import Settings, Training

logger = logging.getLogger(__name__)
#: Newton steps; the loss is a quadratic in pieces, and some ten steps find the right ones.
_MOST_STEPS = 100
#: Conjugate gradients stop at this share of the gradient: early steps need no exact direction.
_INEXACT = 0.1
_MOST_PRODUCTS = 250
#: Share of the expected decrease that a step must bring, and how often it is halved for it.
_ARMIJO, _MOST_HALVINGS = 1e-4, 30


@dataclass(frozen=True)
class FeTrILSettings(Settings):
    """What can be set; published values."""

    #: The squared hinge of scikit-learn's LinearSVC, minimized on the device; or a linear layer trained
    #: with cross entropy.
    fetril_classifier: Literal["svc", "fc"] = "svc"
    fetril_similarity: Literal["euclidean", "cosine"] = "euclidean"  # the authors' code, or PyCIL
    fetril_C: Annotated[float, "positive"] = 1.0  # of the SVC
    fetril_tolerance: Annotated[float, "positive"] = 1e-4
    fetril_epochs: Annotated[int, "at least 1"] = 50  # of the layer
    fetril_learning_rate: Annotated[float, "positive"] = 0.05


class FeTrIL(MeansMethod):
    """Feature translation and a linear classifier, on frozen features."""

    settings_type = FeTrILSettings

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.weight = torch.zeros(0, 0, dtype=torch.float64, device=context.device)
        self.bias = torch.zeros(0, dtype=torch.float64, device=context.device)

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "weight": self.weight.cpu(), "bias": self.bias.cpu()}

    def _load(self, state: Mapping[str, Any]) -> None:
        super()._load(state)
        self.weight = state["weight"].clone().to(self.context.device)
        self.bias = state["bias"].clone().to(self.context.device)

    def scorer(self) -> Scorer:
        return lambda rows: functional.normalize(rows) @ self.weight.mT + self.bias

    def _learn(self, features: Tensor, phase: Phase) -> None:
        super()._learn(features, phase)
        real = dict(by_class(features, phase.labels, self.context.device))
        rows, targets = training_rows(self.means, real, self.settings.fetril_similarity)
        fit = self._fit_svc if self.settings.fetril_classifier == "svc" else self._fit_layer
        self.weight, self.bias = fit(functional.normalize(rows), targets)

    def _fit_svc(self, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        classes = len(self.means.labels)
        if classes == 1:
            # There is nothing to tell apart.
            return rows.new_zeros(1, rows.shape[1]), rows.new_zeros(1)
        weight, bias, converged = squared_hinge(
            rows, targets, classes, self.settings.fetril_C, self.settings.fetril_tolerance
        )
        if not converged:
            logger.warning("fetril, %d classes: the classifier has not converged", classes)
        return weight, bias

    def _fit_layer(self, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(self.context.seed)
        layer = linear(rows.shape[1], len(self.means.labels), generator)
        train(
            layer,
            rows.float(),
            targets,
            Training(
                epochs=self.settings.fetril_epochs,
                learning_rate=self.settings.fetril_learning_rate,
                schedule="cosine",
                weight_decay=2e-4,
            ),
            preprocessing=None,
            seed=self.context.seed,
            device=self.context.device,
        )
        return layer.weight.detach().double(), layer.bias.detach().double()

    def _memory(self) -> MemoryUse:
        """Count means and classifier; pseudo-features live only while a phase is learnt."""
        return replace(super()._memory(), weights=self.weight.nbytes + self.bias.nbytes)


def training_rows(
    means: ClassMeans, real: Mapping[int, Tensor], similarity: Literal["euclidean", "cosine"]
) -> tuple[Tensor, Tensor]:
    """Return the rows of a phase, pseudo-features of all other classes, and the positions of classes.

    ``means`` has all classes, those of the phase included; ``real`` has the rows of each class of the
    phase. The positions are those in ``means``, int64, on the CPU.
    """
    present = torch.tensor([means.position(label, means.means.shape[1]) for label in real])
    centres = means.means[present.to(means.means.device)]
    if similarity == "cosine":
        nearness = functional.normalize(means.means) @ functional.normalize(centres).mT
    else:
        nearness = -torch.cdist(means.means, centres)
    sources = nearness.argmax(dim=1).tolist()
    labels, rows, targets = list(real), [], []
    for position, label in enumerate(means.labels.tolist()):
        if label in real:
            part = real[label]
        else:
            near = real[labels[sources[position]]]
            # x̂ = x − μ_s + μ_c; the mean of these rows, so that a class that came back fits too
            part = near - near.mean(dim=0) + means.means[position]
        rows.append(part)
        targets.append(torch.full((len(part),), position))
    return torch.cat(rows), torch.cat(targets)


def squared_hinge(
    rows: Tensor, targets: Tensor, n_classes: int, C: float = 1.0, tolerance: float = 1e-4
) -> tuple[Tensor, Tensor, bool]:
    """Minimize ½‖w‖² + ½b² + C Σ max(0, 1 − y (w·x + b))² for each class against all others.

    The problem of scikit-learn's ``LinearSVC(dual=False)``, solved for all classes together by Newton's
    method with conjugate gradients.

    Rows have shape (n, d), float64; targets are 0 … n_classes - 1, on any device. A class is done when
    its gradient is below ``tolerance`` times the gradient at zero, times the smaller share of the two
    sides, which is liblinear's rule. Returns weights (n_classes, d), biases, and whether all are done.

    Examples
    --------
    >>> import torch
    >>> rows = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]], dtype=torch.float64)
    >>> weight, bias, _ = squared_hinge(rows, torch.tensor([0, 0, 1, 1]), 2)
    >>> (rows @ weight.T + bias).argmax(1).tolist()
    [0, 0, 1, 1]
    """
    Z = torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1)
    signs = 2.0 * functional.one_hot(targets.to(rows.device), n_classes).to(rows.dtype) - 1.0
    W = Z.new_zeros(Z.shape[1], n_classes)
    positive = (signs > 0).sum(0)
    share = torch.minimum(positive, len(rows) - positive).clamp(min=1) / len(rows)
    goal = None
    for _ in range(_MOST_STEPS):
        margins = 1 - signs * (Z @ W)
        slack = margins.clamp(min=0)
        gradient = W - 2 * C * (Z.mT @ (signs * slack))
        norm = gradient.norm(dim=0)
        goal = tolerance * share * norm if goal is None else goal
        open_ = norm > goal
        if not open_.any():
            return W[:-1].mT.contiguous(), W[-1].clone(), True
        W[:, open_] += _step(Z, W[:, open_], signs[:, open_], margins[:, open_], gradient[:, open_], C)
    return W[:-1].mT.contiguous(), W[-1].clone(), False


def _step(Z: Tensor, W: Tensor, signs: Tensor, margins: Tensor, gradient: Tensor, C: float) -> Tensor:
    """Return the change of each column: a Newton direction, shortened until the loss falls."""
    active = (margins > 0).to(Z.dtype)
    direction = _conjugate_gradients(Z, active, gradient, C)
    slope = (gradient * direction).sum(0)
    change = signs * (Z @ direction)
    before = _loss(W, margins, C)
    length = torch.ones_like(slope)
    for _ in range(_MOST_HALVINGS):
        after = _loss(W + length * direction, margins - length * change, C)
        fallen = after <= before + _ARMIJO * length * slope
        if fallen.all():
            break
        length = torch.where(fallen, length, length / 2)
    return length * direction


def _loss(W: Tensor, margins: Tensor, C: float) -> Tensor:
    return 0.5 * W.square().sum(0) + C * margins.clamp(min=0).square().sum(0)


def _conjugate_gradients(Z: Tensor, active: Tensor, gradient: Tensor, C: float) -> Tensor:
    """Return an approximate solution S of (I + 2C Zᵀ A Z) S = −gradient, column by column."""
    S = torch.zeros_like(gradient)
    residual = -gradient
    direction = residual.clone()
    square = residual.square().sum(0)
    goal = _INEXACT**2 * square
    for _ in range(_MOST_PRODUCTS):
        if not (square > goal).any():
            break
        product = direction + 2 * C * (Z.mT @ (active * (Z @ direction)))
        # A column that is done has nothing to go along: 0 / 0 would spoil it.
        length = square / (direction * product).sum(0).clamp(min=torch.finfo(Z.dtype).tiny)
        S += length * direction
        residual -= length * product
        new = residual.square().sum(0)
        direction = residual + new / square.clamp(min=torch.finfo(Z.dtype).tiny) * direction
        square = new
    return S
