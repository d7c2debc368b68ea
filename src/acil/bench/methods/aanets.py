"""AANets, around a host method: a stable and a plastic copy of the base network, mixed stage by stage.

Paper: Liu et al., *Adaptive Aggregation Networks for Class-Incremental Learning*, CVPR 2021.

From the first increment on the network has two branches, both of which start as the base network. In
the plastic one everything is trained. In the stable one the kernels of convolutions are those of the
base for good, and one scale for each kernel is trained (beside normalisation). Stage l takes the mixed
map of the stage before and returns

    h_l = α · stable_l(h_{l−1}) + (1 − α) · plastic_l(h_{l−1}).

Loss, exemplars, classifier and prediction are the host's: ``podnet+aanets``, ``lucir+aanets``. PODNet's
network has four stages, LUCIR's three.

Differences from the original:

1. α is fixed. There it is learnt on balanced data at rate 1e-8, which leaves it at 0.5 (and the authors'
   code for PODNet has 0.5 written in).
2. On ImageNet the host's training is kept (there rate 0.05, weight decay 5e-4, cosine).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from acil.bench.methods.base import Context
from acil.bench.methods.incremental import IncrementalNetwork
from acil.bench.training.convolution import ScaledConv2d
from acil.bench.training.fields import Settings, read_settings
from acil.encoders.images.backbones import Backbone


@dataclass(frozen=True)
class AANetsSettings(Settings):
    """What can be set beside the settings of the host."""

    aanets_share: Annotated[float, "from 0 to 1"] = 0.5  # α


def scale_kernels_(network: nn.Module) -> None:
    """Freeze the kernels of all convolutions of a network and give each kernel a scale, first 1.

    Names of parameters stay; each convolution gets ``scale`` of shape (outputs, inputs, 1, 1) beside its
    ``weight``. Normalisation stays as it is, and trained.
    """
    for module in network.modules():
        if type(module) is nn.Conv2d:
            module.weight.requires_grad_(False)
            shape = (*module.weight.shape[:2], 1, 1)
            module.scale = nn.Parameter(torch.ones(shape, device=module.weight.device))
            module.__class__ = ScaledConv2d


class TwoBranches(Backbone):
    """A network and its copy with frozen kernels, whose maps are mixed after each stage.

    Both branches start as copies of ``base``; ``share`` is that of the stable one.
    """

    def __init__(self, base: Backbone, share: float) -> None:
        super().__init__(base.name, base.num_features, base.preprocessing, base.options)
        self.share = share
        self.stable = copy.deepcopy(base)
        self.plastic = copy.deepcopy(base)
        scale_kernels_(self.stable)

    def maps(self, x: Tensor) -> list[Tensor]:
        """Return the mixed map after each stage."""
        found = []
        for stages in zip(self.stable.stages(), self.plastic.stages(), strict=True):
            stable = plastic = x
            for fixed, free in zip(*stages, strict=True):
                stable, plastic = fixed(stable), free(plastic)
            # α · stable + (1 − α) · plastic
            x = torch.lerp(plastic, stable, self.share)
            found.append(x)
        return found


class AANets(IncrementalNetwork):
    """Train a host method on two branches."""

    wrapper_settings = AANetsSettings

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.share = read_settings(AANetsSettings, context.settings).aanets_share

    def student(self) -> Any:
        """Return a copy of the network, in the first increment with two branches."""
        network = super().student()
        if not isinstance(network.backbone, TwoBranches):
            network.backbone = TwoBranches(network.backbone, self.share)
        return network

    def increment_images(self, index: int, sizes: Sequence[int], seen: Sequence[int]) -> int:
        """Return the host's count twice: each image goes through two networks."""
        return 2 * super().increment_images(index, sizes, seen)

    def rebuilt(self, backbone: Backbone, weights: Mapping[str, Tensor]) -> Any:
        if any(name.startswith("backbone.stable.") for name in weights):
            backbone = TwoBranches(backbone, self.share)
        return super().rebuilt(backbone, weights)
