"""What every backbone is, and those that can be trained: ResNet-32, ResNet-18 and a small one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from acil.encoders.images.decode import Preprocessing
from acil.errors import InputError

CIFAR_MEAN, CIFAR_STD = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
#: Of the digits with their 17 grey levels spread over 0 to 1.
DIGITS_MEAN, DIGITS_STD = (0.3053,), (0.3760,)
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
        return self.maps(x)[-1].mean(dim=(2, 3))

    def taps(self) -> dict[str, nn.Module]:
        """Return, from input to output, the modules whose output maps may be tapped, by name."""
        return {}

    def stages(self) -> list[list[nn.Module]]:
        """Return, from input to output, the modules of each stage; all in turn are the network."""
        raise InputError(f"The backbone {self.name!r} has no stages. Take a ResNet.")

    def maps(self, x: Tensor) -> list[Tensor]:
        """Return the map that each stage ends with, of shape (n, channels, height, width)."""
        maps = []
        for stage in self.stages():
            for module in stage:
                x = module(x)
            maps.append(x)
        return maps

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Copy weights into this network, or change nothing and say what does not fit (InputError).

        As `torch.nn.Module.load_state_dict`, but entries of a classifier on top (``ignored_prefixes``)
        are left out, and counters of batches, which files of old torch versions lack, may be missing.
        """
        tensors = {
            n: value for n, value in state_dict.items() if not n.startswith(self.ignored_prefixes)
        }
        expected = self.state_dict()
        faults = [f"{name} is not known" for name in tensors if strict and name not in expected]
        for name, tensor in expected.items():
            shape = tuple(tensors[name].shape) if name in tensors else None
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
        return super().load_state_dict(tensors, strict=False, assign=assign)


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """Make a convolution without bias whose weights are still to be drawn (`draw_weights_`)."""
    # Its constructor would draw them from the global generator.
    with torch.device("meta"):
        made = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    # As `to_empty`, which imports SymPy.
    made.weight = nn.Parameter(torch.empty(made.weight.shape, device="cpu"))
    return made


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


