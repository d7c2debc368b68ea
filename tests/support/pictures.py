"""Small generated images, and a small network for them, that tests of own images share."""

import struct
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from acil.encoders.images import WrappedBackbone
from acil.encoders.images.decode import Preprocessing
from acil.encoders.images.embedder import TorchEmbedder
from acil.encoders.images.onnx_models import exported_network

#: Mean colour of each class: far apart, so that any network can tell them.
COLOURS = {
    "blue": (30, 40, 200),
    "green": (40, 180, 60),
    "red": (210, 30, 30),
    "white": (235, 235, 235),
}
PREPROCESSING = Preprocessing((0.5, 0.5, 0.5), (0.25, 0.25, 0.25), 8)


class Pooled(nn.Module):
    """Random convolution and pooling: 24 features of 8 x 8 colour images."""

    preprocessing = PREPROCESSING

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(24, 3, 3, 3, generator=generator) / 3
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(nn.functional.conv2d(x, self.weight)).mean(dim=(2, 3))


def network(seed: int = 0) -> TorchEmbedder:
    """Return the small network, as image classifiers take it."""
    return TorchEmbedder(WrappedBackbone(Pooled(seed), "pooled", 24, PREPROCESSING))


@cache
def exported(seed: int = 0) -> bytes:
    """Return the small network as ONNX has it: exporting takes seconds, so it is done once."""
    return exported_network(WrappedBackbone(Pooled(seed), "pooled", 24, PREPROCESSING))


def network_file(path: Path, seed: int = 0) -> Path:
    """Write the small network as an ONNX file, which model files may name."""
    path.write_bytes(exported(seed))
    return path


def picture(colour, generator) -> Image.Image:
    noise = generator.normal(0, 25, (12, 12, 3))
    return Image.fromarray(np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8))


def png(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """Return a PNG file with any header and any chunks, each with its checksum."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + body


def draw(folder: Path, per_class: int, names=tuple(COLOURS), seed: int = 0) -> Path:
    """Draw images into folder/CLASS/*.png."""
    generator = np.random.default_rng(seed)
    for name in names:
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        for index in range(per_class):
            picture(COLOURS[name], generator).save(place / f"{seed}-{index}.png")
    return folder
