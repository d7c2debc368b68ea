"""What each entry of a model file's header must be: one table, checked before anything uses a value.

A new entry is one line in `HEADER`. Strings are short and cannot hold NUL, lone surrogates or control
characters; numbers are finite and in a range. This module needs no torch.
"""

from __future__ import annotations

import math
import re
import reprlib
import unicodedata
from collections.abc import Callable
from typing import Any

#: The version that is written and read; no other was ever released.
FORMAT_VERSION = 5
#: Longest label, and longest text of any other entry, in characters.
MAX_TEXT = 1024
#: Characters of all labels, each padded to the longest, as NumPy keeps them.
MAX_LABELS = 2**26
#: Largest γ, which is added to the diagonal of a matrix in float64, or in float32.
MAX_GAMMA = {"float64": 1e305, "float32": 1e35, "mixed": 1e35}
#: How deep `backbone` may be nested.
MAX_DEPTH = 32
# These names are repeated here because acil.analytic imports torch; a test compares them.
ACTIVATIONS = ("relu", "tanh", "gelu", "identity")
SOLVERS = ("gram", "recursive")
SCORES = ("ridge", "discriminant")
DAMAGED = "The file is damaged or was edited: use another copy of it, or save the model again."

#: Raises `InvalidFileError` unless a value is what the entry of this name must be.
Rule = Callable[[Any, str], None]

#: Text of bounded length, without control characters.
shown = reprlib.repr


class InvalidFileError(ValueError):
    """What is wrong with a file, and what to do; whoever knows the path makes the message.

    Parameters
    ----------
    cause, advice : str
    """

    def __init__(self, cause: str, advice: str = DAMAGED) -> None:
        super().__init__(cause)
        self.advice = advice


def _rule(valid: Callable[[Any], bool], words: str) -> Rule:
    def check(value: Any, name: str) -> None:
        if not valid(value):
            raise InvalidFileError(f"'{name}' must be {words}, found {shown(value)}")

    return check


def _one_of(*options: str) -> Rule:
    return _rule(
        lambda value: isinstance(value, str) and value in options,
        "one of " + ", ".join(map(repr, options)),
    )


def _number(least: float, most: float) -> Rule:
    def valid(value: Any) -> bool:
        # A bool is an int to isinstance; torch takes no int beyond 64 bits.
        whole = type(value) is int and abs(value) < 2**63
        return (whole or type(value) is float) and least <= value <= most

    return _rule(valid, f"a number from {least:g} to {most:g}")


def _integer(least: int) -> Rule:
    return _rule(
        lambda value: type(value) is int and least <= value < 2**63, f"an int from {least} to 2**63 - 1"
    )


def _text(pattern: str, words: str) -> Rule:
    return _rule(lambda value: is_text(value) and re.fullmatch(pattern, value) is not None, words)


def _or_none(rule: Rule) -> Rule:
    return lambda value, name: None if value is None else rule(value, name)


def _list_of(rule: Rule, least: int = 0) -> Rule:
    def check(value: Any, name: str) -> None:
        if not isinstance(value, list) or len(value) < least:
            raise InvalidFileError(f"'{name}' must be a list, found {shown(value)}")
        for number, item in enumerate(value):
            rule(item, f"{name}[{number}]")

    return check


def _object(entries: dict[str, Rule]) -> Rule:
    """Return the rule of an object that has these entries and no others."""

    def check(value: Any, name: str) -> None:
        if not isinstance(value, dict):
            raise InvalidFileError(f"'{name}' must be an object, found {shown(value)}")
        prefix = f"{name}." if name else ""
        for key in value:
            if key not in entries:
                raise InvalidFileError(f"its header has the unknown entry {shown(f'{prefix}{key}')}")
        for key, rule in entries.items():
            if key not in value:
                raise InvalidFileError(f"its header has no '{prefix}{key}'")
            rule(value[key], prefix + key)

    return check


def _map_of(rule: Rule) -> Rule:
    """Return the rule of an object whose keys are any text."""

    def check(value: Any, name: str) -> None:
        if not isinstance(value, dict) or not all(map(is_text, value)):
            raise InvalidFileError(f"'{name}' must be an object with text as keys, found {shown(value)}")
        for key, item in value.items():
            rule(item, f"{name}.{key}")

    return check


def _json(value: Any, name: str, depth: int = MAX_DEPTH) -> None:
    """Check a value that may be anything that JSON gives back as it is."""

    def inner(item: Any, place: str) -> None:
        _json(item, place, depth - 1)

    if isinstance(value, dict | list) and depth == 0:
        raise InvalidFileError(f"'{name.split('.')[0]}' is nested more than {MAX_DEPTH} deep")
    if isinstance(value, dict):
        _map_of(inner)(value, name)
    elif isinstance(value, list):
        _list_of(inner)(value, name)
    elif value is not None and not isinstance(value, bool):
        (TEXT if isinstance(value, str) else NUMBER)(value, name)


