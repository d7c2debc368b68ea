"""The tensors of a model file: read, and looked at before anything is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from acil.header import InvalidFileError
from acil.modelfile import Layout

_TYPE_NAMES = {torch.float32: "F32", torch.float64: "F64"}
#: Numbers that are looked at together.
_CHUNK = 2**20


class InMemory:
    """Tensors behind the interface of an open file."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def get_tensor(self, name: str) -> npt.NDArray[Any]:
        """Return a tensor as an array."""
        return self._tensors[name].cpu().numpy()


def layouts(tensors: Mapping[str, Tensor]) -> dict[str, Layout]:
    """Return type and shape of tensors, as a model file names them."""
    return {name: (_TYPE_NAMES.get(t.dtype, "?"), tuple(t.shape)) for name, t in tensors.items()}


def read(file: Any, name: str) -> Tensor:
    """Read a tensor into memory that may not be aligned: it is to be copied."""
    tensor = torch.from_numpy(file.get_tensor(name))
    require_finite(name, tensor)
    return tensor


def read_low(file: Any, name: str, high: Tensor) -> Tensor:
    """Read what rounding has taken from numbers: added to them, it must be rounded away again."""
    low = read(file, name)
    values, sums = low.reshape(-1), high.reshape(-1)
    for start in range(0, len(values), _CHUNK):
        part = slice(start, start + _CHUNK)
        if not torch.equal(sums[part] + values[part], sums[part]):
            raise InvalidFileError(f"tensor {name!r} does not hold low parts of {name[:-4]!r}")
    return low


def require_finite(name: str, tensor: Tensor) -> None:
    """Raise if a tensor has a value that is no number."""
    values = tensor.reshape(-1)
    # In pieces: asking for all at once would take as much memory again.
    for start in range(0, len(values), _CHUNK):
        if not bool(torch.isfinite(values[start : start + _CHUNK]).all()):
            raise InvalidFileError(f"tensor {name!r} has values that are NaN or infinite")
