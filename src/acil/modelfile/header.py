"""The header of a model file, checked before anything is believed; this module needs no torch.

A model is one safetensors file. Its metadata has an entry ``acil``, a JSON object: the header, which has
the checksum of each tensor. A second entry is the checksum of the header.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from acil.errors import ModelFileError
from acil.modelfile.schema import (
    FORMAT_VERSION,
    MAX_GAMMA,
    MAX_LABELS,
    InvalidFileError,
    check_entries,
    check_identity,
    shown,
)

#: Entries of the metadata: the header, and its checksum.
METADATA_KEY, CHECKSUM_KEY = "acil", "checksum"
#: What the safetensors library is willing to read.
MAX_HEADER_BYTES = 100_000_000

#: Type (as safetensors names it) and shape of a tensor.
Layout = tuple[str, tuple[int, ...]]

_NOT_OURS = "Give a file that acil.save has written."
_ITEM_BYTES = {"F32": 4, "F64": 8}


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a model file says of itself, without reading its tensors and without torch.

    Parameters
    ----------
    path : str or path-like

    Returns
    -------
    dict
        The header (``classes``, ``counts``, ``gamma``, ``parameters`` …), ``n_samples``, ``path``,
        ``file_bytes`` and ``tensors``, a dict of name to ``dtype``, ``shape`` and ``bytes``.

    Raises
    ------
    ModelFileError
        If the file is missing, damaged or written by another version.
    """
    with opened(path) as (_, header, layouts):
        tensors = {
            name: {"dtype": dtype, "shape": list(shape), "bytes": math.prod(shape) * _ITEM_BYTES[dtype]}
            for name, (dtype, shape) in layouts.items()
        }
        facts = {"path": str(path), "file_bytes": Path(path).stat().st_size}
        return {**facts, **header, "n_samples": sum(header["counts"]), "tensors": tensors}


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[tuple[Any, dict[str, Any], dict[str, Layout]]]:
    """Open a model file, check it, and yield it with its header and the layouts of its tensors.

    Whatever is wrong with it is a `ModelFileError`. Tensors are those of the file that was checked, even
    when another process puts a new one in its place.
    """
    try:
        _check_envelope(path)
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if METADATA_KEY not in metadata:
                raise InvalidFileError(f"it has no entry {METADATA_KEY!r}, so it is no model", _NOT_OURS)
            header = parse_header(metadata[METADATA_KEY])
            if metadata.get(CHECKSUM_KEY) != str(checksum(metadata[METADATA_KEY].encode())):
                raise InvalidFileError("its header does not have the checksum that it was written with")
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            layouts = {n: (str(p.get_dtype()), tuple(p.get_shape())) for n, p in parts.items()}
            check_layouts(header, layouts)
            yield file, header, layouts
    except InvalidFileError as error:
        raise ModelFileError(f"Cannot read {path}: {error}. {error.advice}") from None
    except SafetensorError as error:
        raise ModelFileError(
            f"Cannot read {path}: it is truncated or damaged ({error}). Use another copy of it."
        ) from None
    except OSError as error:
        raise ModelFileError(
            f"Cannot read {path}: {error.strerror or error}. Check path and permissions."
        ) from error


def checksum(data: Any) -> int:
    """Return the CRC-32 of bytes, or of a C-contiguous array: any single flipped bit changes it."""
    return zlib.crc32(data)


def parse_header(text: str, packed: bool = False) -> dict[str, Any]:
    """Return the checked header of its JSON text; that of a packed model may lack the temperature."""
    try:
        header = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidFileError(f"its header is not valid JSON ({error})") from None
    if not isinstance(header, dict):
        raise InvalidFileError(f"its header is {shown(header)}, not an object")
    if header.get("format_version") != FORMAT_VERSION:
        raise InvalidFileError(
            f"it has the format version {shown(header.get('format_version'))}, written by another "
            f"version of acil; this one reads {FORMAT_VERSION}",
            "Use that version, or learn the model again and save it with this one.",
        )
    check_header(header, packed)
    return header


