"""What every backbone is: a network with a name, a number of features and a preprocessing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from acil.errors import InputError
from acil.vision.decode import Preprocessing

#: Whose number a weight is scaled by: of outputs or of inputs.
Init = Literal["fan_out", "fan_in"]

#: What a message lists of a state dict that does not fit.
_SHOWN = 4


class Backbone(nn.Module):
    """A network that turns normalised images into features.

    Parameters
    ----------
    name : str
        Its name in the registry.
    num_features : int
    preprocessing : Preprocessing
    options : dict, optional
        What the registry needs, besides the name, to build the same network again; JSON-able.
    """

    #: Prefixes of entries of a state dict that belong to a classifier on top and are left out.
    ignored_prefixes: tuple[str, ...] = ()

    def __init__(
        self,
        name: str,
        num_features: int,
        preprocessing: Preprocessing,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.num_features = num_features
        self.preprocessing = preprocessing
        self.options = dict(options or {})

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of normalised images, (n, num_features): the mean of the last map."""
        for stage in self.stages():
            for module in stage:
                x = module(x)
        return x.mean(dim=(2, 3))

    def taps(self) -> dict[str, nn.Module]:
        """Return, from input to output, the modules whose output maps may be tapped, by name."""
        return {}

    def stages(self) -> list[list[nn.Module]]:
        """Return, from input to output, the modules of each stage; all in turn are the network."""
        raise InputError(f"The backbone {self.name!r} has no stages. Take a ResNet.")

    def maps(self, x: Tensor) -> list[Tensor]:
        """Return the map that each stage ends with, of shape (n, channels, height, width)."""
        found = []
        for stage in self.stages():
            for module in stage:
                x = module(x)
            found.append(x)
        return found

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Copy weights into this network, or change nothing and say what does not fit (InputError).

        As `torch.nn.Module.load_state_dict`, but entries of a classifier on top (``ignored_prefixes``)
        are left out, and counters of batches, which files of old torch versions lack, may be missing.
        """
        given = {n: value for n, value in state_dict.items() if not n.startswith(self.ignored_prefixes)}
        own = self.state_dict()
        faults = [f"{name} is not known" for name in given if strict and name not in own]
        for name, tensor in own.items():
            shape = tuple(given[name].shape) if name in given else None
            if shape is None and strict and not name.endswith("num_batches_tracked"):
                faults.append(f"{name} is missing")
            elif shape is not None and shape != tensor.shape:
                faults.append(f"{name} has shape {shape}, not {tuple(tensor.shape)}")
        if faults:
            more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
            raise InputError(
                f"These weights do not fit the backbone {self.name!r} with options {self.options}: "
                f"{'; '.join(faults[:_SHOWN])}{more}. Use weights of the same network."
            )
        return super().load_state_dict(given, strict=False, assign=assign)


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """Make a convolution without bias whose weights are still to be drawn (`draw_weights_`)."""
    # Its constructor would draw them from the global generator.
    with torch.device("meta"):
        empty = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return empty.to_empty(device="cpu")


def draw_weights_(network: nn.Module, generator: torch.Generator | None, mode: Init = "fan_out") -> None:
    """Draw all convolutions from N(0, 2 / fan), fan the number of outputs or inputs of a weight.

    Without a generator, one with seed 0 draws: nothing depends on the global one.
    """
    if mode not in get_args(Init):
        raise InputError(f"init must be 'fan_out' or 'fan_in'. Got {mode!r}.")
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu", generator=generator)


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

    Examples
    --------
    >>> import torch
    >>> average = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    >>> backbone = WrappedBackbone(average, "average", 1, Preprocessing((0.0,), (1.0,), 2))
    >>> backbone(torch.ones(3, 1, 2, 2)).shape
    torch.Size([3, 1])
    """

    def __init__(
        self, module: nn.Module, name: str, num_features: int, preprocessing: Preprocessing
    ) -> None:
        # Layers without parameters change the features, too, but are not in the weights.
        modules = module.named_modules()
        layers = "\n".join(f"{path} {type(layer).__qualname__}" for path, layer in modules)
        options = {"layers": hashlib.sha256(layers.encode()).hexdigest()}
        super().__init__(name, num_features, preprocessing, options)
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        """Return what the module returns."""
        features: Tensor = self.module(x)
        return features
