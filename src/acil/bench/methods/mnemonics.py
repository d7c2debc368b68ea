"""Mnemonics, around a host method: exemplars are trained, and of the network only kernel scales.

Paper: Liu et al., *Mnemonics Training: Multi-Class Incremental Learning without Forgetting*, CVPR 2020.

After each phase the exemplars of the new classes, chosen by the host, become parameters. With f the
network's features, μ_c the mean of f over the exemplars of class c (for new classes a function of their
pixels), one epoch over the data of the phase, augmented, minimises

    L = CE(cos(f(x), μ), y)

by changing these pixels alone; then they are rounded to 8 bits. From the first increment on, kernels of
convolutions are those of the base network, and one scale for each kernel is trained ("weight transfer");
normalisation and classifier are trained as by the host. With AANets, whose stable branch is such a
network, its two branches stay as they are.

Differences from the original:

1. Exemplars of old classes are not adjusted again.
2. The published training code covers CIFAR and hosts other than LUCIR: the same is done here for LUCIR.

At this rate pixels hardly move, and rounding takes most of that back: the log has the share that moved.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from acil.bench.methods.aanets import scale_kernels_
from acil.bench.methods.base import Phase
from acil.bench.methods.base_network import network_features
from acil.bench.methods.exemplars import mean_features
from acil.bench.methods.incremental import Wrapper
from acil.bench.training.convolution import ScaledConv2d
from acil.bench.training.loop import Batches
from acil.bench.training.settings import Settings
from acil.encoders.images.backbones import Backbone, Preprocessing, normalise
from acil.encoders.images.decode import centre, to_pixels
from acil.encoders.images.extract import full_float32

logger = logging.getLogger(__name__)

_MOMENTUM = 0.9
_WEIGHT_DECAY = 5e-4


@dataclass(frozen=True)
class MnemonicsSettings(Settings):
    """What can be set beside the settings of the host."""

    #: Of normalised pixels; 0 leaves the exemplars as they are.
    mnemonics_rate: Annotated[float, "at least 0"] = 1e-5


class Mnemonics(Wrapper):
    """Train the exemplars of a host method."""

    name = "mnemonics"
    settings_type = MnemonicsSettings

    def prepare(self, network: Any) -> None:
        """Scale the kernels of the network, in the first increment."""
        if not any(isinstance(module, ScaledConv2d) for module in network.backbone.modules()):
            scale_kernels_(network.backbone)

    def rebuilt(self, backbone: Backbone, weights: Mapping[str, Tensor]) -> Backbone:
        scaled = any(name.endswith(".scale") for name in weights)
        if scaled and not any(name.startswith("backbone.stable.") for name in weights):
            scale_kernels_(backbone)
        return backbone

    def after(self, phase: Phase) -> None:
        """Train the exemplars of the classes of a phase."""
        if self.settings.mnemonics_rate:
            self._train_exemplars(phase)

    def _train_exemplars(self, phase: Phase) -> None:
        host, rate = self.host, self.settings.mnemonics_rate
        exemplars, device = host.exemplars, host.context.device
        is_old = exemplars.labels < phase.classes[0]
        old, old_labels = exemplars.pixels[is_old], exemplars.labels[is_old]
        backbone = host.network.backbone
        preprocessing: Preprocessing = backbone.preprocessing
        old_means = None
        if len(old):
            features = network_features(backbone, old, device)
            old_means = mean_features(features, old_labels).to(device)
        batches = Batches(
            phase.images.to_train_with(old),
            torch.cat([phase.labels, old_labels]),
            host.training,
            preprocessing,
            host.context.seed_for("mnemonics", phase.n_seen),
            device,
        )
        new = torch.nonzero(~is_old).flatten()
        moved = exemplars.pixels[new]
        middle = centre(moved, preprocessing.size)
        start = normalise(middle.to(device), preprocessing)
        with full_float32():
            trained = trained_exemplars(backbone, start, exemplars.labels[new], old_means, batches, rate)
        written = to_pixels(trained, preprocessing).cpu()
        share = float((written != middle).float().mean())
        logger.info("%s: %.3g of the exemplars' pixels have moved.", host.full_name, share)
        middle.copy_(written)
        exemplars.pixels = exemplars.pixels.index_copy(0, new, moved)


def trained_exemplars(
    backbone: Backbone,
    exemplars: Tensor,
    labels: Tensor,
    old_means: Tensor | None,
    batches: Batches,
    rate: float,
) -> Tensor:
    """Return exemplars moved along the gradient of the loss of batches, one step for each of an epoch.

    Exemplars are normalised, float32, on the device of the backbone, and come back so, not rounded. They
    belong to each class that the batches have and ``old_means`` does not. The backbone is in evaluation
    mode and not changed.
    """
    pixels = nn.Parameter(exemplars.clone())
    optimizer = torch.optim.SGD([pixels], lr=rate, momentum=_MOMENTUM, weight_decay=_WEIGHT_DECAY)
    for x, y, _ in batches.epoch(0):
        with torch.no_grad():
            queries = functional.normalize(backbone(x))
        means = mean_features(backbone(pixels), labels)
        means = means if old_means is None else torch.cat([old_means, means])
        loss = functional.cross_entropy(queries @ functional.normalize(means).T, y)
        # Not backward(): the network's parameters get no gradient.
        (pixels.grad,) = torch.autograd.grad(loss, pixels)
        optimizer.step()
    return pixels.detach()