def check_header(header: dict[str, Any], packed: bool = False) -> None:
    """Raise `InvalidFileError` unless all values of a header are valid and fit together."""
    check_entries(header, "")
    if header["images"] is not None:
        check_identity(header["backbone"], "backbone")
    _check_classes(header["classes"], header["classes_dtype"])
    counts, weights, names = header["counts"], header["weights"], header["feature_names"]
    full, n_classes = header["kind"] == "full", len(header["classes"])
    if len(counts) != n_classes or not 0 < sum(counts) < 2**63:
        raise InvalidFileError(f"'counts' must be one for each of {n_classes} classes, not all zero")
    for key in ("weights", "gamma"):
        if (header[key] is not None) != full:
            raise InvalidFileError(f"{key!r} belongs to full models, and only to them")
    if full and (len(weights) != n_classes or not 0 < sum(weights) <= 1e308):
        raise InvalidFileError(
            f"'weights' must be one for each class, not all zero, found {shown(weights)}"
        )
    largest = MAX_GAMMA[header["dtype"]]
    for name, gamma in (("gamma", header["gamma"]), ("parameters.gamma", header["parameters"]["gamma"])):
        if isinstance(gamma, int | float) and gamma > largest:
            raise InvalidFileError(f"{name!r} must be at most {largest:g}, found {gamma:g}")
    if header["temperature"] is None and not packed:
        raise InvalidFileError("'temperature' must be a number, found None")
    if names is not None and len(names) != header["n_features"]:
        raise InvalidFileError(
            f"{len(names)} 'feature_names' do not fit {header['n_features']} features"
        )
    if header["solver"] == "recursive" and (header["fit_intercept"] or header["dtype"] == "mixed"):
        raise InvalidFileError("solver 'recursive' has no intercept and no mixed precision")
    if (header["calibration"] is None) != (header["scores"] == "ridge"):
        raise InvalidFileError("'calibration' belongs to discriminant scores, and only to them")
    if header["scores"] == "discriminant" and (
        header["solver"] == "recursive" or header["fit_intercept"] or header["class_balance"]
    ):
        raise InvalidFileError("discriminant scores need sums, and no intercept or class balance")


def _check_classes(classes: list[Any], dtype: str) -> None:
    """Raise `InvalidFileError` unless labels are distinct, sorted and of their NumPy type."""
    known = re.fullmatch(r"bool|int(8|16|32|64)|float(16|32|64)|<U([0-9]{1,9})", dtype)
    if known is None:
        raise InvalidFileError(f"'classes_dtype' is {shown(dtype)}, which is no label type")
    kind: type = {"b": bool, "i": int, "f": float, "<": str}[dtype[0]]
    # A bool is an int to isinstance, but not a label of an int model.
    if not all(type(label) is kind for label in classes):
        raise InvalidFileError(f"'classes' must all be {kind.__name__}, as {dtype!r} says")
    if kind is str:
        longest = max(1, max(map(len, classes)))
        if int(known[3]) != longest:
            raise InvalidFileError(
                f"'classes_dtype' {dtype!r} is not as wide as the longest of 'classes'"
            )
        if len(classes) * longest > MAX_LABELS:
            raise InvalidFileError(
                f"{len(classes)} classes, padded to the longest name of {longest} characters, have more "
                f"than {MAX_LABELS} characters. Use shorter names"
            )
    else:
        with np.errstate(over="ignore"):
            # Short numbers wrap or are rounded.
            if np.array(classes).astype(dtype).tolist() != classes:
                raise InvalidFileError(f"'classes' cannot be represented as {dtype!r}")
    for left, right in pairwise(classes):
        if not left < right:
            raise InvalidFileError(
                f"'classes' must be sorted and distinct, found {shown(left)} before {shown(right)}"
            )


def check_layouts(header: Mapping[str, Any], layouts: Mapping[str, Layout]) -> None:
    """Raise `InvalidFileError` unless a file has the tensors that its header calls for."""
    d, classes = header["size"], len(header["classes"])
    sums = "F32" if header["dtype"] == "float32" else "F64"
    expected: dict[str, Layout] = {"coef": (sums, (classes, d)), "intercept": (sums, (classes,))}
    if "projection" in layouts:
        expected["projection"] = ("F32", (header["n_features"], d))
    if header["standardize"]:
        expected["scaling"] = ("F64", (2, header["n_features"]))
    if header["kind"] == "full" and header["scores"] == "discriminant" and "mixing" in layouts:
        expected["mixing"] = ("F64", (classes + 1, classes))
    if header["kind"] == "full" and header["solver"] == "gram":
        expected |= {"gram": (sums, (d * (d + 1) // 2,)), "moment": (sums, (d, classes))}
    elif header["kind"] == "full":
        expected["rfaum"] = (sums, (d * (d + 1) // 2,))
    for name in sorted(expected.keys() | layouts.keys()):
        if layouts.get(name) != expected.get(name):
            needed, found = (shown(layout.get(name, "none")) for layout in (expected, layouts))
            raise InvalidFileError(f"tensor {name!r} must be {needed}, found {found}")
    if "projection" not in layouts and header["n_features"] != d:
        raise InvalidFileError(f"it has no projection of {header['n_features']} features to {d}")


def _check_envelope(path: str | os.PathLike[str]) -> None:
    """Say in plain words what is wrong with files that are no safetensors files at all."""
    try:
        mode = Path(path).stat().st_mode
    except FileNotFoundError:
        raise InvalidFileError("there is no such file", "Check the path.") from None
    except ValueError as error:
        raise InvalidFileError(f"it is not a usable path ({error})", "Check the path.") from None
    if not stat.S_ISREG(mode):
        what = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
        raise InvalidFileError(f"it is {what}", "Give the path of a model file.")
    with Path(path).open("rb") as file:
        start = file.read(9)
    if start[8:] != b"{" or int.from_bytes(start[:8], "little") > MAX_HEADER_BYTES:
        raise InvalidFileError("it does not start like a model file", _NOT_OURS)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"it contains {name}")