def is_text(value: Any, controls: bool = False) -> bool:
    """Say whether a value is text that can be stored and, unless it may have controls, printed."""
    if not isinstance(value, str) or len(value) > MAX_TEXT or "\0" in value:
        return False
    refused = ("Cs",) if controls else ("Cs", "Cc", "Zl", "Zp")
    return value.isprintable() or not any(unicodedata.category(c) in refused for c in value)


def names_file(network: str) -> bool:
    """Say whether the name of a network is that of a file."""
    return network.startswith("onnx:") or network.endswith(".safetensors")


def _is_label(value: Any) -> bool:
    whole = isinstance(value, int) and -(2**63) <= value < 2**63
    finite = isinstance(value, float) and math.isfinite(value)
    return whole or finite or is_text(value, controls=True)


TEXT = _rule(is_text, f"text of at most {MAX_TEXT} characters that can be printed")
LABEL = _rule(
    _is_label, f"a number, or text of at most {MAX_TEXT} characters without NUL and lone surrogates"
)
NUMBER = _number(-1e308, 1e308)
COUNT = _integer(0)
WIDTH = _integer(1)
TRUTH = _rule(lambda value: isinstance(value, bool), "true or false")
#: A number that is not negative. How large γ may be depends on the precision: see `check_header`.
AMOUNT = _number(0, 1e308)
HASH = _text("[0-9a-f]{32}", "32 hexadecimal digits")
#: A network by name, or a file of one without its folder: a model file does not name places.
NETWORK = _rule(
    lambda value: is_text(value) and (not names_file(value) or not re.search(r"[/\\]", value)),
    "the name of a network, or of a file without its folder",
)

#: Settings of the computation: in the header as learnt with, among the parameters as set now.
_OPTIONS: dict[str, Rule] = {
    "activation": _one_of(*ACTIVATIONS),
    "solver": _one_of(*SOLVERS),
    "dtype": _one_of(*MAX_GAMMA),
    "fit_intercept": TRUTH,
    "class_balance": TRUTH,
    "clip_norm": _or_none(_number(1e-30, 1e30)),
    "scores": _one_of(*SCORES),
    "standardize": TRUTH,
}
#: The constructor arguments of `ACILClassifier`.
PARAMETERS: dict[str, Rule] = {
    "expansion_size": _or_none(WIDTH),
    "gamma": lambda value, name: None if value == "auto" else AMOUNT(value, name),
    "random_state": COUNT,
    "min_class_samples": WIDTH,
    "device": _text("auto|(cpu|cuda|mps|xpu)(:[0-9]{1,3})?", "'auto', 'cpu', 'cuda', 'mps' or 'xpu'"),
    **_OPTIONS,
}
#: How samples learnt score when left out: `acil.calibration`. An inference file has empty lists.
CALIBRATION: dict[str, Rule] = {
    "samples": AMOUNT,
    "losses": _list_of(AMOUNT),
    "novelties": _list_of(AMOUNT),
    "approximate": TRUTH,
}
#: What a file says of images.
IMAGES: dict[str, Rule] = {
    "source": _or_none(NETWORK),
    "tracked": _list_of(_object({"salt": HASH, "hashes": _list_of(HASH), "placed": _list_of(HASH)})),
}
#: Releases of the samples of a model, and whether the model is one itself: `acil.privacy.release`.
RELEASE: dict[str, Rule] = {
    "private": TRUTH,
    "releases": _list_of(_object({"id": HASH, "noise": _number(1e-6, 1e6)}), least=1),
    "epsilon": _or_none(_number(0, 1e12)),
    "delta": _or_none(_number(0, 1)),
}
#: The network of a model that was learnt from images: `acil.vision.embedder.Embedder.identity`.
check_identity = _object(
    {"name": TEXT, "weights": TEXT, "preprocessing": _map_of(_json), "engine": TEXT}
)
#: Every entry of a header. What an entry is for: `acil.modelfile.saving`.
HEADER: dict[str, Rule] = {
    "format_version": WIDTH,
    "kind": _one_of("full", "inference"),
    "parameters": _object(PARAMETERS),
    "n_features": WIDTH,
    "feature_names": _or_none(_list_of(LABEL)),
    "size": WIDTH,
    **_OPTIONS,
    "classes": _list_of(LABEL, least=1),
    "classes_dtype": TEXT,
    "counts": _list_of(COUNT),
    "weights": _or_none(_list_of(AMOUNT)),
    "gamma": _or_none(AMOUNT),
    "gamma_chosen": TRUTH,
    "gamma_relative": _or_none(AMOUNT),
    "condition": _or_none(_number(1, 1e308)),
    "temperature": _or_none(_number(1e-6, 1e6)),
    "calibration": _or_none(_object(CALIBRATION)),
    "backbone": _or_none(_map_of(_json)),
    "images": _or_none(_object(IMAGES)),
    "release": _or_none(_object(RELEASE)),
    "fingerprint": TEXT,
    "checksums": _map_of(COUNT),
    "versions": _map_of(TEXT),
}
check_entries = _object(HEADER)
