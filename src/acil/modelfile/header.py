"""The header of a model file, checked before anything is believed; this module needs no torch.

A model is one safetensors file. Its metadata has an entry ``acil``, a JSON object: the header, which has
the checksum of each tensor. A second entry is the checksum of the header.
"""

from __future__ import annotations

import json
import math
import os
import re
import reprlib
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from acil.errors import ModelFileError

#: The version that is written and read. Versions 1 to 3 had no checksums and were never released.
FORMAT_VERSION = 4
#: Entries of the metadata: the header, and its checksum.
METADATA_KEY, CHECKSUM_KEY = "acil", "checksum"
#: What the safetensors library is willing to read.
MAX_HEADER_BYTES = 100_000_000

#: Type (as safetensors names it) and shape of a tensor.
Layout = tuple[str, tuple[int, ...]]
#: A test of one value, and the words that say what it must be.
Rule = tuple[Callable[[Any], bool], str]

_DAMAGED = "The file is damaged or was edited: use another copy of it, or save the model again."
_NOT_OURS = "Give a file that acil.save has written."
_NOT_A_FILE = "Give the path of a model file."
_CUT = "Use another copy of it."
_ITEM_BYTES = {"F32": 4, "F64": 8}
_MAX_DEPTH = 32
_INT64 = 2**63
# The names are repeated here because acil.analytic imports torch; a test compares them.
_DTYPES = ("float64", "float32", "mixed")
_ACTIVATIONS = ("relu", "tanh", "gelu", "identity")
_SOLVERS = ("gram", "recursive")


class InvalidFileError(ValueError):
    """What is wrong with a file, and what to do; whoever knows the path makes the message.

    Parameters
    ----------
    cause, advice : str
    """

    def __init__(self, cause: str, advice: str = _DAMAGED) -> None:
        super().__init__(cause)
        self.advice = advice


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
            metadata = file.metadata() or {}
            if METADATA_KEY not in metadata:
                raise InvalidFileError(
                    f"it is a safetensors file without the entry {METADATA_KEY!r}, so not an acil model",
                    _NOT_OURS,
                )
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
            f"Cannot read {path}: it is truncated, damaged or not an acil model ({error}). {_CUT}"
        ) from None
    except OSError as error:
        raise ModelFileError(
            f"Cannot read {path}: {error.strerror or error}. Check path and permissions."
        ) from error


def checksum(data: Any) -> int:
    """Return the CRC-32 of bytes, or of a C-contiguous array: any single flipped bit changes it."""
    return zlib.crc32(data)


def parse_header(text: str, packed: bool = False) -> dict[str, Any]:
    """Return the checked header of its JSON text, or raise `InvalidFileError`.

    Parameters
    ----------
    text : str
    packed : bool
        Of a model that is kept inside something else: the temperature may be missing.
    """
    try:
        header = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise InvalidFileError(f"its header is not valid JSON ({error})") from None
    if not isinstance(header, dict):
        raise InvalidFileError(f"its header is {_shown(header)}, not an object")
    if not is_json(header):
        raise InvalidFileError(f"its header is nested more than {_MAX_DEPTH} deep")
    _check_version(header.get("format_version"))
    check_header(header, packed)
    return header


def check_header(header: dict[str, Any], packed: bool) -> None:
    """Raise `InvalidFileError` unless all values of a header are valid and fit together."""
    _check_keys(header, _RULES | _PACKED_RULES if packed else _RULES, "")
    _check_keys(header["parameters"], _PARAMETER_RULES, "parameters.")
    label_array(header["classes"], header["classes_dtype"])
    classes, counts, weights = header["classes"], header["counts"], header["weights"]
    for left, right in pairwise(classes):
        if not left < right:
            raise InvalidFileError(
                f"'classes' must be sorted and distinct, found {_shown(left)} before {_shown(right)}"
            )
    if len(counts) != len(classes) or header["n_samples"] != sum(counts):
        raise InvalidFileError(
            f"{len(counts)} 'counts' with the sum {sum(counts)} do not belong to {len(classes)} classes "
            f"and {header['n_samples']} samples"
        )
    if (weights is None) != (header["kind"] == "inference"):
        raise InvalidFileError("'weights' belong to full models, and only to them")
    if weights is not None and (len(weights) != len(classes) or not 0 < sum(weights) < math.inf):
        raise InvalidFileError(
            f"'weights' must be one for each class, not all zero, found {_shown(weights)}"
        )
    names = header["feature_names"]
    if names is not None and len(names) != header["n_features"]:
        raise InvalidFileError(
            f"{len(names)} 'feature_names' do not fit {header['n_features']} features"
        )
    if header["random_state"] != header["parameters"]["random_state"]:
        raise InvalidFileError("'random_state' is not that of 'parameters'")
    unknown = sorted(header["parameters"].keys() - _PARAMETER_RULES.keys())
    if unknown:
        raise InvalidFileError(f"'parameters' has the unknown {_shown(unknown)}")
    if header["solver"] == "recursive" and (header["fit_intercept"] or header["dtype"] == "mixed"):
        raise InvalidFileError("solver 'recursive' has no intercept and no mixed precision")


