"""Records of a run: one JSON object a line, only ever appended, so that a killed run loses nothing.

What a record must hold, each key with its type and its range, is at the end of this file.
"""

from __future__ import annotations

import json
import math
import os
import reprlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from acil.bench.orders import canonical_order
from acil.core.files.writing import cannot_write, flush_name, locked
from acil.errors import InputError

#: Name of the file in a run directory.
FILE_NAME = "records.jsonl"

Record = dict[str, Any]


class Records:
    """The records of one run, in a file that several processes may append to.

    The file need not exist yet, its directory must.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> records = Records(Path(folder.name) / "records.jsonl")
    >>> records.append({"kind": "environment", "acil": "1.0", "python": "3.12", "packages": {},
    ...                 "device": {"type": "cpu"}, "threads": {}})
    >>> [record["kind"] for record in records.read()]
    ['environment']
    >>> folder.cleanup()
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one record (see `check_record`), whole and on the disk when this returns.

        A half-written last line, which a killed process leaves behind, is removed first. On any error
        the file is as it was.
        """
        check_record(record)
        try:
            text = json.dumps(record, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(
                f"This {record['kind']} record cannot be written as JSON: {error}. Give plain numbers, "
                "texts, lists and objects; null for what is not a finite number."
            ) from error
        try:
            # Created before it is locked: a lock on a file that is not there would be one on its
            # directory, which does not keep away those who come when the file is there.
            with self.path.open("a+b", buffering=0) as file, locked(self.path):
                _repair(file.fileno())
                if os.fstat(file.fileno()).st_size == 0:
                    flush_name(self.path.resolve())
                _write_whole(file.fileno(), text.encode("ascii") + b"\n")
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def read(self) -> list[Record]:
        """Return all records in the order in which they were written; none if there is no file.

        A half-written last line is left out. Damage elsewhere is an error with the file and the line.
        """
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InputError(
                f"Cannot read {self.path}: {error.strerror}. Give a file of records."
            ) from error
        *lines, tail = data.split(b"\n")
        if _is_whole(tail):
            lines.append(tail)
        return [self._parsed(line, number) for number, line in enumerate(lines, 1) if line.strip()]

    def _parsed(self, line: bytes, number: int) -> Record:
        try:
            record: Record = _decode(line)
            check_record(record)
        except ValueError as error:
            raise InputError(
                f"{self.path}, line {number} is damaged: {error} Remove that line, or take a copy of "
                "the file; what the line recorded is then run again."
            ) from None
        if "order" in record:
            # Earlier versions recorded the name as the user wrote it. An order of a newer version, or of
            # a user's own records, keeps its name.
            with suppress(InputError):
                record["order"] = canonical_order(record["order"])
        return record


def key(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what identifies the run that a phase or summary record belongs to, written or not yet.

    That is suite, method, dataset, order, recipe, settings (as text), seed and phases.
    """
    return tuple(canonical(record[name]) if name == "settings" else record[name] for name in IDENTITY)


def finished(records: Iterable[Mapping[str, Any]]) -> set[tuple[Any, ...]]:
    """Return the keys of the runs that have a summary."""
    return {key(record) for record in records if record["kind"] == "summary"}


def canonical(settings: Mapping[str, Any]) -> str:
    """Return settings as text: without regard to order, and 1.0 as 1."""
    return json.dumps(_plain(settings), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _decode(line: bytes) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"it holds {constant}.")

    try:
        return json.loads(line, parse_constant=refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply.") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise ValueError("it is not JSON.") from None


def _is_whole(tail: bytes) -> bool:
    """Say whether a last line lacks nothing but its newline: no part of an object is valid JSON."""
    try:
        return isinstance(_decode(tail), dict)
    except ValueError:
        return False


def _repair(descriptor: int) -> None:
    """Complete or cut off a last line without a newline; the caller has locked the file."""
    size = os.fstat(descriptor).st_size
    tail = os.pread(descriptor, size, 0).rpartition(b"\n")[2]
    if _is_whole(tail):
        _write_whole(descriptor, b"\n")
    elif tail:
        os.ftruncate(descriptor, size - len(tail))


def _write_whole(descriptor: int, data: bytes) -> None:
    """Append data and flush it to the disk; on any failure leave the file as it was."""
    size = os.fstat(descriptor).st_size
    try:
        done = 0
        while done < len(data):
            done += os.write(descriptor, data[done:])
        os.fsync(descriptor)
    except BaseException:
        with suppress(OSError):
            os.ftruncate(descriptor, size)
        raise


#: A test of one value, and the words that say what it must be.
Rule = tuple[Callable[[Any], bool], str]


def _number(low: float, high: float, words: str, whole: bool = False) -> Rule:
    """Return the rule of a finite number within limits."""
    kinds = (int,) if whole else (int, float)

    def test(value: Any) -> bool:
        known = isinstance(value, kinds) and not isinstance(value, bool)
        return known and low <= value <= high and value < math.inf

    return test, words


def _or_none(rule: Rule) -> Rule:
    test, words = rule
    return (lambda value: value is None or test(value)), f"{words}, or null where there is none"


def _is_memory(value: Any) -> bool:
    return isinstance(value, Mapping) and all(_COUNT[0](value.get(part)) for part in MEMORY_PARTS)


def _is_percents(value: Any) -> bool:
    items = value if isinstance(value, list | tuple) else ()
    return len(items) > 0 and all(item is None or _PERCENT[0](item) for item in items)


def _are_tests(value: Any) -> bool:
    pairs = value if isinstance(value, list) else [None]
    return all(
        isinstance(pair, list | tuple) and len(pair) == 2 and _COUNT[0](pair[0]) and _PERCENT[0](pair[1])
        for pair in pairs
    )


MEMORY_PARTS = ("samples", "statistics", "weights")

_TEXT: Rule = (lambda value: isinstance(value, str) and bool(value.strip()), "a text that is not empty")
_MAPPING: Rule = (
    lambda value: isinstance(value, Mapping) and all(isinstance(key, str) for key in value),
    "an object with texts as keys",
)
_COUNT = _number(0, math.inf, "a whole number of at least 0", whole=True)
_POSITIVE = _number(1, math.inf, "a whole number of at least 1", whole=True)
_PERCENT = _number(0, 100, "a percentage from 0 to 100")
_AMOUNT = _number(0, math.inf, "a finite number of at least 0")
_DROP = _number(-100, 100, "percentage points from -100 to 100")
_PERCENTS = (_is_percents, "a list of percentages from 0 to 100, null where there are no test images")
_TESTS = (_are_tests, "a list of pairs: samples so far, and a percentage from 0 to 100")
_TEXTS: Rule = (
    lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
    "a list of texts",
)
_MEMORY = (_is_memory, f"an object with the bytes of {', '.join(MEMORY_PARTS)}")

#: What tells one run from another; `key` makes a key of them.
IDENTITY: dict[str, Rule] = {
    **dict.fromkeys(("suite", "method", "dataset", "order", "recipe"), _TEXT),
    "settings": _MAPPING,
    "seed": _COUNT,
    "phases": _POSITIVE,
}
REQUIRED: dict[str, dict[str, Rule]] = {
    "environment": {
        **dict.fromkeys(("acil", "python"), _TEXT),
        **dict.fromkeys(("packages", "device", "threads"), _MAPPING),
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
        **dict.fromkeys(("dataset", "order", "recipe", "candidate", "identity"), _TEXT),
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
#: Of any kind of record that has them.
OPTIONAL: dict[str, Rule] = {
    **dict.fromkeys(("joint_difference", "condition", "gamma_relative"), _or_none(_AMOUNT)),
    "memory": _MEMORY,
    "seconds": _AMOUNT,
    **dict.fromkeys(("accuracy_many", "accuracy_medium", "accuracy_few"), _or_none(_PERCENT)),
    "accuracy_by_class": _PERCENTS,
    "tests": _TESTS,
    "anytime_accuracy": _or_none(_PERCENT),
    "never_shown": _TEXTS,
    "job": _TEXT,
    "ended": _AMOUNT,  # seconds since 1970
}


def check_record(record: Mapping[str, Any]) -> None:
    """Raise unless a record has everything that its kind needs, in the right ranges.

    Keys that the schema does not know are let through: records may carry more than reports read.

    Examples
    --------
    >>> check_record({"kind": "phase"})
    Traceback (most recent call last):
    acil.errors.InputError: This phase record lacks suite, which must be a text that is not empty.
    """
    if not isinstance(record, Mapping):
        raise InputError(f"A record must be an object. Got {reprlib.repr(record)}.")
    kind = record.get("kind")
    if not isinstance(kind, str) or kind not in REQUIRED:
        raise InputError(
            f"A record's kind must be one of {', '.join(REQUIRED)}. Got {reprlib.repr(kind)}."
        )
    for name, (test, words) in {**REQUIRED[kind], **OPTIONAL}.items():
        if name not in record:
            if name in REQUIRED[kind]:
                raise InputError(f"This {kind} record lacks {name}, which must be {words}.")
        elif not test(record[name]):
            got = reprlib.repr(record[name])
            raise InputError(f"{name} of this {kind} record must be {words}. Got {got}.")
    if kind != "phase":
        return
    phase, phases, origins = record["phase"], record["phases"], len(record["accuracy_by_origin"])
    if phase > phases:
        raise InputError(f"phase of a phase record must be at most phases, {phases}. Got {phase}.")
    if origins > phase + 1:
        raise InputError(
            f"accuracy_by_origin after phase {phase} must have at most {phase + 1} entries, one for "
            f"each phase so far. Got {origins}."
        )
