"""Convolutions whose kernels stay as they are, and of which only the scale of each is trained."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from acil.training.convolution import convolution, suits


class ScaledConv2d(nn.Conv2d):
    """A convolution with frozen kernels w and one trained scale for each: w_oi · scale_oi.

    Made of a convolution that is there, see :func:`scale_kernels_`.
    """

    scale: nn.Parameter
    #: What half-precision training on a GPU runs instead, see `acil.training.convolution`.
    fast_class: ClassVar[type[nn.Conv2d] | None] = None

    def forward(self, x: Tensor) -> Tensor:
        """Return the map."""
        made: Tensor = self._conv_forward(x, self.weight * self.scale, self.bias)
        return made


class _FastScaledConv2d(ScaledConv2d):
    """The same by our kernels, where they fit."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the map; a float32 input is cast, as autocast would."""
        weight = self.weight * self.scale
        made: Tensor
        if x.is_cuda and suits(x, weight):
            made = convolution(x.to(weight.dtype), weight, self.stride[0])
        else:
            made = self._conv_forward(x, weight, self.bias)
        return made


ScaledConv2d.fast_class = _FastScaledConv2d
_FastScaledConv2d.fast_class = None


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


def has_scales(network: nn.Module) -> bool:
    """Say whether a network has convolutions with scales."""
    return any(isinstance(module, ScaledConv2d) for module in network.modules())