def label_array(classes: list[Any], dtype: str) -> npt.NDArray[Any]:
    """Return classes as an array of their NumPy type, or raise `InvalidFileError` if they are not of it.

    Parameters
    ----------
    classes : list, not empty
    dtype : str
        ``"bool"``, ``"int64"``, ``"float64"``, a shorter int or float, or ``"<U5"`` for strings.
    """
    known = re.fullmatch(r"bool|int(8|16|32|64)|float(16|32|64)|<U([0-9]{1,9})", dtype)
    if known is None:
        raise InvalidFileError(f"'classes_dtype' is {_shown(dtype)}, which is no label type")
    kind: type = {"b": bool, "i": int, "f": float, "<": str}[dtype[0]]
    # A bool is an int to isinstance, but not a label of an int model.
    if not all(type(label) is kind for label in classes):
        raise InvalidFileError(f"'classes' must all be {kind.__name__}, as {dtype!r} says")
    # Before NumPy takes memory for strings of that width
    if kind is str and int(known[3]) != max(1, max(map(len, classes))):
        raise InvalidFileError(f"'classes_dtype' {dtype!r} is not as wide as the longest of 'classes'")
    if kind is int and not all(-_INT64 <= label < _INT64 for label in classes):
        raise InvalidFileError("'classes' must fit into int64")
    with np.errstate(over="ignore"):
        labels = np.array(classes).astype(dtype)
    # NumPy drops zero characters at the end of strings, and wraps or rounds to short numbers.
    if labels.tolist() != classes:
        raise InvalidFileError(f"'classes' cannot be represented as {dtype!r}")
    return labels


