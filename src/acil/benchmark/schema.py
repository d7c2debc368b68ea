"""What a record of a run must hold: each key, its type and its range."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from acil.errors import InputError

#: A test of one value, and the words that say what it must be.
Rule = tuple[Callable[[Any], bool], str]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_percent(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= 100


def _is_memory(value: Any) -> bool:
    return isinstance(value, Mapping) and all(_is_count(value.get(part)) for part in MEMORY_PARTS)


def _or_none(rule: Rule) -> Rule:
    test, words = rule
    return (lambda value: value is None or test(value)), f"{words}, or null where there is none"


MEMORY_PARTS = ("samples", "statistics", "weights")

_TEXT: Rule = (lambda value: isinstance(value, str) and bool(value.strip()), "a text that is not empty")
_MAPPING: Rule = (
    lambda value: isinstance(value, Mapping) and all(isinstance(key, str) for key in value),
    "an object with texts as keys",
)
_COUNT: Rule = (_is_count, "a whole number of at least 0")
_POSITIVE: Rule = (lambda value: _is_count(value) and value > 0, "a whole number of at least 1")
_PERCENT: Rule = (_is_percent, "a percentage from 0 to 100")
_AMOUNT: Rule = (lambda value: _is_number(value) and value >= 0, "a finite number of at least 0")
_DROP: Rule = (
    lambda value: _is_number(value) and -100 <= value <= 100,
    "percentage points from -100 to 100",
)
_PERCENTS: Rule = (
    lambda value: (
        isinstance(value, list | tuple)
        and len(value) > 0
        and all(item is None or _is_percent(item) for item in value)
    ),
    "a list of percentages from 0 to 100, null for a phase without test images",
)
_MEMORY: Rule = (_is_memory, f"an object with the bytes of {', '.join(MEMORY_PARTS)}")

#: What tells one run from another; `acil.benchmark.records.key` makes a key of them.
IDENTITY: dict[str, Rule] = {
    "suite": _TEXT,
    "method": _TEXT,
    "dataset": _TEXT,
    "order": _TEXT,
    "recipe": _TEXT,
    "settings": _MAPPING,
    "seed": _COUNT,
    "phases": _POSITIVE,
}
REQUIRED: dict[str, dict[str, Rule]] = {
    "environment": {
        "acil": _TEXT,
        "python": _TEXT,
        "packages": _MAPPING,
        "device": _MAPPING,
        "threads": _MAPPING,
    },
    "phase": {
        **IDENTITY,
        "phase": _COUNT,
        "classes_seen": _POSITIVE,
        "accuracy": _PERCENT,
        "base_accuracy": _or_none(_PERCENT),
        "accuracy_by_origin": _PERCENTS,
        "memory": _MEMORY,
        "seconds": _AMOUNT,
        "peak_rss": _or_none(_COUNT),
    },
    "failure": {**IDENTITY, "error": _TEXT},
    "choice": {
        "dataset": _TEXT,
        "order": _TEXT,
        "recipe": _TEXT,
        "candidate": _TEXT,
        "identity": _TEXT,
        "split": _COUNT,
        "accuracy": _MAPPING,
        "network_inputs": _COUNT,
    },
    "summary": {
        **IDENTITY,
        "average_accuracy": _PERCENT,
        "last_accuracy": _PERCENT,
        "forgetting": _or_none(_DROP),
    },
}
OPTIONAL: dict[str, dict[str, Rule]] = {
    "environment": {},
    "phase": {},
    "failure": {},
    "choice": {},
    "summary": {"joint_difference": _or_none(_AMOUNT), "condition": _or_none(_AMOUNT)},
}


def check_record(record: Mapping[str, Any]) -> None:
    """Raise unless a record has everything that its kind needs, in the right ranges.

    Keys that the schema does not know are let through: records may carry more than reports read.

    Parameters
    ----------
    record : Mapping

    Raises
    ------
    InputError
        Naming the first key that is wrong, what it must be and what it is.

    Examples
    --------
    >>> check_record({"kind": "phase"})
    Traceback (most recent call last):
    acil.errors.InputError: This phase record lacks suite, which must be a text that is not empty.
    """
    if not isinstance(record, Mapping):
        raise InputError(f"A record must be an object. Got {_shown(record)}.")
    kind = record.get("kind")
    if not isinstance(kind, str) or kind not in REQUIRED:
        raise InputError(f"A record's kind must be one of {', '.join(REQUIRED)}. Got {_shown(kind)}.")
    for name, (test, words) in {**REQUIRED[kind], **OPTIONAL[kind]}.items():
        if name not in record:
            if name in REQUIRED[kind]:
                raise InputError(f"This {kind} record lacks {name}, which must be {words}.")
        elif not test(record[name]):
            raise InputError(
                f"{name} of this {kind} record must be {words}. Got {_shown(record[name])}."
            )
    if kind == "phase":
        _check_phase(record)


def encode(record: Mapping[str, Any]) -> bytes:
    """Return a record as one line of JSON, with its newline.

    Parameters
    ----------
    record : Mapping
        As `check_record` lets it through.

    Raises
    ------
    InputError
        If something in it is no JSON, such as NaN, infinity or a tensor.
    """
    try:
        text = json.dumps(record, allow_nan=False, separators=(", ", ": "))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"This {record['kind']} record cannot be written as JSON: {error}. Give plain numbers, "
            "texts, lists and objects; null for what is not a finite number."
        ) from error
    return text.encode("ascii") + b"\n"


def _check_phase(record: Mapping[str, Any]) -> None:
    phase, phases, origins = record["phase"], record["phases"], len(record["accuracy_by_origin"])
    if phase > phases:
        raise InputError(f"phase of a phase record must be at most phases, {phases}. Got {phase}.")
    if origins > phase + 1:
        raise InputError(
            f"accuracy_by_origin after phase {phase} must have at most {phase + 1} entries, one for "
            f"each phase so far. Got {origins}."
        )


def _shown(value: Any) -> str:
    return reprlib.repr(value)
