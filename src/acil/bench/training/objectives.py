"""Objectives: what a training minimises, and the auxiliary tasks of base training."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from acil.bench.training.network import FeatureNetwork, linear
from acil.bench.training.settings import ANGLES, COLOURS, Auxiliary
from acil.errors import InputError

#: The loss, and the scores, from which the training accuracy is counted.
Scored = tuple[Tensor, Tensor]
#: Of the distillation from teachers, and of the contrastive loss.
TEACHER_TEMPERATURE = 4.0
CONTRAST_TEMPERATURE = 0.1
#: Units of the two layers between features and the contrastive loss.
_CONTRAST_WIDTHS = (256, 128)


class Objective:
    """(network, inputs, labels, positions in the data set) → loss, or (loss, scores).

    A subclass is a dataclass, whose fields a checkpoint remembers. Networks and tensors are fields with
    ``repr=False``: they follow from the network at the start.
    """

    #: Whether a step may be a CUDA graph: no shape and no branch depends on values, and nothing but the
    #: network keeps state.
    capturable: bool = False
    gradient_limit: float | None = None  # each entry of a gradient is clamped to ± this number
    teacher: nn.Module | None = None  # runs as fast as the network

    def __call__(self, *batch: Any) -> Any:
        raise NotImplementedError

    @property
    def identity(self) -> str:
        """What distinguishes this objective from others, for checkpoints."""
        return repr(self)


class Capturable(Objective):
    """An objective whose step can be a CUDA graph."""

    capturable = True


@dataclass(frozen=True)
class CrossEntropy(Capturable):
    """Mean cross entropy of the network's scores, the default objective."""

    label_smoothing: float = 0.0
    identity = "cross entropy"

    def __call__(self, network: nn.Module, x: Tensor, y: Tensor, indices: Tensor) -> Scored:
        scores = network(x).float()
        return functional.cross_entropy(scores, y, label_smoothing=self.label_smoothing), scores


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return −Σ_c softmax(teacher/T)_c · log softmax(student/T)_c, mean over the rows, not times T².

    Scores have shape (n, classes). The gradient is zero where both have the same softmax.
    """
    return functional.cross_entropy(student / temperature, (teacher / temperature).softmax(1))


@dataclass(frozen=True, eq=False)
class Distilling(Capturable):
    """Cross entropy and softmax distillation, weighted: a · CE + b · KD."""

    teacher: nn.Module = field(repr=False)  # in evaluation mode, with scores of the old classes
    n_old: int
    temperature: float
    cross_entropy: float = 1.0
    distillation: float = 1.0
    new_only: bool = False  # cross entropy over the new classes' scores; then all labels must be new

    def __call__(self, network: nn.Module, x: Tensor, y: Tensor, indices: Tensor) -> Scored:
        scores = network(x).float()
        with torch.no_grad():
            old = self.teacher(x).float()
        first = self.n_old if self.new_only else 0
        ce = functional.cross_entropy(scores[:, first:], y - first)
        kd = distillation(scores[:, : self.n_old], old, self.temperature)
        return self.cross_entropy * ce + self.distillation * kd, scores


class Assisted(nn.Module):
    """A network, trained in place and later used alone, and the layers that only its training needs."""

    def __init__(self, network: Any, tasks: Auxiliary, generator: torch.Generator) -> None:
        super().__init__()
        if not isinstance(network, FeatureNetwork):
            raise InputError(
                f"Auxiliary tasks need a network with features and a classifier, and this one is "
                f"{type(network).__name__}. Train it without them."
            )
        self.network = network
        self.layers = nn.ModuleDict()
        width = network.backbone.num_features
        if tasks.copies:
            outputs = network.n_classes * tasks.transformations
            self.layers["copies"] = linear(width, outputs, generator)
        if tasks.contrast:
            hidden, outputs = _CONTRAST_WIDTHS
            first, second = linear(width, hidden, generator), linear(hidden, outputs, generator)
            self.layers["contrast"] = nn.Sequential(first, nn.ReLU(), second)


@dataclass(frozen=True, eq=False)
class AssistedLoss(Capturable):
    """The loss of an :class:`Assisted` network; a teacher's scores are distilled."""

    tasks: Auxiliary
    label_smoothing: float = 0.0  # of the classification of images
    teacher: nn.Module | None = field(default=None, repr=False)

    def __call__(
        self, network: Any, x: Tensor, y: Tensor, indices: Tensor, draws: Tensor | None = None
    ) -> Scored:
        """Return the loss, and the scores of the images themselves.

        x has all n images, then all first copies, and so on; draws (n, draws) are uniform in [0, 1).
        """
        tasks, n = self.tasks, len(y)
        images, copies = x[:n], x[n:]
        share = x.new_ones(n)
        if tasks.mixup and draws is not None:
            share = mixing_share(draws[:, tasks.copies], tasks.mixup)
            images = mixed(images, share)
        kinds = y.new_zeros(len(copies))
        if tasks.copies and draws is not None:
            kinds = (draws[:, : tasks.copies].mT.reshape(-1) * tasks.transformations).long()
            copies = transformed(copies, kinds, tasks)
        inputs = torch.cat([images, copies]).contiguous(memory_format=torch.channels_last)
        features = network.network.features(inputs)
        scores = network.network.classifier(features[:n]).float()
        loss = self._of_images(scores, y, share)
        if tasks.distillation and self.teacher is not None:
            with torch.no_grad():
                taught = self.teacher(images).float()
            follow = TEACHER_TEMPERATURE**2 * distillation(scores, taught, TEACHER_TEMPERATURE)
            loss = (1 - tasks.distillation) * loss + tasks.distillation * follow
        made_up = y.repeat(tasks.views - 1) * tasks.transformations + kinds
        if tasks.copies:
            predicted = network.layers["copies"](features[n:]).float()
            loss = loss + tasks.weight * functional.cross_entropy(predicted, made_up)
        if tasks.contrast:
            labels = torch.cat([y * tasks.transformations, made_up])
            embedded = network.layers["contrast"](features)
            loss = loss + tasks.contrast * contrastive(embedded, labels, CONTRAST_TEMPERATURE)
        return loss, scores

    def _of_images(self, scores: Tensor, y: Tensor, share: Tensor) -> Tensor:
        loss = partial(
            functional.cross_entropy, scores, label_smoothing=self.label_smoothing, reduction="none"
        )
        if not self.tasks.mixup:
            return loss(y).mean()
        return (share * loss(y) + (1 - share) * loss(y.roll(1))).mean()


