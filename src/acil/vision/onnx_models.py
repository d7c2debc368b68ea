"""Networks as ONNX models: run by onnxruntime, and exported by torch."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from acil.errors import InputError, MissingExtraError, ModelFileError, UnsupportedError
from acil.vision.base import Backbone, Preprocessing, normalise
from acil.vision.embedder import Embedder, worker_threads

#: Widely supported, and the lowest that torch's exporter writes without converting.
OPSET = 18
#: Entry of an ONNX file's metadata that says how pixels are normalised.
METADATA_KEY = "acil_preprocessing"
#: What networks trained on ImageNet expect unless their file says otherwise.
IMAGENET = Preprocessing((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 224)
IMAGENET_CROP = 0.875
#: Images per thread in a batch: enough that threads rarely wait, few enough that others get a turn.
_IMAGES_PER_THREAD = 4
_ELEMENTS = {"tensor(uint8)": np.uint8, "tensor(float)": np.float32}


class OnnxEmbedder(Embedder):
    """An ONNX model from images to features.

    Parameters
    ----------
    content : bytes
        The model: one input of shape (n or 1, channels, size, size), uint8 pixels or normalised float32;
        one output, or the first, of shape (n, features).
    name : str
    weights : str, optional
        Hash of the weights; by default that of ``content``.
    preprocessing : Preprocessing, optional
    crop : float, optional
        By default both are what the file's metadata says (``acil_preprocessing``: mean, std, size, crop
        as JSON), else those of ImageNet, with the size of the model's input.

    Notes
    -----
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
        crop: float | None = None,
    ) -> None:
        self._content = content
        n_threads = worker_threads()
        self.batch_size = n_threads * _IMAGES_PER_THREAD
        self._runners = ThreadPoolExecutor(n_threads, thread_name_prefix="acil-network")
        self._session = _session(content, name)
        self._input, self._output = self._session.get_inputs()[0], self._session.get_outputs()[0]
        self._dtype = _element_type(self._session, name)
        found, found_crop = _preprocessing(self._session, self._input.shape, name)
        super().__init__(
            name,
            weights or hashlib.sha256(content).hexdigest(),
            preprocessing or found,
            crop if crop is not None else found_crop,
            "onnxruntime",
        )
        needed = self.preprocessing
        blank = torch.zeros(1, len(needed.mean), needed.size, needed.size, dtype=torch.uint8)
        self._num_features = self._row(blank).shape[1]

    @property
    def num_features(self) -> int:
        """Number of features of an image."""
        return self._num_features

    def embed(self, pixels: Tensor) -> Tensor:
        """Return the features of images."""
        if len(pixels) == 0:
            return torch.empty(0, self._num_features)
        if len(pixels) == 1:
            return self._row(pixels)
        images = torch.split(pixels, 1)
        return torch.cat(list(self._runners.map(self._row, images)))

    def to_onnx(self) -> bytes:
        """Return the model as it is in its file."""
        if self._dtype != np.uint8:
            raise InputError(
                f"The network {self.name!r} takes normalised images, and a model that is exported takes "
                "pixels. Export the network again with an input of type uint8 that it normalises itself."
            )
        return self._content

    def _row(self, pixels: Tensor) -> Tensor:
        x = pixels if self._dtype == np.uint8 else normalise(pixels, self.preprocessing)
        try:
            (found,) = self._session.run([self._output.name], {self._input.name: x.numpy()})
        except Exception as error:  # onnxruntime has its own classes for what models do at run time
            raise InputError(
                f"The network {self.name!r} cannot run on an image of shape {tuple(x.shape[1:])}: "
                f"{str(error).splitlines()[0]}"
            ) from None
        features = torch.from_numpy(np.asarray(found, dtype=np.float32))
        if features.ndim != 2 or len(features) != 1:
            raise InputError(
                f"The network {self.name!r} must return one row of features for an image. Got an output "
                f"of shape {tuple(features.shape)}. Add pooling and flattening to it."
            )
        return features


def open_onnx(path: str, name: str = "onnx") -> OnnxEmbedder:
    """Open an ONNX file as an embedder; the hash of the file is its identity, not its place."""
    file = Path(path)
    try:
        if file.exists() and not file.is_file():
            raise ModelFileError(f"Cannot read {path}: it is not a regular file. Give an ONNX file.")
        return OnnxEmbedder(file.read_bytes(), name)
    except OSError as error:
        raise ModelFileError(
            f"Cannot read {path}: {error.strerror or error}. Check path and permissions."
        ) from error


