"""Reading the data in a pickle without running what it asks for.

A pickle is a program for a small stack machine, and two of its instructions call any function that the
file names. Here the instructions are walked one by one; what they may build is a closed list (dicts,
lists, tuples, texts, bytes, whole numbers, truth values, None and uint8 arrays), and the names of the
few functions that a NumPy array needs are symbols to us: nothing is looked up, imported or called.
"""

from __future__ import annotations

import math
import mmap
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acil.errors import InputError

#: The functions of a pickled array, by the names under which versions of NumPy write them.
_SYMBOLS = {
    "numpy.core.multiarray _reconstruct": "reconstruct",
    "numpy._core.multiarray _reconstruct": "reconstruct",
    "numpy ndarray": "ndarray",
    "numpy dtype": "dtype",
    # How Python 3 writes bytes for readers of protocol 2
    "_codecs encode": "encode",
    "__builtin__ bytes": "bytes",
}
_UINT8_NAMES = ("u1", "|u1", "uint8")
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_VALUES = (
    *("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BINSTRING", "SHORT_BINSTRING"),
)
_LEAVES = (int, bool, str, bytes, type(None), np.ndarray)
_PUT = ("BINPUT", "LONG_BINPUT")
_GET = ("BINGET", "LONG_BINGET")
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def read_pickle(path: Path) -> Any:
    """Return the data in a pickle, made only of harmless types.

    Parameters
    ----------
    path : Path
        A pickle of protocol 2 or newer. Byte strings of Python 2 become text, byte by byte (Latin-1).

    Raises
    ------
    InputError
        If the file asks for anything else than data, or is damaged.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _Machine().run(content)
    except _RefusedError as error:
        raise InputError(f"{path} was not read: {error} No code in it was run.") from None
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror or error}.") from error
    # What the walker raises on bytes that are no pickle, and an empty file, which cannot be mapped
    except (ValueError, LookupError, TypeError, OverflowError, MemoryError, RecursionError) as error:
        raise InputError(
            f"{path} is damaged or not a pickle ({error or type(error).__name__}). Fetch it again."
        ) from error


class _RefusedError(Exception):
    """The pickle asks for something that data does not need."""


class _Mark:
    """Where the items of a list, dict or tuple begin on the stack."""


@dataclass(frozen=True)
class _Symbol:
    """The name of a known function, or the data type it would have made; never the thing itself."""

    name: str


class _Unfilled:
    """An array whose contents have not come yet."""


class _Machine:
    """The stack and the memory of a pickle, without the power to call."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, content: Any) -> Any:
        """Walk all instructions and return what is left on the stack."""
        for opcode, argument, position in pickletools.genops(content):
            if opcode.name == "STOP":
                (result,) = self.stack
                return _plain(result)
            if not self._step(opcode.name, argument):
                raise _RefusedError(f"it has the instruction {opcode.name} at byte {position}.")
        raise ValueError("no end")

    def _step(self, name: str, argument: Any) -> bool:
        """Do one instruction; tell whether it is one that data may need."""
        stack = self.stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _PUT:
            self.memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif name in _GET:
            stack.append(self.memo[argument])
        elif name == "MARK":
            stack.append(_Mark)
        elif name in _TUPLES:
            stack.append(tuple(self._pop(_TUPLES[name])))
        elif name == "TUPLE":
            stack.append(tuple(self._pop_to_mark()))
        elif name in ("APPEND", "APPENDS", "SETITEM", "SETITEMS"):
            self._extend(name)
        elif name == "GLOBAL":
            stack.append(_symbol(argument))
        elif name == "STACK_GLOBAL":
            stack.append(_symbol(" ".join(self._pop(2))))
        elif name == "REDUCE":
            stack.append(_reduce(*self._pop(2)))
        elif name == "BUILD":
            self._build(*self._pop(2))
        else:
            return name in ("PROTO", "FRAME")
        return True

    def _pop(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise ValueError("empty stack")
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def _pop_to_mark(self) -> list[Any]:
        start = max(i for i, item in enumerate(self.stack) if item is _Mark)
        items = self._pop(len(self.stack) - start)
        return items[1:]

    def _extend(self, name: str) -> None:
        items = self._pop_to_mark() if name.endswith("S") else self._pop(2 if name == "SETITEM" else 1)
        target = self.stack[-1]
        if name.startswith("APPEND") and type(target) is list:
            target.extend(items)
        elif name.startswith("SETITEM") and type(target) is dict:
            pairs = list(zip(items[::2], items[1::2], strict=True))
            # Not only because others are unusual: hashing deeply nested tuples can crash Python.
            if any(type(key) not in (str, bytes, int) for key, _ in pairs):
                raise _RefusedError("it has a dict whose keys are neither texts nor whole numbers.")
            target.update(pairs)
        else:
            raise ValueError(f"{name} on {type(target).__name__}")

    def _build(self, target: Any, state: Any) -> None:
        if target == _Symbol("uint8"):
            # Byte order and flags, which mean nothing for single bytes
            self.stack.append(target)
            return
        if not isinstance(target, _Unfilled):
            raise _RefusedError(f"it sets the state of {_shown(target)}.")
        array = _array(state)
        self.stack.append(array)
        # NumPy fills the array in place; ours is a new object, so what refers to it must follow.
        for key, value in self.memo.items():
            if value is target:
                self.memo[key] = array


def _symbol(name: str) -> _Symbol:
    if name not in _SYMBOLS:
        raise _RefusedError(f"it asks for {name.replace(' ', '.')!r}, which data does not need.")
    return _Symbol(_SYMBOLS[name])


def _reduce(function: Any, arguments: Any) -> Any:
    """Return what calling one of the known functions would, without calling it."""
    if isinstance(function, _Symbol) and isinstance(arguments, tuple):
        if function.name == "reconstruct" and arguments[:1] == (_Symbol("ndarray"),):
            return _Unfilled()
        if function.name == "dtype" and arguments and arguments[0] in _UINT8_NAMES:
            return _Symbol("uint8")
        if function.name == "dtype":
            raise _RefusedError(f"it has an array of type {arguments[:1]}, but images are uint8.")
        if function.name == "encode" and arguments[1:] == ("latin1",) and type(arguments[0]) is str:
            return arguments[0].encode("latin-1")
        if function.name == "bytes" and arguments == ():
            return b""
    raise _RefusedError(f"it calls {_shown(function)}.")


def _array(state: Any) -> np.ndarray:
    _, shape, kind, fortran, raw = state
    if kind != _Symbol("uint8"):
        raise _RefusedError(f"it has an array of {_shown(kind)}, but images are uint8.")
    raw = raw.encode("latin-1") if isinstance(raw, str) else raw
    if type(raw) is not bytes or math.prod(shape) != len(raw):
        raise ValueError(f"an array of shape {shape} has {len(raw):,} bytes")
    return np.frombuffer(raw, dtype=np.uint8).reshape(shape, order="F" if fortran else "C")


def _plain(result: Any) -> Any:
    """Return the result if nothing in it is half-built; no recursion, for it may be nested deeply."""
    waiting, seen = [result], set()
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if type(item) is dict:
            waiting += item.values()
        elif type(item) in (list, tuple):
            waiting += item
        elif type(item) not in _LEAVES:
            raise ValueError(f"it holds {_shown(item)} where data should be")
    return result


def _shown(value: Any) -> str:
    return value.name if isinstance(value, _Symbol) else type(value).__name__
