"""The header of a model file, checked before anything is believed; this module needs no torch.

A model is one safetensors file. Its metadata has an entry ``acil``, a JSON object: the header, which has
the CRC-32 of each tensor: any single flipped bit changes it. A second entry is that of the header.

What an entry must be is one line in `HEADER`. Strings are short and cannot hold NUL, lone surrogates or
control characters; numbers are finite and in a range.
"""

from __future__ import annotations

import json
import math
import os
import re
import reprlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from acil.core.files.reading import MAX_HEADER_BYTES, DamagedFileError, Layout, TensorFile, cannot_read
from acil.core.parameters import FITTED, MAX_GAMMA, PARAMETERS, Values, one_of
from acil.errors import ModelFileError

#: The version that is written, and those that are read.
FORMAT_VERSION, READ_VERSIONS = 6, (5, 6)
#: What is learnt, and what of. Other targets than classes have the sums of targets as tensors, too.
TASKS, ENCODERS = ("classes",), ("features", "images", "text")
#: Longest label, and longest text of any other entry, in characters.
MAX_TEXT = 1024
#: Text without NUL and lone surrogates; and text without controls and ends of lines, too.
_STORABLE = re.compile(f"[^\0\ud800-\udfff]{{0,{MAX_TEXT}}}")
_PRINTABLE = re.compile(f"[^\0-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{{0,{MAX_TEXT}}}")
#: Characters of all labels, each padded to the longest, as NumPy keeps them.
MAX_LABELS = 2**26
#: How deep `backbone` may be nested.
MAX_DEPTH = 32
_DAMAGED = "The file is damaged or was edited: use another copy of it, or save the model again."
#: Entries of the metadata: the header, and its checksum.
METADATA_KEY, CHECKSUM_KEY = "acil", "checksum"

_NOT_OURS = "Give a file that acil.save has written."
_ITEM_BYTES = {"F32": 4, "F64": 8}

#: Raises `InvalidFileError` unless a value is what the entry of this name must be.
Rule = Callable[[Any, str], None]

#: Text of bounded length, without control characters.
shown = reprlib.repr


class InvalidFileError(ValueError):
    """What is wrong with a file, and what to do; whoever knows the path makes the message."""

    def __init__(self, cause: str, advice: str = _DAMAGED) -> None:
        super().__init__(cause)
        self.advice = advice


def _rule(valid: Callable[[Any], bool], words: str) -> Rule:
    def check(value: Any, name: str) -> None:
        if not valid(value):
            raise InvalidFileError(f"'{name}' must be {words}, found {shown(value)}")

    return check


def _values(values: Values) -> Rule:
    """Return the rule of values as JSON gives them: numbers that torch takes, and lists of them."""
    return _rule(lambda value: _is_json(value) and values.accepts(value), values.words)


def _is_json(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_json, value))
    return value is None or type(value) in (bool, float, str) or _is_integer(value)


def _one_of(*options: str) -> Rule:
    return _values(one_of(*options))


def _is_integer(value: Any) -> bool:
    # A bool is an int to isinstance; torch takes no int beyond 64 bits.
    return type(value) is int and abs(value) < 2**63


def _number(least: float, most: float) -> Rule:
    def valid(value: Any) -> bool:
        return (_is_integer(value) or type(value) is float) and least <= value <= most

    return _rule(valid, f"a number from {least:g} to {most:g}")


def _is_text(value: Any, pattern: re.Pattern[str] = _PRINTABLE) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _text(pattern: str, words: str) -> Rule:
    return _rule(partial(_is_text, pattern=re.compile(pattern)), words)


def _or_none(rule: Rule) -> Rule:
    return lambda value, name: None if value is None else rule(value, name)


def _list_of(rule: Rule, least: int = 0) -> Rule:
    def check(value: Any, name: str) -> None:
        if not isinstance(value, list) or len(value) < least:
            raise InvalidFileError(f"'{name}' must be a list, found {shown(value)}")
        for number, item in enumerate(value):
            rule(item, f"{name}[{number}]")

    return check