class PaddedShortcut(nn.Module):
    """Shortcut without parameters ("option A"): every second pixel, and channels of zeros around.

    Half of the channels that are missing go before the image's own, half behind.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        before = (outputs - inputs) // 2
        self.padding = (0, 0, 0, 0, before, outputs - inputs - before)

    def forward(self, x: Tensor) -> Tensor:
        """Return the map at half the resolution, (n, outputs, h / 2, w / 2)."""
        return functional.pad(x[:, :, ::2, ::2], self.padding)


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut around them, which ``downsample`` may change."""

    def __init__(self, inputs: int, outputs: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = convolution(inputs, outputs, 3, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = convolution(outputs, outputs, 3)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = downsample
        #: Whether the sum goes through a ReLU.
        self.last_relu = True

    def forward(self, x: Tensor) -> Tensor:
        """Return the next map; the input, which a tap may hold, is not changed."""
        y = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += x if self.downsample is None else self.downsample(x)
        return functional.relu(y, inplace=True) if self.last_relu else y


def _stage(
    inputs: int, outputs: int, blocks: int, stride: int, option: str = "B", last_relu: bool = True
) -> nn.Sequential:
    downsample: nn.Module | None = None
    if stride != 1 and option == "A":
        downsample = PaddedShortcut(inputs, outputs)
    elif stride != 1:
        downsample = nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
    made = [BasicBlock(inputs, outputs, stride, downsample)]
    made += [BasicBlock(outputs, outputs, 1, None) for _ in range(blocks - 1)]
    made[-1].last_relu = last_relu
    return nn.Sequential(*made)


def _block_taps(stages: list[nn.Sequential]) -> dict[str, nn.Module]:
    return {
        f"stage{number}.{index}": block
        for number, stage in enumerate(stages, start=1)
        for index, block in enumerate(stage)
    }


class ResNet32(Backbone):
    """ResNet-32 for 32 x 32 images: 16 channels, three stages of five blocks, 64 features.

    Parameters
    ----------
    option : {"A", "B"}
        Shortcuts between stages: every second pixel with channels of zeros around (463,504 parameters),
        or a 1 x 1 convolution (466,256).
    last_relu : bool, default=True
        Whether the last block ends with a ReLU, so that features are not negative.
    init : {"fan_out", "fan_in"}
    size : int, default=32
        Height and width of images.
    plain_sums : bool, default=False
        PODNet's network: no ReLU follows a sum, blocks start as their shortcuts (the last normalisation
        at zero), and the last block is a stage of its own.
    """

    def __init__(
        self,
        generator: torch.Generator | None = None,
        *,
        option: str = "A",
        last_relu: bool = True,
        init: Init = "fan_out",
        size: int = 32,
        plain_sums: bool = False,
    ) -> None:
        if option not in ("A", "B"):
            raise InputError(f"The shortcut option of ResNet-32 must be 'A' or 'B'. Got {option!r}.")
        options = {"option": option, "last_relu": last_relu, "init": init, "size": size}
        if plain_sums:
            # Named only where it differs: options are part of the identity of weights stored before.
            options["plain_sums"] = True
        super().__init__("resnet32", 64, Preprocessing(CIFAR_MEAN, CIFAR_STD, size), options)
        self.stem = nn.Sequential(convolution(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.stage1 = _stage(16, 16, 5, 1, option)
        self.stage2 = _stage(16, 32, 5, 2, option)
        self.stage3 = _stage(32, 64, 5, 2, option, last_relu)
        draw_weights_(self, generator, init)
        if plain_sums:
            for block in (*self.stage1, *self.stage2, *self.stage3):
                block.last_relu = False
                nn.init.zeros_(block.bn2.weight)

    def taps(self) -> dict[str, nn.Module]:
        """Return "stem" and the blocks "stage1.0" … "stage3.4"."""
        return {"stem": self.stem, **_block_taps([self.stage1, self.stage2, self.stage3])}

    def stages(self) -> list[list[nn.Module]]:
        """Return the three stages, the stem in the first; of PODNet's network four."""
        first: list[list[nn.Module]] = [[self.stem, *self.stage1], [*self.stage2]]
        last = [*self.stage3]
        return [*first, last[:-1], last[-1:]] if "plain_sums" in self.options else [*first, last]


class ResNet18(Backbone):
    """ResNet-18, with torchvision's parameter names: its weights for 224 x 224 images load unchanged.

    Parameters
    ----------
    size : int, default=224
        Height and width of images.
    last_relu : bool, default=True
        Whether the last block ends with a ReLU, so that features are not negative.
    stem : {"large", "small"}
        "small" is what images of 32 or 64 pixels need: a 3 x 3 convolution of stride 1 and no pooling,
        instead of a 7 x 7 convolution of stride 2 and pooling.
    """

    ignored_prefixes = ("fc.",)

    def __init__(
        self,
        generator: torch.Generator | None = None,
        *,
        size: int = 224,
        last_relu: bool = True,
        stem: str = "large",
    ) -> None:
        if stem not in ("large", "small"):
            raise InputError(f"The stem of ResNet-18 must be 'large' or 'small'. Got {stem!r}.")
        preprocessing = Preprocessing(IMAGENET_MEAN, IMAGENET_STD, size)
        # Named only where they differ: options are part of the identity of weights stored before.
        options: dict[str, Any] = {"size": size}
        options |= {} if last_relu else {"last_relu": False}
        options |= {} if stem == "large" else {"stem": stem}
        super().__init__("resnet18", 512, preprocessing, options)
        small = stem == "small"
        self.conv1 = convolution(3, 64, 3) if small else convolution(3, 64, 7, 2)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = _stage(64, 64, 2, 1)
        self.layer2 = _stage(64, 128, 2, 2)
        self.layer3 = _stage(128, 256, 2, 2)
        self.layer4 = _stage(256, 512, 2, 2, last_relu=last_relu)
        draw_weights_(self, generator)

    def taps(self) -> dict[str, nn.Module]:
        """Return "stem" (after its pooling, if any) and the blocks "stage1.0" … "stage4.1"."""
        stages = [self.layer1, self.layer2, self.layer3, self.layer4]
        return {"stem": self.maxpool, **_block_taps(stages)}

    def stages(self) -> list[list[nn.Module]]:
        """Return the four stages, the stem in the first."""
        stem = [self.conv1, self.bn1, nn.ReLU(inplace=True), self.maxpool]
        return [[*stem, *self.layer1], [*self.layer2], [*self.layer3], [*self.layer4]]


class SmallCNN(Backbone):
    """Two convolutions for small images, by default grey ones of 8 x 8: 64 features, 18,912 parameters.

    Colour images have three ``channels``.
    """

    def __init__(
        self, generator: torch.Generator | None = None, *, size: int = 8, channels: int = 1
    ) -> None:
        if channels not in (1, 3):
            raise InputError(f"The channels of a small network must be 1 or 3. Got {channels!r}.")
        mean, std = (DIGITS_MEAN, DIGITS_STD) if channels == 1 else (IMAGENET_MEAN, IMAGENET_STD)
        # Named only where it differs: options are part of the identity of weights stored before.
        options = {"size": size} if channels == 1 else {"size": size, "channels": channels}
        super().__init__("smallcnn", 64, Preprocessing(mean, std, size), options)
        first = convolution(channels, 32, 3)
        self.stage1 = nn.Sequential(first, nn.BatchNorm2d(32), nn.ReLU(inplace=True))
        self.pool = nn.MaxPool2d(2)
        self.stage2 = nn.Sequential(convolution(32, 64, 3), nn.BatchNorm2d(64), nn.ReLU(inplace=True))
        draw_weights_(self, generator)

    def taps(self) -> dict[str, nn.Module]:
        """Return "stage1" (8 x 8 places) and "stage2" (4 x 4)."""
        return {"stage1": self.stage1, "stage2": self.stage2}

    def stages(self) -> list[list[nn.Module]]:
        """Return the two stages."""
        return [[self.stage1], [self.pool, self.stage2]]
