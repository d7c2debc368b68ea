"""Features on one scale, set by the base phase and the same ever after."""

from __future__ import annotations

import torch
from torch import Tensor

#: Deviations below this share of the largest are those of dimensions that hardly move.
_LEAST = 1e-6


class Standard:
    """Centre each dimension, give all the same deviation, and keep the mean squared length.

    Whatever comes later is treated with the base phase's numbers, so that the features of an image do
    not depend on the phase it arrives in, and sums over images stay sums.

    Parameters
    ----------
    features : Tensor of shape (n, d), float32
        Of the base phase.

    Examples
    --------
    >>> import torch
    >>> standard = Standard(torch.tensor([[1.0, 10.0], [3.0, 30.0]]))
    >>> standard(torch.tensor([[3.0, 10.0]])).round(decimals=3)
    tensor([[ 15.8900, -15.8900]])
    """

    def __init__(self, features: Tensor) -> None:
        values = features.double()
        self._mean = values.mean(dim=0)
        deviation = (values - self._mean).square().mean(dim=0).sqrt()
        length = values.square().sum(dim=1).mean().sqrt()
        least = (_LEAST * deviation.max()).clamp_min(torch.finfo(torch.float32).tiny)
        # A dimension that never moves in the base phase says nothing about scale: it is left out.
        moving = deviation > least
        self._factor = torch.where(moving, length / moving.sum().clamp_min(1).sqrt() / deviation, 0.0)

    def __call__(self, features: Tensor) -> Tensor:
        """Return features of shape (n, d) on the scale of the base phase, float32."""
        return ((features.double() - self._mean) * self._factor).float()
