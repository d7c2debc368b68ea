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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from acil.bench.methods.incremental import Wrapper
from acil.bench.training.convolution import ScaledConv2d, replace_convolutions
from acil.bench.training.settings import Settings
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
    plain: dict[nn.Module, type[nn.Conv2d]] = {
        module: ScaledConv2d for module in network.modules() if type(module) is nn.Conv2d
    }
    for module in plain:
        module.get_parameter("weight").requires_grad_(False)
    replace_convolutions(network, plain)


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
        maps = []
        for stages in zip(self.stable.stages(), self.plastic.stages(), strict=True):
            stable = plastic = x
            for fixed, free in zip(*stages, strict=True):
                stable, plastic = fixed(stable), free(plastic)
            # α · stable + (1 − α) · plastic
            x = torch.lerp(plastic, stable, self.share)
            maps.append(x)
        return maps


class AANets(Wrapper):
    """Train a host method on two branches."""

    name = "aanets"
    settings_type = AANetsSettings
    networks = 2

    def prepare(self, network: Any) -> None:
        """Give the network of the first increment two branches."""
        if not isinstance(network.backbone, TwoBranches):
            network.backbone = TwoBranches(network.backbone, self.settings.aanets_share)

    def rebuilt(self, backbone: Backbone, weights: Mapping[str, Tensor]) -> Backbone:
        if any(name.startswith("backbone.stable.") for name in weights):
            return TwoBranches(backbone, self.settings.aanets_share)
        return backbone
