"""The one reader of safetensors files. It needs NumPy alone, and no torch unless tensors are asked for.

A file begins with 8 bytes, the length of a JSON object, and the object: texts under ``__metadata__``,
and for each tensor its type, its shape and where its bytes lie in the rest of the file. The rest is
mapped and not read, so that whoever needs one small tensor of a large file reads no other.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from acil.errors import ModelFileError

if TYPE_CHECKING:
    from torch import Tensor

#: Type (as the format names it) and shape of a tensor.
Layout = tuple[str, tuple[int, ...]]
#: What the format allows at most.
MAX_HEADER_BYTES = 100_000_000
#: Types by the name that the format has for them: bytes of a number, and what torch calls it.
_TYPES = {
    "F64": (8, "float64"),
    "F32": (4, "float32"),
    "F16": (2, "float16"),
    "BF16": (2, "bfloat16"),
    "I64": (8, "int64"),
    "I32": (4, "int32"),
    "I16": (2, "int16"),
    "I8": (1, "int8"),
    "U8": (1, "uint8"),
    "BOOL": (1, "bool"),
}


class DamagedFileError(ValueError):
    """A file is no safetensors file, or damaged; whoever knows what it is for makes the message."""


class TensorFile:
    """An open safetensors file whose header has been checked.

    Tensors are those of the file that was checked, even when another process puts a new one there.

    Parameters
    ----------
    path : str or path-like
        A file that is not there, or cannot be read, is an `OSError`; one that is damaged is a
        `DamagedFileError`.

    Attributes
    ----------
    metadata : dict
        Texts by name.
    layouts : dict
        Type and shape of each tensor, as in ``("F32", (2, 3))``.
    """

    metadata: dict[str, str]
    layouts: dict[str, Layout]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        with Path(path).open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            size = os.fstat(file.fileno()).st_size
            if length > min(MAX_HEADER_BYTES, size - 8):
                raise DamagedFileError("its header would be longer than the file, or than is allowed")
            self._starts = 8 + length
            self.metadata, self.layouts, self._places = _header(file.read(length), size - self._starts)
            # Private to this process: torch takes no memory that cannot be written.
            self._content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def facts(self, key: str) -> Any:
        """Return what the metadata have under a name, which is JSON."""
        if key not in self.metadata:
            raise DamagedFileError(f"it has no entry {key!r}")
        try:
            return json.loads(self.metadata[key])
        except (ValueError, RecursionError) as error:
            raise DamagedFileError(f"its entry {key!r} is not valid JSON ({error})") from None

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return a tensor as it is mapped: its memory may not be aligned, so copy what is used often."""
        kind, shape = self.layouts[name]
        if kind == "BF16":
            raise DamagedFileError(f"tensor {name!r} is of type BF16, which NumPy does not have")
        return self._bytes(name).view(_TYPES[kind][1]).reshape(shape)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors, on the CPU and in fresh memory, which is aligned."""
        import torch

        made = {}
        for name, (kind, shape) in self.layouts.items():
            made[name] = torch.empty(shape, dtype=getattr(torch, _TYPES[kind][1]))
            if made[name].numel():
                # By way of bytes, because NumPy does not have all of these types
                made[name].view(-1).view(torch.uint8).numpy()[:] = self._bytes(name)
        return made

    def _bytes(self, name: str) -> npt.NDArray[np.uint8]:
        start, stop = self._places[name]
        return np.frombuffer(self._content, np.uint8, stop - start, self._starts + start)


def cannot_read(path: str | os.PathLike[str], error: OSError) -> ModelFileError:
    """Return the error that says why a file could not be read and what to do."""
    reason = error.strerror or error
    return ModelFileError(f"Cannot read {path}: {reason}. Check path and permissions.")


def _header(
    text: bytes, size: int
) -> tuple[dict[str, str], dict[str, Layout], dict[str, tuple[int, int]]]:
    """Return metadata, layouts and places of the tensors of a file with so many bytes of tensors."""
    try:
        entries = json.loads(text.decode())
        metadata = entries.pop("__metadata__", {})
        if not all(isinstance(value, str) for value in metadata.values()):
            raise TypeError("its metadata are not all text")
        layouts, places = {}, {}
        for name, entry in entries.items():
            shape, (start, stop) = tuple(entry["shape"]), entry["data_offsets"]
            if any(type(n) is not int or n < 0 for n in (*shape, start, stop)):
                raise ValueError(f"the shape or place of {name!r} are no whole numbers")
            if stop - start != math.prod(shape) * _TYPES[entry["dtype"]][0]:
                raise ValueError(f"the shape of {name!r} does not fit its bytes")
            layouts[name], places[name] = (entry["dtype"], shape), (start, stop)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedFileError(f"its header is not as it must be ({error!r})") from None
    # One after another, without gaps: every byte belongs to one tensor.
    ends = [0]
    for start, stop in sorted(places.values()):
        if start != ends[-1]:
            raise DamagedFileError("its tensors overlap, or there are gaps between them")
        ends.append(stop)
    if ends[-1] != size:
        raise DamagedFileError(f"it has {size} bytes of tensors, but its header says {ends[-1]}")
    return metadata, layouts, places
