"""Any network as a backbone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from torch import Tensor, nn

from acil.errors import InputError
from acil.vision.base import Backbone, Preprocessing


class WrappedBackbone(Backbone):
    """Use any `torch.nn.Module` that returns one row of features for each image.

    Parameters
    ----------
    module : nn.Module
        Takes normalised images, returns a tensor of shape (n, num_features).
    name : str
        Part of the identity of the features, such as ``"timm/vit_small_patch16_224"``.
    num_features : int
    preprocessing : Preprocessing
    taps : sequence of str, default=()
        Submodules, by their dotted names, whose output maps may be tapped, from input to output.

    Examples
    --------
    >>> import torch
    >>> average = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    >>> backbone = WrappedBackbone(average, "average", 1, Preprocessing((0.0,), (1.0,), 2))
    >>> backbone(torch.ones(3, 1, 2, 2)).shape
    torch.Size([3, 1])
    """

    def __init__(
        self,
        module: nn.Module,
        name: str,
        num_features: int,
        preprocessing: Preprocessing,
        taps: Sequence[str] = (),
    ) -> None:
        # Layers without parameters decide the features too, and the weights say nothing of them.
        layers = "\n".join(
            f"{path} {type(layer).__qualname__}" for path, layer in module.named_modules()
        )
        options = {"layers": hashlib.sha256(layers.encode()).hexdigest()}
        super().__init__(name, num_features, preprocessing, options)
        known = dict(module.named_modules())
        unknown = [tap for tap in taps if tap not in known]
        if unknown:
            raise InputError(
                f"{type(module).__name__} has no submodule {unknown[0]!r} to tap. "
                "Choose one of the names in module.named_modules()."
            )
        self.module = module
        self._tap_names = tuple(taps)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the module returns."""
        features: Tensor = self.module(x)
        return features

    def taps(self) -> dict[str, nn.Module]:
        """Return the chosen submodules."""
        known = dict(self.module.named_modules())
        return {name: known[name] for name in self._tap_names}
