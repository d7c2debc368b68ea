"""Records of a run: one JSON object a line, only ever appended, so that a killed run loses nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from acil.benchmark.orders import canonical_order
from acil.benchmark.schema import IDENTITY, check_record, encode
from acil.errors import InputError
from acil.modelfile.writing import cannot_write, locked

#: Name of the file in a run directory.
FILE_NAME = "records.jsonl"
_TAIL_BYTES = 1 << 16

Record = dict[str, Any]


class Records:
    """The records of one run, in a file that several processes may append to.

    Parameters
    ----------
    path : str or path-like
        The file; it need not exist yet, its directory must.

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
        """Add one record, whole and on the disk when this returns.

        A half-written last line, which a killed process leaves behind, is removed first.

        Parameters
        ----------
        record : Mapping
            See `acil.benchmark.schema`. Unknown keys are kept.

        Raises
        ------
        InputError
            If the record is not as the schema wants it, or the file cannot be written; the file is
            as it was.
        """
        check_record(record)
        line = encode(record)
        try:
            # Created before it is locked: a lock on a file that is not there would be one on its
            # directory, which does not keep away those who come when the file is there.
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        try:
            with locked(self.path):
                self._repair(descriptor)
                if os.fstat(descriptor).st_size == 0:
                    _flush_name(self.path)
                _write_whole(descriptor, line)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        finally:
            os.close(descriptor)

    def read(self) -> list[Record]:
        """Return all records in the order in which they were written; none if there is no file.

        A half-written last line is left out.

        Raises
        ------
        InputError
            If another line is damaged; the message has the file and the line.
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
        return _with_canonical_order(record)

    def _repair(self, descriptor: int) -> None:
        """Complete or cut off a last line without a newline; the caller has locked the file."""
        size = os.fstat(descriptor).st_size
        tail, start = b"", size
        while start > 0 and b"\n" not in tail:
            step = min(_TAIL_BYTES, start)
            start -= step
            tail = os.pread(descriptor, step, start) + tail
        tail = tail[tail.rfind(b"\n") + 1 :]
        if not tail:
            return
        if _is_whole(tail):
            _write_whole(descriptor, b"\n")
        else:
            os.ftruncate(descriptor, size - len(tail))


def key(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what identifies the run that a phase or summary record belongs to.

    Parameters
    ----------
    record : Mapping
        Written or still to be written: both give the same key.

    Returns
    -------
    tuple
        Suite, method, dataset, order, recipe, settings (as text), seed and phases.
    """
    return tuple(canonical(record[name]) if name == "settings" else record[name] for name in IDENTITY)


def latest(records: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return records without those that a later one replaces: same kind, same run, same phase.

    Parameters
    ----------
    records : iterable of Mapping
        In the order in which they were written. Environment records are all kept.
    """
    kept: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for position, record in enumerate(records):
        if record["kind"] == "environment":
            kept["environment", position] = record
        else:
            name = (record["kind"], record.get("phase"), key(record))
            kept.pop(name, None)
            kept[name] = record
    return list(kept.values())


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


def _with_canonical_order(record: Record) -> Record:
    """Give the class order its one name: records of earlier versions have it as the user wrote it."""
    if "order" in record:
        # An order of a newer version, or of a user's own records, keeps its name.
        with suppress(InputError):
            record["order"] = canonical_order(record["order"])
    return record


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


def _flush_name(path: Path) -> None:
    """Make the name of a new file durable, where the file system can."""
    with suppress(OSError):
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
