"""The model file: what can be known of one without reading its tensors.

A model is one safetensors file. Its metadata has an entry ``acil``, a JSON object: the header, which has
the checksum of each tensor. A second entry is the checksum of the header. This module imports no torch,
so that a file can be looked at in a moment.
"""

from __future__ import annotations

import math
import os
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from acil.errors import ModelFileError
from acil.header import InvalidFileError, parse_header, shown

METADATA_KEY = "acil"
#: The entry beside it, with the checksum of the header.
CHECKSUM_KEY = "checksum"
#: What the safetensors library is willing to read.
MAX_HEADER_BYTES = 100_000_000

#: Type (as safetensors names it) and shape of a tensor.
Layout = tuple[str, tuple[int, ...]]

_NOT_OURS = "Give a file that acil.save has written."
_NOT_A_FILE = "Give the path of a model file."
_CUT = "Use another copy of it."
_ITEM_BYTES = {"F32": 4, "F64": 8}


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a model file says of itself, without reading its tensors and without torch.

    Parameters
    ----------
    path : str or path-like

    Returns
    -------
    dict
        The header (``classes``, ``counts``, ``gamma``, ``parameters`` …), ``path``, ``file_bytes``
        and ``tensors``, a dict of name to ``dtype``, ``shape`` and ``bytes``.

    Raises
    ------
    ModelFileError
        If the file is missing, damaged or written by a newer version.
    """
    with opened(path) as (_, header, layouts):
        tensors = {
            name: {"dtype": dtype, "shape": list(shape), "bytes": math.prod(shape) * _ITEM_BYTES[dtype]}
            for name, (dtype, shape) in layouts.items()
        }
        return {"path": str(path), "file_bytes": Path(path).stat().st_size, **header, "tensors": tensors}


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[tuple[Any, dict[str, Any], dict[str, Layout]]]:
    """Open a model file and check its header; whatever is wrong with it is a `ModelFileError`.

    Parameters
    ----------
    path : str or path-like

    Yields
    ------
    file : safe_open
        Its tensors are read as NumPy arrays: all from the file that was checked, even when another
        process puts a new one in its place.
    header : dict
    layouts : dict of str to Layout
        Type and shape of each tensor, which agree with the header.
    """
    try:
        _check_envelope(path)
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(METADATA_KEY)
            if text is None:
                raise InvalidFileError(
                    f"it is a safetensors file without the entry {METADATA_KEY!r}, so not an acil model",
                    _NOT_OURS,
                )
            header = parse_header(text)
            if (file.metadata() or {}).get(CHECKSUM_KEY) != str(checksum(text.encode())):
                raise InvalidFileError("its header does not have the checksum that it was written with")
            layouts = {name: _layout(file, name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            check_layouts(header, layouts)
            yield file, header, layouts
    except InvalidFileError as error:
        raise ModelFileError(f"Cannot read {path}: {error}. {error.advice}") from None
    except SafetensorError as error:
        raise ModelFileError(
            f"Cannot read {path}: it is truncated, damaged or not an acil model ({error}). {_CUT}"
        ) from None
    except OSError as error:
        raise ModelFileError(
            f"Cannot read {path}: {error.strerror or error}. Check path and permissions."
        ) from error


def checksum(data: Any) -> int:
    """Return the CRC-32 of bytes, or of a C-contiguous array: any single flipped bit changes it."""
    return zlib.crc32(data)


def check_layouts(header: Mapping[str, Any], layouts: Mapping[str, Layout]) -> None:
    """Raise `InvalidFileError` unless a file has the tensors that its header calls for."""
    expected = _expected_layouts(header, layouts)
    missing, extra = sorted(expected.keys() - layouts.keys()), sorted(layouts.keys() - expected.keys())
    if missing or extra:
        raise InvalidFileError(
            f"a model of kind {header['kind']!r} with solver {header['solver']!r} has the tensors "
            f"{', '.join(sorted(expected))}; missing: {shown(missing)}, not expected: {shown(extra)}"
        )
    for name, (dtype, shape) in expected.items():
        if layouts[name] != (dtype, shape):
            found = layouts[name]
            raise InvalidFileError(
                f"tensor {name!r} must be {dtype} of shape {shape}, found {found[0]} of shape "
                f"{shown(found[1])}"
            )
    if "projection" not in layouts and header["n_features"] != header["size"]:
        raise InvalidFileError(
            f"it has {header['n_features']} features and width {header['size']}, but no projection from "
            "one to the other"
        )


def _check_envelope(path: str | os.PathLike[str]) -> None:
    """Say in plain words what is wrong with files that are no safetensors files at all."""
    try:
        status = Path(path).stat()
    except FileNotFoundError:
        raise InvalidFileError("there is no such file", "Check the path.") from None
    except ValueError as error:
        raise InvalidFileError(f"it is not a usable path ({error})", "Check the path.") from None
    if stat.S_ISDIR(status.st_mode):
        raise InvalidFileError("it is a directory", _NOT_A_FILE)
    if not stat.S_ISREG(status.st_mode):
        raise InvalidFileError("it is not a regular file", _NOT_A_FILE)
    with Path(path).open("rb") as file:
        start = file.read(9)
    if not start:
        raise InvalidFileError("it is empty", _CUT)
    length = int.from_bytes(start[:8], "little")
    if start[8:9] != b"{" or length > MAX_HEADER_BYTES:
        raise InvalidFileError(
            "it does not start like a safetensors file, so it is not an acil model", _NOT_OURS
        )
    if 8 + length > status.st_size:
        raise InvalidFileError(
            f"its header has {length} bytes, but the file only {status.st_size}: it is truncated",
            _CUT,
        )


def _layout(file: Any, name: str) -> Layout:
    part = file.get_slice(name)
    return str(part.get_dtype()), tuple(part.get_shape())


def _expected_layouts(header: Mapping[str, Any], found: Mapping[str, Layout]) -> dict[str, Layout]:
    d, classes = header["size"], len(header["classes"])
    sums = "F32" if header["dtype"] == "float32" else "F64"
    expected: dict[str, Layout] = {"coef": (sums, (classes, d)), "intercept": (sums, (classes,))}
    if "projection" in found:
        expected["projection"] = ("F32", (header["n_features"], d))
    if header["kind"] == "full" and header["solver"] == "gram":
        expected["gram"] = (sums, (d * (d + 1) // 2,))
        expected["moment"] = (sums, (d, classes))
    elif header["kind"] == "full":
        expected["rfaum"] = (sums, (d * (d + 1) // 2,))
    return expected