def _object(entries: dict[str, Rule], optional: frozenset[str] = frozenset()) -> Rule:
    """Return the rule of an object that has these entries and no others; some it may lack."""

    def check(value: Any, name: str) -> None:
        if not isinstance(value, dict):
            raise InvalidFileError(f"'{name}' must be an object, found {shown(value)}")
        prefix = f"{name}." if name else ""
        for key in value | entries:
            if key not in entries:
                raise InvalidFileError(f"its header has the unknown entry {shown(f'{prefix}{key}')}")
            if key in value:
                entries[key](value[key], prefix + key)
            elif key not in optional:
                raise InvalidFileError(f"its header has no '{prefix}{key}'")

    return check


def _map_of(rule: Rule) -> Rule:
    """Return the rule of an object whose keys are any text."""

    def check(value: Any, name: str) -> None:
        if not isinstance(value, dict) or not all(map(_is_text, value)):
            raise InvalidFileError(f"'{name}' must be an object with text as keys, found {shown(value)}")
        for key, item in value.items():
            rule(item, f"{name}.{key}")

    return check


def _json(value: Any, name: str, depth: int = MAX_DEPTH) -> None:
    """Check a value that may be anything that JSON gives back as it is."""
    if isinstance(value, dict | list):
        if depth == 0:
            raise InvalidFileError(f"'{name.split('.')[0]}' is nested more than {MAX_DEPTH} deep")
        inner = partial(_json, depth=depth - 1)
        (_map_of(inner) if isinstance(value, dict) else _list_of(inner))(value, name)
    elif value is not None and not isinstance(value, bool):
        (TEXT if isinstance(value, str) else NUMBER)(value, name)


def names_file(network: str) -> bool:
    """Say whether the name of a network is that of a file."""
    return network.startswith("onnx:") or network.endswith(".safetensors")


def _is_label(value: Any) -> bool:
    whole = isinstance(value, int) and -(2**63) <= value < 2**63
    finite = isinstance(value, float) and math.isfinite(value)
    return whole or finite or _is_text(value, _STORABLE)


TEXT = _rule(_is_text, f"text of at most {MAX_TEXT} characters that can be printed")
LABEL = _rule(
    _is_label, f"a number, or text of at most {MAX_TEXT} characters without NUL and lone surrogates"
)
NUMBER = _number(-1e308, 1e308)
COUNT = _rule(lambda value: _is_integer(value) and value >= 0, "an int from 0 to 2**63 - 1")
WIDTH = _rule(lambda value: _is_integer(value) and value >= 1, "an int from 1 to 2**63 - 1")
CHANGE = _rule(_is_integer, "an int of 64 bits")
TRUTH = _rule(lambda value: isinstance(value, bool), "true or false")
#: A number that is not negative. How large γ may be depends on the precision: see `check_header`.
AMOUNT = _number(0, 1e308)
HASH = _text("[0-9a-f]{32}", "32 hexadecimal digits")
#: A network by name, or a file of one without its folder: a model file does not name places.
NETWORK = _rule(
    lambda value: _is_text(value) and (not names_file(value) or not re.search(r"[/\\]", value)),
    "the name of a network, or of a file without its folder",
)

