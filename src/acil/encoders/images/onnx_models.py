"""Networks as ONNX models: run by onnxruntime, and exported by torch."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from acil.core.files.reading import cannot_read
from acil.core.linalg import threads_for
from acil.encoders.images.architectures import IMAGENET_MEAN, IMAGENET_STD, Backbone
from acil.encoders.images.decode import Preprocessing, normalise
from acil.encoders.images.embedder import Embedder, worker_threads
from acil.encoders.images.extract import evaluating
from acil.errors import InputError, MissingExtraError, ModelFileError, UnsupportedError
from acil.extras import install

#: Widely supported, and the lowest that torch's exporter writes without converting.
OPSET = 18
#: Entry of an ONNX file's metadata that says how pixels are normalised.
METADATA_KEY = "acil_preprocessing"
#: What networks trained on ImageNet expect unless their file says otherwise.
IMAGENET = Preprocessing(IMAGENET_MEAN, IMAGENET_STD, 224)
IMAGENET_CROP = 0.875
#: Images per thread in a batch: enough that threads rarely wait, few enough that others get a turn.
_IMAGES_PER_THREAD = 4


class OnnxEmbedder(Embedder):
    """An ONNX model from images to features.

    It has one input of shape (n or 1, channels, size, size), uint8 pixels or normalised float32; its
    first output has shape (n, features). Without a given preprocessing, that and the crop are what its
    metadata says (``acil_preprocessing``: mean, std, size, crop as JSON), else those of ImageNet with
    the size of its input.

    Each image runs by itself in one thread, and several images run at a time. So any model gives
    features that depend neither on the batch nor on the number of threads. It is also the faster way:
    threads that share an image wait for each other at every layer.
    """

    def __init__(
        self,
        content: bytes,
        name: str,
        weights: str | None = None,
        preprocessing: Preprocessing | None = None,
        crop: float = 1.0,
    ) -> None:
        self._content = content
        n_threads = worker_threads()
        self.batch_size = n_threads * _IMAGES_PER_THREAD
        self._runners = ThreadPoolExecutor(n_threads, thread_name_prefix="acil-network")
        self._session = open_session(content, name)
        inputs: list[Any] = [(i.name, i.type, i.shape) for i in self._session.get_inputs()]
        self._input, kind, shape = inputs[0] if len(inputs) == 1 else ("", "", [])
        if kind not in ("tensor(uint8)", "tensor(float)") or len(shape) != 4:
            raise InputError(
                f"The network {name!r} must have one input of shape (n, channels, height, width), uint8 "
                f"or float32. Got {inputs}."
            )
        self._takes_pixels = kind == "tensor(uint8)"
        if preprocessing is None:
            preprocessing, crop = _preprocessing(self._session, shape, name)
        digest = weights or hashlib.sha256(content).hexdigest()
        super().__init__(name, digest, preprocessing, crop, "onnxruntime")
        blank = torch.zeros(
            1, len(preprocessing.mean), preprocessing.size, preprocessing.size, dtype=torch.uint8
        )
        self.num_features = self._row(blank).shape[1]

    def embed(self, pixels: Tensor) -> Tensor:
        """Return the features of images."""
        if len(pixels) == 0:
            return torch.empty(0, self.num_features)
        if len(pixels) == 1:
            return self._row(pixels)
        return torch.cat(list(self._runners.map(self._row, torch.split(pixels, 1))))

    def to_onnx(self) -> bytes:
        """Return the model as it is in its file."""
        if not self._takes_pixels:
            raise InputError(
                f"The network {self.name!r} takes normalised images, and a model that is exported takes "
                "pixels. Export the network again with an input of type uint8 that it normalises itself."
            )
        return self._content

    def _row(self, pixels: Tensor) -> Tensor:
        with threads_for(pixels.numel()):
            x = pixels if self._takes_pixels else normalise(pixels, self.preprocessing)
        try:
            output = self._session.run(None, {self._input: x.numpy()})[0]
        except Exception as error:  # onnxruntime has its own classes for what models do at run time
            raise InputError(
                f"The network {self.name!r} cannot run on an image of shape {tuple(x.shape[1:])}: "
                f"{str(error).splitlines()[0]}"
            ) from None
        features = torch.from_numpy(np.asarray(output, dtype=np.float32))
        if features.ndim != 2 or len(features) != 1:
            raise InputError(
                f"The network {self.name!r} must return one row of features for an image. Got an output "
                f"of shape {tuple(features.shape)}. Add pooling and flattening to it."
            )
        return features


def open_onnx(path: str) -> OnnxEmbedder:
    """Open an ONNX file as an embedder; the hash of its content is its identity, not its place."""
    return OnnxEmbedder(read_onnx(path), "onnx")


def read_onnx(path: str | os.PathLike[str]) -> bytes:
    """Return the content of an ONNX file, in one piece with weights that lie beside it."""
    file = Path(path)
    try:
        if file.exists() and not file.is_file():
            raise ModelFileError(f"Cannot read {path}: it is not a regular file. Give an ONNX file.")
        content = file.read_bytes()
    except OSError as error:
        raise cannot_read(path, error) from error
    if b"location" in content:  # the word that says where weights are, if not in the file
        content = _with_weights(file)
    return content


def _with_weights(file: Path) -> bytes:
    """Return an ONNX model in one piece, with weights that lie in files beside it."""
    require_onnx()
    import onnx
    from onnx.external_data_helper import _get_all_tensors, uses_external_data

    try:
        model = onnx.load(file, load_external_data=False)
        if not any(map(uses_external_data, _get_all_tensors(model))):
            return file.read_bytes()
        onnx.load_external_data_for_model(model, str(file.parent))
        content: bytes = model.SerializeToString(deterministic=True)
    except Exception as error:  # onnx and protobuf raise classes of their own
        reason = str(error).strip().partition("\n")[0]
        raise ModelFileError(
            f"Cannot read {file} with the weights beside it: {reason} Put all its files into one "
            "folder, or export it as one file (torch.onnx.export: external_data=False)."
        ) from None
    return content


def open_session(content: bytes, name: str) -> Any:
    """Return an ONNX model, of a network of this name, ready to be run in one thread."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError(
            f"The network {name!r} runs in onnxruntime, which is not installed. Install it with: "
            f"{install('onnx')}"
        ) from error
    options = onnxruntime.SessionOptions()
    # The library would write its own warnings to stderr.
    options.log_severity_level = 3
    # We run one image per thread ourselves.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises classes of its own for each kind of damage
        reason = str(error).splitlines()[0]
        raise ModelFileError(
            f"Cannot use {name!r} as an ONNX model: {reason} Give another copy."
        ) from None


