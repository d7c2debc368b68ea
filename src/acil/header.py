"""The header of a model file: one JSON object, checked value by value before anything is believed."""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

#: The version that is written and read. Versions 1 to 3 had no checksums and were never released.
FORMAT_VERSION = 4
DAMAGED = "The file is damaged or was edited: use another copy of it, or save the model again."

#: A test of one value, and the words that say what it must be.
Rule = tuple[Callable[[Any], bool], str]

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

    def __init__(self, cause: str, advice: str = DAMAGED) -> None:
        super().__init__(cause)
        self.advice = advice


def parse_header(text: str, packed: bool = False) -> dict[str, Any]:
    """Return the checked header of its JSON text.

    Parameters
    ----------
    text : str
    packed : bool
        Of a model that is kept inside something else: the temperature may be missing.

    Raises
    ------
    InvalidFileError
    """
    try:
        header = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise InvalidFileError(f"its header is not valid JSON ({error})") from None
    if not isinstance(header, dict):
        raise InvalidFileError(f"its header is {shown(header)}, not an object")
    if not _shallow(header, _MAX_DEPTH):
        raise InvalidFileError(f"its header is nested more than {_MAX_DEPTH} deep")
    _check_version(header)
    _check_keys(header, _RULES | _PACKED_RULES if packed else _RULES, "")
    _check_keys(header["parameters"], _PARAMETER_RULES, "parameters.")
    label_array(header["classes"], header["classes_dtype"])
    _check_agreement(header)
    return header


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
        raise InvalidFileError(f"'classes_dtype' is {shown(dtype)}, which is no label type")
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


def _check_version(header: dict[str, Any]) -> None:
    version: Any = header.get("format_version")
    if not _is_int(version) or version < 1:
        raise InvalidFileError(f"'format_version' is {shown(version)}, not a version")
    if version > FORMAT_VERSION:
        raise InvalidFileError(
            f"it has format version {shown(version)}, written by a newer acil; this one reads up to "
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
            raise InvalidFileError(f"'{prefix}{key}' must be {words}, found {shown(values[key])}")


def _check_agreement(header: dict[str, Any]) -> None:
    """Raise unless the values, each of them valid, fit together."""
    classes, counts, weights = header["classes"], header["counts"], header["weights"]
    for left, right in pairwise(classes):
        if not left < right:
            raise InvalidFileError(
                f"'classes' must be sorted and distinct, found {shown(left)} before {shown(right)}"
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
            f"'weights' must be one for each class, not all zero, found {shown(weights)}"
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
        raise InvalidFileError(f"'parameters' has the unknown {shown(unknown)}")
    if header["solver"] == "recursive" and (header["fit_intercept"] or header["dtype"] == "mixed"):
        raise InvalidFileError("solver 'recursive' has no intercept and no mixed precision")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"it contains {name}")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is too large")
    return value


def _shallow(value: Any, depth: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    children = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(_shallow(child, depth - 1) for child in children)


def shown(value: Any) -> str:
    """Return a value as text of bounded length."""
    return reprlib.repr(value)


def _is_int(value: Any) -> bool:
    return type(value) is int


def _is_count(value: Any) -> bool:
    return _is_int(value) and 0 <= value < _INT64


def _is_positive(value: Any) -> bool:
    return _is_int(value) and 0 < value < _INT64


def _is_number(value: Any) -> bool:
    # An int too large for a float is no number that we could compute with.
    return type(value) is float or (_is_int(value) and abs(value) < _INT64)


def _is_strength(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_str(value: Any) -> bool:
    return isinstance(value, str)


def _is_device(value: Any) -> bool:
    # The device "meta" computes nothing.
    return _is_str(value) and re.fullmatch(r"(?!meta)[a-z]{2,20}(:[0-9]{1,3})?", value) is not None


def _one_of(*options: str) -> Rule:
    return (lambda value: _is_str(value) and value in options), "one of " + ", ".join(map(repr, options))


def _or_none(rule: Rule) -> Rule:
    valid, words = rule
    return (lambda value: value is None or valid(value)), words + " or null"


def _list_of(valid: Callable[[Any], bool], words: str) -> Rule:
    return (lambda value: isinstance(value, list) and all(map(valid, value))), f"a list of {words}"


_SEED: Rule = (_is_count, "an int from 0 to 2**63 - 1")
_WIDTH: Rule = (_is_positive, "a positive int")
_NOT_NEGATIVE: Rule = (_is_strength, "a number that is not negative")
_TRUTH: Rule = (_is_bool, "true or false")

_PARAMETER_RULES: dict[str, Rule] = {
    "expansion_size": _or_none(_WIDTH),
    "gamma": (lambda value: value == "auto" or _is_strength(value), "a number, not negative, or 'auto'"),
    "activation": _one_of(*_ACTIVATIONS),
    "solver": _one_of(*_SOLVERS),
    "dtype": _one_of(*_DTYPES),
    "random_state": _SEED,
    "device": (_is_device, "the name of a device"),
    "fit_intercept": _TRUTH,
    "class_balance": _TRUTH,
}

_CHECKSUMS: Rule = (
    lambda value: isinstance(value, dict) and all(map(_is_count, value.values())),
    "an object of numbers",
)
_POSITIVE: Rule = (lambda value: _is_number(value) and value > 0, "a positive number")
_RULES: dict[str, Rule] = {
    "kind": _one_of("full", "inference"),
    "parameters": (lambda value: isinstance(value, dict), "an object"),
    "random_state": _SEED,
    "n_features": _WIDTH,
    "feature_names": _or_none(_list_of(_is_str, "strings")),
    "size": _WIDTH,
    "activation": _one_of(*_ACTIVATIONS),
    "solver": _one_of(*_SOLVERS),
    "dtype": _one_of(*_DTYPES),
    "fit_intercept": _TRUTH,
    "class_balance": _TRUTH,
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
    "backbone": _or_none((lambda value: isinstance(value, dict), "an object")),
    "images": _or_none((lambda value: isinstance(value, dict), "an object")),
    "fingerprint": (_is_str, "a string"),
    "checksums": _CHECKSUMS,
    "versions": (
        lambda value: isinstance(value, dict) and all(map(_is_str, value.values())),
        "an object",
    ),
}
_PACKED_RULES: dict[str, Rule] = {"temperature": _or_none(_POSITIVE)}
