"""Networks for own images behind one interface: pixels in, features out, always the same bits."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Any, Literal

import torch
from torch import Tensor

from acil.errors import InputError
from acil.vision.backbones import fingerprint
from acil.vision.base import Backbone, Preprocessing
from acil.vision.extract import FeatureExtractor
from acil.vision.imageset import ImageSet


class Embedder(ABC):
    """A network that turns images into features.

    Parameters
    ----------
    name : str
        Names the network, not a place on this machine.
    weights : str
        Hash of everything that decides the features, but the preprocessing.
    preprocessing : Preprocessing
        Applied by the embedder itself; images come as uint8.
    crop : float
        Part of the shorter side of an image that is kept; see `acil.vision.decode`.
    engine : str
        What runs the network: features of different engines differ in the last digits.

    Notes
    -----
    Images run one at a time, or in batches that are always full: the features of an image do not depend
    on what runs beside it. Only so can it be forgotten exactly.
    """

    #: Images that should be given at once.
    batch_size = 1

    def __init__(
        self, name: str, weights: str, preprocessing: Preprocessing, crop: float, engine: str
    ) -> None:
        self.name = name
        self.weights = weights
        self.preprocessing = preprocessing
        self.crop = crop
        self.engine = engine

    @property
    def identity(self) -> dict[str, Any]:
        """What a model file keeps of the network, and compares before it is used."""
        return {
            "name": self.name,
            "weights": self.weights,
            "preprocessing": {**self.preprocessing.to_dict(), "crop": self.crop},
            "engine": self.engine,
        }

    @property
    def mode(self) -> Literal["RGB", "L"]:
        """Colour or greyscale, as `acil.vision.decode` takes it."""
        return "RGB" if len(self.preprocessing.mean) == 3 else "L"

    @property
    @abstractmethod
    def num_features(self) -> int:
        """Number of features of an image."""

    @abstractmethod
    def embed(self, pixels: Tensor) -> Tensor:
        """Return the features of images; may be called from several threads.

        Parameters
        ----------
        pixels : Tensor of shape (n, channels, size, size), uint8

        Returns
        -------
        Tensor of shape (n, num_features), float32, on the CPU
        """

    @abstractmethod
    def to_onnx(self) -> bytes:
        """Return the network as an ONNX model: pixels, uint8, to features."""


class TorchEmbedder(Embedder):
    """A `Backbone` run by torch: one image at a time on the CPU, full batches on other devices.

    Parameters
    ----------
    backbone : Backbone
    crop : float, default=1
    device : str or torch.device, default="cpu"

    Examples
    --------
    >>> import torch
    >>> from acil.vision import build
    >>> embedder = TorchEmbedder(build("smallcnn"))
    >>> embedder.embed(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).shape
    torch.Size([2, 64])
    """

    def __init__(
        self, backbone: Backbone, crop: float = 1.0, device: str | torch.device = "cpu"
    ) -> None:
        if len(backbone.preprocessing.mean) not in (1, 3):
            raise InputError(
                f"The backbone {backbone.name!r} takes images of {len(backbone.preprocessing.mean)} "
                "channels. Use one for colour (3) or greyscale (1)."
            )
        where = torch.device(device)
        engine = "torch" if where.type == "cpu" else f"torch-{where.type}"
        super().__init__(
            backbone.name, fingerprint(backbone), backbone.preprocessing, float(crop), engine
        )
        self._extractor = FeatureExtractor(
            backbone, device=where, batch_size=1 if where.type == "cpu" else None
        )
        self.batch_size = self._extractor.batch_size
        # Running a network in evaluation mode changes it for a while, and flags of torch.
        self._lock = threading.Lock()

    @property
    def num_features(self) -> int:
        """Number of features of an image."""
        return self._extractor.num_features

    def embed(self, pixels: Tensor) -> Tensor:
        """Return the features of images."""
        with self._lock:
            return self._extractor.features(ImageSet(pixels, None, ""))

    def to_onnx(self) -> bytes:
        """Return the network as an ONNX model."""
        from acil.vision.onnxexport import exported_network

        with self._lock:
            return exported_network(self._extractor.backbone)
