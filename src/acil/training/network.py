"""A backbone with the linear classifier that it is trained with."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from acil.errors import InputError
from acil.vision.backbones import Backbone


class Network(nn.Module):
    """A backbone and a linear classifier on its features.

    Parameters
    ----------
    backbone : Backbone
    n_classes : int
        Outputs at the start; :meth:`grow` adds more.
    generator : torch.Generator, optional
        On the CPU; draws the classifier's first weights, uniform in ± 1/√(number of features).
    """

    def __init__(
        self, backbone: Backbone, n_classes: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        if n_classes < 1:
            raise InputError(f"A network needs at least one class. Got n_classes = {n_classes}.")
        self.backbone = backbone
        self.classifier = linear(backbone.num_features, n_classes, generator)

    @property
    def n_classes(self) -> int:
        """Number of outputs."""
        return self.classifier.out_features

    def features(self, x: Tensor) -> Tensor:
        """Return the backbone's features of normalised images, (n, num_features)."""
        found: Tensor = self.backbone(x)
        return found

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of normalised images, (n, n_classes)."""
        scores: Tensor = self.classifier(self.features(x))
        return scores

    def grow(self, n_classes: int, generator: torch.Generator | None = None) -> None:
        """Make room for more classes; the scores of the old ones stay as they are.

        Parameters
        ----------
        n_classes : int
            Number of outputs afterwards, old ones included.
        generator : torch.Generator, optional
            On the CPU; draws the new weights.
        """
        old = self.classifier
        if n_classes < old.out_features:
            raise InputError(
                f"The network has {old.out_features} outputs and cannot shrink to {n_classes}."
            )
        if n_classes == old.out_features:
            return
        new = linear(old.in_features, n_classes - old.out_features, generator).to(old.weight)
        grown = nn.utils.skip_init(  # type: ignore[no-untyped-call]
            nn.Linear, old.in_features, n_classes, device=old.weight.device, dtype=old.weight.dtype
        )
        with torch.no_grad():
            torch.cat([old.weight, new.weight], out=grown.weight.data)
            torch.cat([old.bias, new.bias], out=grown.bias.data)
        self.classifier = grown


def linear(n_in: int, n_out: int, generator: torch.Generator | None) -> nn.Linear:
    """Return a linear layer with torch's usual distribution, drawn from a generator of ours."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, n_in, n_out)  # type: ignore[no-untyped-call]
    bound = 1 / math.sqrt(n_in)
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.uniform_(-bound, bound, generator=generator)
    return layer