#: The parameters of `ACILClassifier`, as set now; and those in force when its sums were made.
SET = {name: _values(parameter.stored or parameter.values) for name, parameter in PARAMETERS.items()}
LEARNT = {name: SET[name] for name, parameter in PARAMETERS.items() if parameter.learnt}
#: How samples learnt score when left out: `acil.core.scores`. An inference file has empty lists.
CALIBRATION: dict[str, Rule] = {
    "samples": AMOUNT,
    "losses": _list_of(AMOUNT),
    "novelties": _list_of(AMOUNT),
    "approximate": TRUTH,
    "hotter": _number(0, 10),
}
#: What a file says of images.
IMAGES: dict[str, Rule] = {
    "source": _or_none(NETWORK),
    "tracked": _list_of(
        _object(
            {
                "salt": HASH,
                "hashes": _list_of(HASH),
                "placed": _list_of(HASH),
                "renamed": _map_of(TEXT),
            },
            optional=frozenset(("renamed",)),
        )
    ),
}
#: What a change of a file did, in numbers: `acil.growing.history`.
HISTORY: dict[str, Rule] = {
    "number": WIDTH,
    "time": _text(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", "a time such as 2026-01-31T12:00:00+00:00"),
    "action": TEXT,
    "change": CHANGE,
    "touched": COUNT,
    "samples": COUNT,
    "classes": COUNT,
    "measured": _map_of(NUMBER),
}
#: Releases of the samples of a model, and whether the model is one itself: `acil.privacy.release`.
RELEASE: dict[str, Rule] = {
    "private": TRUTH,
    "releases": _list_of(_object({"id": HASH, "noise": _number(1e-6, 1e6)}), least=1),
    "epsilon": _or_none(_number(0, 1e12)),
    "delta": _or_none(_number(0, 1)),
}
#: The network of a model that was learnt from images: `acil.encoders.images.embedder.Embedder.identity`.
check_identity = _object(
    {"name": TEXT, "weights": TEXT, "preprocessing": _map_of(_json), "engine": TEXT}
)
#: Every entry of a header. What an entry is for: `acil.core.files.saving`.
HEADER: dict[str, Rule] = {
    "format_version": WIDTH,
    "kind": _one_of("full", "inference"),
    "task": _one_of(*TASKS),
    "encoder": _one_of(*ENCODERS),
    "parameters": _object(SET),
    "n_features": WIDTH,
    "feature_names": _or_none(_list_of(LABEL)),
    "size": WIDTH,
    "linear": AMOUNT,
    **LEARNT,
    "scores": _one_of("ridge", "discriminant"),
    "unseen": _number(0, 1),
    "unseen_by_one": _number(0, 10),
    "standardize": TRUTH,
    "classes": _list_of(LABEL, least=1),
    "classes_dtype": TEXT,
    "counts": _list_of(COUNT),
    "weights": _or_none(_list_of(AMOUNT)),
    "total_weight": _or_none(AMOUNT),
    "clipped": TRUTH,
    "gamma": _or_none(AMOUNT),
    "gamma_chosen": TRUTH,
    "gamma_samples": COUNT,
    "gamma_relative": _or_none(AMOUNT),
    "condition": _or_none(_number(1, 1e308)),
    "temperature": _or_none(_number(1e-6, 1e6)),
    "calibration": _or_none(_object(CALIBRATION)),
    "backbone": _or_none(_map_of(_json)),
    "images": _or_none(_object(IMAGES)),
    "release": _or_none(_object(RELEASE)),
    "history": _list_of(_object(HISTORY)),
    "fingerprint": TEXT,
    "checksums": _map_of(COUNT),
    "versions": _map_of(TEXT),
}


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a model file says of itself, without reading its tensors and without torch.

    That is its header (``classes``, ``counts``, ``gamma``, ``parameters`` …), ``n_samples``, ``path``,
    ``file_bytes`` and ``tensors``, a dict of name to ``dtype``, ``shape`` and ``bytes``. A file that is
    missing, damaged or written by another version is a `ModelFileError`.
    """
    with opened(path) as (file, header):
        tensors = {
            name: {"dtype": dtype, "shape": list(shape), "bytes": math.prod(shape) * _ITEM_BYTES[dtype]}
            for name, (dtype, shape) in file.layouts.items()
        }
        facts = {"path": str(path), "file_bytes": Path(path).stat().st_size}
        return {**facts, **header, "n_samples": sum(header["counts"]), "tensors": tensors}


def in_order(names: Iterable[str]) -> list[str]:
    """Return names of classes as people sort them: numbers by their size, also those inside of names.

    A model has them as scikit-learn sorts them (``classes_``).

    Examples
    --------
    >>> in_order(["10", "9", "-1.5"]), in_order(["room 10", "Room 9", "attic"])
    (['-1.5', '9', '10'], ['attic', 'Room 9', 'room 10'])
    """
    listed = list(names)
    if all(re.fullmatch(r"-?\d+(\.\d+)?", name) for name in listed):
        return sorted(listed, key=lambda name: (Decimal(name), name))

    def natural(name: str) -> tuple[list[str | int], str]:
        # Text and digits take turns, so that like is compared with like.
        parts = enumerate(re.split(r"(\d+)", name))
        return [int(part) if place % 2 else part.casefold() for place, part in parts], name

    return sorted(listed, key=natural)


def require_whole(path: str | os.PathLike[str]) -> None:
    """Raise a `ModelFileError` unless a model file is as it was written, its tensors too."""
    with opened(path) as (file, header):
        for name in file.layouts:
            check_tensor(file.array(name), name, header)


def check_tensor(array: Any, name: str, header: Mapping[str, Any]) -> None:
    """Raise unless a tensor has the checksum in the header; a packed model has none."""
    checksums = header["checksums"]
    if checksums and zlib.crc32(array) != checksums.get(name):
        raise InvalidFileError(f"tensor {name!r} does not have the checksum that it was written with")


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[tuple[TensorFile, dict[str, Any]]]:
    """Open a model file, check it, and yield it with its header.

    Whatever is wrong with it is a `ModelFileError`.
    """
    try:
        _check_envelope(path)
        file = TensorFile(path)
        text = file.metadata.get(METADATA_KEY)
        if text is None:
            raise InvalidFileError(f"it has no entry {METADATA_KEY!r}, so it is no model", _NOT_OURS)
        header = parse_header(text)
        if file.metadata.get(CHECKSUM_KEY) != str(zlib.crc32(text.encode())):
            raise InvalidFileError("its header does not have the checksum that it was written with")
        if header["temperature"] is None:
            raise InvalidFileError("'temperature' must be a number, found None")
        check_layouts(header, file.layouts)
        yield file, header
    except InvalidFileError as error:
        raise ModelFileError(f"Cannot read {path}: {error}. {error.advice}") from None
    except DamagedFileError as error:
        raise ModelFileError(
            f"Cannot read {path}: it is truncated or damaged ({error}). Use another copy of it."
        ) from None
    except OSError as error:
        raise cannot_read(path, error) from error


def parse_header(text: str) -> dict[str, Any]:
    """Return the checked header of its JSON text."""
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidFileError(f"its header is not valid JSON ({error})") from None
    if not isinstance(header, dict):
        raise InvalidFileError(f"its header is {shown(header)}, not an object")
    version = header.get("format_version")
    if version not in READ_VERSIONS or isinstance(version, bool | float):
        raise InvalidFileError(
            f"it has the format version {shown(version)}, written by another version of acil; this one "
            f"reads {' and '.join(map(str, READ_VERSIONS))}",
            "Use that version, or learn the model again and save it with this one.",
        )
    if version == 5:
        _bring_up_to_date(header)
    # What earlier files do not have: without the first, γ is chosen again when more is learnt.
    header.setdefault("gamma_samples", 0)
    header.setdefault("history", [])
    header.setdefault("linear", 0.0)
    header.setdefault("unseen", 0.0)
    header.setdefault("unseen_by_one", 0.0)
    if isinstance(header.get("calibration"), dict):
        header["calibration"].setdefault("hotter", 0.0)
    check_header(header)
    return header


def _bring_up_to_date(header: dict[str, Any]) -> None:
    """Add to a header of format 5 what format 6 has; it may be damaged."""
    weights = header.get("weights")
    numbers = isinstance(weights, list) and all(type(w) in (int, float) for w in weights)
    header.setdefault("total_weight", math.fsum(weights or []) if numbers else None)
    header.setdefault("task", "classes")
    header.setdefault("encoder", "features" if header.get("images") is None else "images")
    header.setdefault("clipped", True)
    parameters = header.get("parameters")
    if isinstance(parameters, dict):
        parameters.setdefault("expansion_bias", 0)
        if parameters.get("solver") == "recursive":
            # Refused by now; what was learnt keeps the rule.
            parameters["class_balance"] = False
    calibration = header.get("calibration")
    if isinstance(calibration, dict) and isinstance(calibration.get("novelties"), list):
        # They were of another measure.
        calibration["novelties"] = [0] * len(calibration["novelties"])
        calibration["approximate"] = True
        losses = calibration.get("losses")
        if isinstance(losses, list) and losses and type(losses[0]) in (int, float):
            # Eight lower temperatures are tried by now, at which no loss can be smaller than that.
            calibration["losses"] = [losses[0] * 2 ** (step / 2) for step in range(8, 0, -1)] + losses


def check_header(header: dict[str, Any]) -> None:
    """Raise `InvalidFileError` unless all values of a header are valid and fit together."""
    _object(HEADER)(header, "")
    if header["images"] is not None:
        check_identity(header["backbone"], "backbone")
    for fault in chain(_label_faults(header["classes"], header["classes_dtype"]), _misfits(header)):
        raise InvalidFileError(fault)


def _misfits(header: dict[str, Any]) -> Iterator[str]:
    """Say which entries, each of them valid, do not fit together."""
    counts, weights, names = header["counts"], header["weights"], header["feature_names"]
    full, n_classes = header["kind"] == "full", len(header["classes"])
    recursive, discriminant = header["solver"] == "recursive", header["scores"] == "discriminant"
    if len(counts) != n_classes or not 0 < sum(counts) < 2**63:
        yield f"'counts' must be one for each of {n_classes} classes, not all zero"
    for key in ("weights", "gamma", "total_weight"):
        if (header[key] is not None) != full:
            yield f"{key!r} belongs to full models, and only to them"
    largest = MAX_GAMMA[header["dtype"]]
    if weights is not None and (len(weights) != n_classes or not 0 < sum(weights) <= largest):
        yield f"'weights' must be one for each class, up to {largest:g} together, found {shown(weights)}"
    for name, gamma in (("gamma", header["gamma"]), ("parameters.gamma", header["parameters"]["gamma"])):
        if isinstance(gamma, int | float) and gamma > largest:
            yield f"{name!r} must be at most {largest:g}, found {gamma:g}"
    if names is not None and len(names) != header["n_features"]:
        yield f"{len(names)} 'feature_names' do not fit {header['n_features']} features"
    if recursive and (header["fit_intercept"] or header["dtype"] == "mixed"):
        yield "solver 'recursive' has no intercept and no mixed precision"
    if recursive and header["class_balance"] not in (False, True, 0):
        yield "solver 'recursive' has no class balance"
    for key in ("unseen", "unseen_by_one"):
        if header[key] and not discriminant:
            yield f"{key!r} belongs to discriminant scores, and only to them"
    if header["calibration"] is not None and not discriminant:
        yield "'calibration' belongs to discriminant scores, and only to them"
    if weights is not None and abs(header["total_weight"] - math.fsum(weights)) > 1e-8 * sum(weights):
        yield "'total_weight' must be the sum of 'weights'"
    if (header["images"] is None) != (header["encoder"] == "features"):
        yield "'images' belongs to models of images or texts, and only to them"
    if discriminant and (recursive or header["class_balance"]):
        yield "discriminant scores need sums, and no class balance"


def _label_faults(classes: list[Any], dtype: str) -> Iterator[str]:
    """Say why labels are not distinct, sorted and of their NumPy type."""
    if not re.fullmatch(r"bool|int(8|16|32|64)|float(16|32|64)|<U[0-9]+", dtype):
        yield f"'classes_dtype' is {shown(dtype)}, which is no label type"
        return
    kind: type = {"b": bool, "i": int, "f": float, "<": str}[dtype[0]]
    # A bool is an int to isinstance, but not a label of an int model.
    if not all(type(label) is kind for label in classes):
        yield f"'classes' must all be {kind.__name__}, as {dtype!r} says"
        return
    if kind is str:
        longest = max(1, max(map(len, classes)))
        if dtype != f"<U{longest}":
            yield f"'classes_dtype' {dtype!r} is not as wide as the longest of 'classes'"
        if len(classes) * longest > MAX_LABELS:
            yield (
                f"{len(classes)} classes, padded to the longest name of {longest} characters, have more "
                f"than {MAX_LABELS} characters. Use shorter names"
            )
    else:
        with np.errstate(over="ignore"):
            # Short numbers wrap or are rounded.
            if np.array(classes).astype(dtype).tolist() != classes:
                yield f"'classes' cannot be represented as {dtype!r}"
    for left, right in pairwise(classes):
        if not left < right:
            yield f"'classes' must be sorted and distinct, found {shown(left)} before {shown(right)}"


def is_balanced(class_balance: Any) -> bool:
    """Say whether classes are balanced; true alone is the rule of format 5, which needs no tensor."""
    return class_balance is not True and class_balance > 0


def check_layouts(header: Mapping[str, Any], layouts: Mapping[str, Layout]) -> None:
    """Raise `InvalidFileError` unless a file has the tensors that its header calls for."""
    d, classes = header["size"], len(header["classes"])
    if header["linear"] and ("projection" not in layouts or d <= header["n_features"]):
        raise InvalidFileError("'linear' belongs to an expansion that is wider than the features")
    sums = "F32" if header["dtype"] == "float32" else "F64"
    expected: dict[str, Layout] = {"coef": (sums, (classes, d)), "intercept": (sums, (classes,))}
    if "projection" in layouts:
        units = d - header["n_features"] if header["linear"] else d
        expected["projection"] = ("F32", (header["n_features"], units))
        if "bias" in layouts or header["activation"] in FITTED:
            expected["bias"] = ("F32", (units,))
    if header["standardize"]:
        expected["scaling"] = ("F64", (2, header["n_features"]))
    if header["kind"] == "full":
        triangle = (sums, (d * (d + 1) // 2,))
        gram = {"gram": triangle, "moment": (sums, (d, classes))}
        if header["format_version"] > 5:
            gram["total"] = (sums, (d,))
        expected |= gram if header["solver"] == "gram" else {"rfaum": triangle}
        # Not in memory: see `acil.core.files.pack`
        mixed = header["scores"] == "discriminant" or is_balanced(header["class_balance"])
        if mixed and header["temperature"] is not None:
            expected["mixing"] = ("F64", (classes + 1, classes))
    for name in sorted(expected.keys() | layouts.keys()):
        if layouts.get(name) != expected.get(name):
            needed, actual = (shown(layout.get(name, "none")) for layout in (expected, layouts))
            raise InvalidFileError(f"tensor {name!r} must be {needed}, found {actual}")
    if "projection" not in layouts and header["n_features"] != d:
        raise InvalidFileError(f"it has no projection of {header['n_features']} features to {d}")


def _check_envelope(path: str | os.PathLike[str]) -> None:
    """Say in plain words what is wrong with files that are no safetensors files at all."""
    place = Path(path)
    if not place.exists():
        raise InvalidFileError("there is no such file", "Check the path.")
    if not place.is_file():
        what = "a directory" if place.is_dir() else "not a regular file"
        raise InvalidFileError(f"it is {what}", "Give the path of a model file.")
    with place.open("rb") as file:
        start = file.read(9)
    if start[8:] != b"{" or int.from_bytes(start[:8], "little") > MAX_HEADER_BYTES:
        raise InvalidFileError("it does not start like a model file", _NOT_OURS)