def _preprocessing(session: Any, shape: list[Any], name: str) -> tuple[Preprocessing, float]:
    text = session.get_modelmeta().custom_metadata_map.get(METADATA_KEY)
    if text is not None:
        try:
            values = json.loads(text)
            crop = float(values.get("crop", 1.0))
            if not 0 < crop <= 1:
                raise ValueError(f"crop must be in (0, 1], got {crop}")
            return Preprocessing.from_dict(values), crop
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(
                f"The entry {METADATA_KEY!r} of the network {name!r} is no preprocessing: {error}"
            ) from None
    _, channels, height, _ = (side if isinstance(side, int) else None for side in shape)
    if channels not in (1, 3, None):
        raise InputError(f"The network {name!r} takes images of {channels} channels, not of 1 or 3.")
    mean, std = IMAGENET.mean, IMAGENET.std
    if channels == 1:
        mean, std = (sum(mean) / 3,), (sum(std) / 3,)
    return Preprocessing(mean, std, height or IMAGENET.size), IMAGENET_CROP


class _Normalise(nn.Module):
    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.preprocessing = preprocessing

    def forward(self, pixels: Tensor) -> Tensor:
        return normalise(pixels, self.preprocessing)


def exported_network(backbone: Backbone) -> bytes:
    """Return a network as an ONNX model from ``pixels`` to ``features``, for any number of images.

    ``pixels`` are uint8 of shape (n, channels, size, size): normalising them is part of the model.
    """
    needed = backbone.preprocessing
    device = next((p.device for p in backbone.parameters()), torch.device("cpu"))
    pixels = torch.zeros(2, len(needed.mean), needed.size, needed.size, dtype=torch.uint8, device=device)
    with evaluating(backbone):
        module = nn.Sequential(_Normalise(needed), backbone).eval()
        return export_module(module, pixels, "pixels", ["features"])


def export_module(
    module: nn.Module,
    example: Tensor | tuple[Tensor, ...],
    input_name: str | list[str],
    output_names: list[str],
    opset: int = OPSET,
    open_axes: int = 1,
) -> bytes:
    """Return a module as an ONNX model; so many first dimensions of its examples stay open."""
    require_onnx()
    examples = example if isinstance(example, tuple) else (example,)
    dynamic: Any = tuple(dict.fromkeys(range(open_axes), torch.export.Dim.DYNAMIC) for _ in examples)
    try:
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                module,
                examples,
                input_names=[input_name] if isinstance(input_name, str) else input_name,
                output_names=output_names,
                dynamic_shapes=dynamic,
                opset_version=opset,
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # the exporter wraps whatever the module raised
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UnsupportedError(
            f"torch cannot export this network to ONNX: {reason} Use another backbone, or export the "
            "network with the tools of the library it comes from."
        ) from error
    model = program.model_proto  # type: ignore[union-attr]
    for node in model.graph.node:
        # Where the code of the network lies on this machine, line by line
        del node.metadata_props[:]
    content: bytes = model.SerializeToString()
    return content


def require_onnx() -> None:
    """Raise a clear error unless everything of the extra ``onnx`` is installed."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            f"ONNX needs the package {error.name!r}, which is not installed. Install it with: "
            f"{install('onnx')}"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's own messages and warnings."""
    chatty = logging.getLogger("torch.onnx")
    before = chatty.level
    chatty.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        chatty.setLevel(before)