def check_layouts(header: Mapping[str, Any], layouts: Mapping[str, Layout]) -> None:
    """Raise `InvalidFileError` unless a file has the tensors that its header calls for."""
    d, classes = header["size"], len(header["classes"])
    sums = "F32" if header["dtype"] == "float32" else "F64"
    expected: dict[str, Layout] = {"coef": (sums, (classes, d)), "intercept": (sums, (classes,))}
    if "projection" in layouts:
        expected["projection"] = ("F32", (header["n_features"], d))
    if header["kind"] == "full" and header["solver"] == "gram":
        expected |= {"gram": (sums, (d * (d + 1) // 2,)), "moment": (sums, (d, classes))}
    elif header["kind"] == "full":
        expected["rfaum"] = (sums, (d * (d + 1) // 2,))
    missing, extra = sorted(expected.keys() - layouts.keys()), sorted(layouts.keys() - expected.keys())
    if missing or extra:
        raise InvalidFileError(
            f"a model of kind {header['kind']!r} with solver {header['solver']!r} has the tensors "
            f"{', '.join(sorted(expected))}; missing: {_shown(missing)}, not expected: {_shown(extra)}"
        )
    for name, (dtype, shape) in expected.items():
        found = layouts[name]
        if found != (dtype, shape):
            raise InvalidFileError(
                f"tensor {name!r} must be {dtype} of shape {shape}, found {found[0]} of shape "
                f"{_shown(found[1])}"
            )
    if "projection" not in layouts and header["n_features"] != d:
        raise InvalidFileError(
            f"it has {header['n_features']} features and width {d}, but no projection from one to the "
            "other"
        )


def is_json(value: Any, depth: int = _MAX_DEPTH) -> bool:
    """Say whether JSON gives a value back as it is, and it is not nested too deep."""
    if isinstance(value, dict):
        return depth > 0 and all(
            isinstance(key, str) and is_json(child, depth - 1) for key, child in value.items()
        )
    if isinstance(value, list):
        return depth > 0 and all(is_json(child, depth - 1) for child in value)
    return value is None or isinstance(value, str | bool | int) or _is_number(value)


def _check_envelope(path: str | os.PathLike[str]) -> None:
    """Say in plain words what is wrong with files that are no safetensors files at all."""
    try:
        status = Path(path).stat()
    except FileNotFoundError:
        raise InvalidFileError("there is no such file", "Check the path.") from None
    except ValueError as error:
        raise InvalidFileError(f"it is not a usable path ({error})", "Check the path.") from None
    if not stat.S_ISREG(status.st_mode):
        what = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise InvalidFileError(f"it is {what}", _NOT_A_FILE)
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
            f"its header has {length} bytes, but the file only {status.st_size}: it is truncated", _CUT
        )


def _check_version(version: Any) -> None:
    if not _is_int(version) or version < 1:
        raise InvalidFileError(f"'format_version' is {_shown(version)}, not a version")
    if version > FORMAT_VERSION:
        raise InvalidFileError(
            f"it has format version {_shown(version)}, written by a newer acil; this one reads up to "
            f"{FORMAT_VERSION}",
            "Upgrade acil.",
        )
    if version < FORMAT_VERSION:
        raise InvalidFileError(
            f"it has format version {version}, of a development version of acil, which had no checksums",
            "Learn the model again, and save it with this version.",
        )


def _check_keys(values: dict[str, Any], rules: dict[str, Rule], prefix: str) -> None:
    for key, (valid, words) in rules.items():
        if key not in values:
            raise InvalidFileError(f"its header has no '{prefix}{key}'")
        if not valid(values[key]):
            raise InvalidFileError(f"'{prefix}{key}' must be {words}, found {_shown(values[key])}")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"it contains {name}")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is too large")
    return value


#: Text of bounded length
_shown = reprlib.repr


def _is_int(value: Any) -> bool:
    return type(value) is int


def _is_count(value: Any) -> bool:
    return _is_int(value) and 0 <= value < _INT64


def _is_number(value: Any) -> bool:
    # An int too large for a float is no number that we could compute with.
    whole = _is_int(value) and abs(value) < _INT64
    return whole or (type(value) is float and math.isfinite(value))


def _is_strength(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _is_str(value: Any) -> bool:
    return isinstance(value, str)


def _one_of(*options: str) -> Rule:
    return (lambda value: _is_str(value) and value in options), "one of " + ", ".join(map(repr, options))


def _or_none(rule: Rule) -> Rule:
    valid, words = rule
    return (lambda value: value is None or valid(value)), words + " or null"


def _list_of(valid: Callable[[Any], bool], words: str) -> Rule:
    return (lambda value: isinstance(value, list) and all(map(valid, value))), f"a list of {words}"


def _object_of(valid: Callable[[Any], bool], words: str) -> Rule:
    return (lambda value: isinstance(value, dict) and all(map(valid, value.values()))), words


def _is_privacy(value: Any) -> bool:
    """Say whether a value has the releases of a model, and for a release its ε and δ."""
    if not isinstance(value, dict) or not isinstance(value.get("private"), bool):
        return False
    releases = value.get("releases")
    sound = isinstance(releases, list) and all(
        isinstance(release, dict)
        and _is_str(release.get("id"))
        and _is_number(release.get("noise"))
        and release["noise"] > 0
        for release in releases
    )
    stated = all(_is_number(value.get(name)) and value[name] > 0 for name in ("epsilon", "delta"))
    return sound and bool(releases) and (stated or not value["private"])


_SEED: Rule = (_is_count, "an int from 0 to 2**63 - 1")
_WIDTH: Rule = (lambda value: _is_count(value) and value > 0, "a positive int")
_NOT_NEGATIVE: Rule = (_is_strength, "a number that is not negative")
_POSITIVE: Rule = (lambda value: _is_number(value) and value > 0, "a positive number")
_TRUTH: Rule = (lambda value: isinstance(value, bool), "true or false")
_OBJECT: Rule = (lambda value: isinstance(value, dict), "an object")
#: Computing options stand in the header, as learnt with, and among the parameters, as set now.
_OPTIONS: dict[str, Rule] = {
    "activation": _one_of(*_ACTIVATIONS),
    "solver": _one_of(*_SOLVERS),
    "dtype": _one_of(*_DTYPES),
    "random_state": _SEED,
    "fit_intercept": _TRUTH,
    "class_balance": _TRUTH,
    "clip_norm": _or_none(_POSITIVE),
}
_PARAMETER_RULES: dict[str, Rule] = {
    "expansion_size": _or_none(_WIDTH),
    "gamma": (lambda value: value == "auto" or _is_strength(value), "a number, not negative, or 'auto'"),
    # The device "meta" computes nothing.
    "device": (
        lambda value: _is_str(value) and bool(re.fullmatch(r"(?!meta)[a-z]{2,20}(:[0-9]{1,3})?", value)),
        "the name of a device",
    ),
    "min_class_samples": _WIDTH,
    **_OPTIONS,
}
_RULES: dict[str, Rule] = {
    "kind": _one_of("full", "inference"),
    "parameters": _OBJECT,
    "n_features": _WIDTH,
    "feature_names": _or_none(_list_of(_is_str, "strings")),
    "size": _WIDTH,
    **_OPTIONS,
    "classes": (lambda value: isinstance(value, list) and len(value) > 0, "a list of labels"),
    "classes_dtype": (_is_str, "a string"),
    "counts": _list_of(_is_count, "counts"),
    "weights": _or_none(_list_of(_is_strength, "numbers that are not negative")),
    "gamma": _NOT_NEGATIVE,
    "gamma_chosen": _TRUTH,
    "gamma_relative": _or_none(_NOT_NEGATIVE),
    "condition": _or_none((lambda value: _is_number(value) and value >= 1, "a number from 1")),
    "temperature": _POSITIVE,
    "n_samples": _WIDTH,
    "backbone": _or_none(_OBJECT),
    "images": _or_none(_OBJECT),
    "privacy": _or_none((_is_privacy, "the releases of a model")),
    "fingerprint": (_is_str, "a string"),
    "checksums": _object_of(_is_count, "an object of numbers"),
    "versions": _object_of(_is_str, "an object of strings"),
}
_PACKED_RULES: dict[str, Rule] = {"temperature": _or_none(_POSITIVE)}