def transformed(images: Tensor, kinds: Tensor, tasks: Auxiliary) -> Tensor:
    """Turn and recolour each image (n, channels, size, size) as its kind says; 0 leaves it as it is.

    Images have three channels, or any number if there is one colour.
    """
    if tasks.colours > 1 and images.shape[1] != 3:
        raise InputError(
            f"Copies with other orders of colours need 3 channels; these images have {images.shape[1]}."
        )
    if tasks.crossed:
        angles, colours = kinds % tasks.angles, kinds // tasks.angles
    else:
        angles = torch.where(kinds < tasks.angles, kinds, 0)
        colours = (kinds - tasks.angles + 1).clamp(min=0)
    result = images
    # Each version of the whole batch, and a choice: no shape may depend on values.
    for index, quarters in enumerate(ANGLES[tasks.angles][1:], start=1):
        turned = torch.rot90(images, quarters, (2, 3))
        result = torch.where((angles == index)[:, None, None, None], turned, result)
    recoloured = result
    for index, order in enumerate(COLOURS[1 : tasks.colours], start=1):
        version = torch.stack([result[:, channel] for channel in order], dim=1)
        recoloured = torch.where((colours == index)[:, None, None, None], version, recoloured)
    return recoloured


def mixing_share(uniform: Tensor, fraction: float) -> Tensor:
    """Return λ of each image: uniform between 0 and 1 for a fraction of them, 1 for the others."""
    return torch.where(uniform < fraction, uniform / fraction, 1.0)


def mixed(images: Tensor, share: Tensor) -> Tensor:
    """Return λ x + (1 − λ) x', x' the image before x in the batch, whose order is random."""
    weights = share[:, None, None, None]
    return weights * images + (1 - weights) * images.roll(1, 0)


def contrastive(embedded: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Return the supervised contrastive loss of rows, the mean over those that have a partner.

    P. Khosla et al., "Supervised Contrastive Learning", 2020, Eq. (2): of row i, the mean of −log
    softmax_j(z_i · z_j / T) over the rows j ≠ i of the same label, the softmax over all j ≠ i.
    """
    unit = functional.normalize(embedded.float())
    itself = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    with torch.autocast(unit.device.type, enabled=False):
        similar = (unit @ unit.mT / temperature).masked_fill(itself, -torch.inf)
    logs = similar - similar.logsumexp(1, keepdim=True)
    partners = (labels[:, None] == labels) & ~itself
    count = partners.sum(1)
    rows = -torch.where(partners, logs, 0.0).sum(1) / count.clamp(min=1)
    return rows.sum() / (count > 0).sum().clamp(min=1)


class MeanScores(nn.Module):
    """Several networks, whose mean score is their answer."""

    def __init__(self, networks: list[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of shape (n, classes), float32."""
        return torch.stack([network(x).float() for network in self.networks]).mean(0)
