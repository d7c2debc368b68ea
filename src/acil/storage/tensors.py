"""The tensors of a model file: read, and looked at before anything is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from acil.analytic.linalg import panels
from acil.header import InvalidFileError
from acil.modelfile import Layout, checksum

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


def read(file: Any, name: str, checksums: Mapping[str, int]) -> Tensor:
    """Read a tensor into memory that may not be aligned: it is to be copied."""
    array = file.get_tensor(name)
    if checksums and checksum(array) != checksums.get(name):
        raise InvalidFileError(f"tensor {name!r} does not have the checksum that it was written with")
    tensor = torch.from_numpy(array)
    require_finite(name, tensor)
    return tensor


def require_finite(name: str, tensor: Tensor) -> None:
    """Raise if a tensor has a value that is no number."""
    values = tensor.reshape(-1)
    # In pieces: asking for all at once would take as much memory again.
    for start in range(0, len(values), _CHUNK):
        if not bool(torch.isfinite(values[start : start + _CHUNK]).all()):
            raise InvalidFileError(f"tensor {name!r} has values that are NaN or infinite")


def pack_lower(matrix: Tensor) -> Tensor:
    """Return the lower triangle of a matrix row by row, of shape (d (d + 1) / 2,), on the CPU.

    >>> pack_lower(torch.tensor([[1.0, torch.nan], [2.0, 3.0]]))
    tensor([1., 2., 3.])
    """
    d = matrix.shape[0]
    packed = torch.empty(d * (d + 1) // 2, dtype=matrix.dtype)
    for start, stop in panels(d):
        panel = matrix[start:stop, :stop].cpu()
        for row in range(start, stop):
            packed[_place(row)] = panel[row - start, : row + 1]
    return packed


def unpack_lower_(packed: Tensor, matrix: Tensor) -> Tensor:
    """Fill the lower triangle of a matrix with what `pack_lower` has returned, in place."""
    for start, stop in panels(matrix.shape[0]):
        panel = torch.zeros(stop - start, stop, dtype=packed.dtype)
        for row in range(start, stop):
            panel[row - start, : row + 1] = packed[_place(row)]
        matrix[start:stop, :stop] = panel.to(matrix.device)
    return matrix


def _place(row: int) -> slice:
    first = row * (row + 1) // 2
    return slice(first, first + row + 1)