def _session(content: bytes, name: str) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError(
            f"The network {name!r} runs in onnxruntime, which is not installed. Install it with: "
            "pip install 'acil[onnx]'"
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
        raise ModelFileError(
            f"Cannot use {name!r} as an ONNX model: {str(error).splitlines()[0]} Give another "
            "copy of it."
        ) from None


def _element_type(session: Any, name: str) -> Any:
    inputs = session.get_inputs()
    if len(inputs) != 1 or inputs[0].type not in _ELEMENTS or len(inputs[0].shape) != 4:
        described = ", ".join(f"{i.name}: {i.type} {i.shape}" for i in inputs)
        raise InputError(
            f"The network {name!r} must have one input of shape (n, channels, height, width), uint8 or "
            f"float32. Got {described}."
        )
    return _ELEMENTS[inputs[0].type]


def _preprocessing(session: Any, shape: list[Any], name: str) -> tuple[Preprocessing, float]:
    text = session.get_modelmeta().custom_metadata_map.get(METADATA_KEY)
    if text is not None:
        try:
            values = json.loads(text)
            return Preprocessing.from_dict(values), _crop(values.get("crop", 1.0))
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(
                f"The entry {METADATA_KEY!r} of the network {name!r} is no preprocessing: {error}"
            ) from None
    height = shape[2] if isinstance(shape[2], int) else IMAGENET.size
    channels = shape[1] if isinstance(shape[1], int) else 3
    if channels not in (1, 3):
        raise InputError(f"The network {name!r} takes images of {channels} channels, not of 1 or 3.")
    mean = IMAGENET.mean if channels == 3 else (sum(IMAGENET.mean) / 3,)
    std = IMAGENET.std if channels == 3 else (sum(IMAGENET.std) / 3,)
    return Preprocessing(mean, std, height), IMAGENET_CROP


def _crop(value: Any) -> float:
    crop = float(value)
    if not 0 < crop <= 1:
        raise ValueError(f"crop must be in (0, 1], got {value!r}")
    return crop


class _WithPreprocessing(nn.Module):
    """A backbone that takes uint8 pixels."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, pixels: Tensor) -> Tensor:
        """Normalise, then run the network."""
        features: Tensor = self.backbone(normalise(pixels, self.backbone.preprocessing))
        return features


def exported_network(backbone: Backbone) -> bytes:
    """Return a network as an ONNX model from ``pixels`` to ``features``, for any number of images.

    Parameters
    ----------
    backbone : Backbone
        On the CPU. ``pixels`` are uint8 of shape (n, channels, size, size): normalising them is part of
        the model.
    """
    needed = backbone.preprocessing
    device = next((p.device for p in backbone.parameters()), torch.device("cpu"))
    pixels = torch.zeros(2, len(needed.mean), needed.size, needed.size, dtype=torch.uint8, device=device)
    # Each submodule by itself, since some may have been frozen.
    modes = [(module, module.training) for module in backbone.modules()]
    try:
        return export_module(_WithPreprocessing(backbone).eval(), pixels, "pixels", ["features"])
    finally:
        for module, training in modes:
            module.training = training


def export_module(
    module: nn.Module, example: Tensor, input_name: str, output_names: list[str], opset: int = OPSET
) -> bytes:
    """Return a module of one input as an ONNX model.

    Parameters
    ----------
    module : nn.Module
    example : Tensor of shape (2, …)
        An input; the first dimension stays open.
    input_name : str
    output_names : list of str
    opset : int
        Version of the ONNX operators.

    Raises
    ------
    UnsupportedError
        If torch cannot express the module in ONNX.
    """
    require_onnx()
    dynamic: Any = ({0: torch.export.Dim.DYNAMIC},)
    try:
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                module,
                (example,),
                input_names=[input_name],
                output_names=output_names,
                dynamic_shapes=dynamic,
                opset_version=opset,
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # the exporter wraps whatever the module raised
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UnsupportedError(
            f"torch cannot export this network to ONNX: {reason} Use another backbone, or export the "
            "network with the tools of the library it comes from."
        ) from error
    if program is None:
        raise UnsupportedError("torch returned no ONNX model for this network.")
    content: bytes = program.model_proto.SerializeToString()
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
            "pip install 'acil[onnx]'"
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
