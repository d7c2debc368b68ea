"""Frozen dataclasses of settings, to and from text, JSON and dotted keys."""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from acil.errors import InputError

T = TypeVar("T")

_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def to_values(settings: Any) -> dict[str, Any]:
    """Return a dataclass as JSON has it: dictionaries, lists, numbers, text."""
    return {field.name: _plain(getattr(settings, field.name)) for field in dataclasses.fields(settings)}


def from_values(kind: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """Return the dataclass that a mapping from :func:`to_values` describes.

    Parameters
    ----------
    kind : type
        The dataclass.
    values : Mapping
        Fields with a default may be missing.
    where : str
        What stands before the names in messages, such as ``"training."``.
    """
    if not isinstance(values, Mapping):
        raise InputError(
            f"{where.rstrip('.') or kind.__name__} must be a table of values, got {values!r}."
        )
    hints = get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for name in values:
        if name not in names:
            raise InputError(f"There is no setting {where}{name}. Known: {', '.join(names)}.")
    given = {name: convert(value, hints[name], where + name) for name, value in values.items()}
    try:
        return kind(**given)
    except TypeError as error:
        raise InputError(f"{where.rstrip('.') or kind.__name__} is not complete: {error}.") from None


def changed(settings: T, changes: Mapping[str, Any]) -> T:
    """Return a copy with some values replaced, named by dotted keys.

    Parameters
    ----------
    settings : dataclass
        It may hold other dataclasses and mappings; a mapping takes any key.
    changes : Mapping
        Such as ``{"training.epochs": "3"}``; text is read as the field's type.
    """
    values = to_values(settings)
    for key, value in changes.items():
        place: Any = values
        owner: Any = settings
        *path, last = key.split(".")
        for name in path:
            owner = getattr(owner, name, None) if dataclasses.is_dataclass(owner) else None
            place = place.get(name) if isinstance(place, dict) else None
        known = isinstance(owner, Mapping) or (dataclasses.is_dataclass(owner) and last in place)
        if not known or dataclasses.is_dataclass(getattr(owner, last, None)):
            raise InputError(f"There is no setting {key!r}. Known: {', '.join(sorted(keys(settings)))}.")
        place[last] = value
    return from_values(type(settings), values)


def keys(settings: Any, where: str = "") -> Iterator[str]:
    """Yield every dotted key that :func:`changed` takes; ``KEY`` stands for any key of a mapping."""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield from keys(value, f"{where}{field.name}.")
        else:
            yield f"{where}{field.name}" + (".KEY" if isinstance(value, Mapping) else "")


def convert(value: Any, kind: Any, where: str) -> Any:
    """Return a value, which may be text, as a field's type, or say what was expected."""
    origin, arguments = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        return value if isinstance(value, kind) else from_values(kind, value, f"{where}.")  # type: ignore[arg-type]
    if origin in (Union, types.UnionType):
        return _convert_union(value, arguments, where)
    if origin is Literal:
        if value in arguments:
            return value
        raise _mismatch(where, f"one of {', '.join(map(str, arguments))}", value)
    if origin is tuple:
        parts = (
            [part.strip() for part in value.split(",") if part.strip()]
            if isinstance(value, str)
            else value
        )
        if not isinstance(parts, list | tuple):
            raise _mismatch(where, "a list", value)
        return tuple(convert(part, arguments[0], where) for part in parts)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise _mismatch(where, "a table of values", value)
        return {str(name): _guess(entry) for name, entry in value.items()}
    return _convert_scalar(value, kind, where)


def _convert_union(value: Any, kinds: tuple[Any, ...], where: str) -> Any:
    if type(None) in kinds and (value is None or value in ("none", "None", "")):
        return None
    for kind in kinds:
        if kind is not type(None):
            try:
                return convert(value, kind, where)
            except InputError:
                continue
    names = [
        " or ".join(map(str, get_args(kind)))
        if get_origin(kind) is Literal
        else _NAMES.get(kind, "none")
        for kind in kinds
    ]
    raise _mismatch(where, " or ".join(names), value)


def _convert_scalar(value: Any, kind: Any, where: str) -> Any:
    if kind is bool and isinstance(value, str) and value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if kind is str and isinstance(value, str):
        return value
    if kind in (int, float) and isinstance(value, str):
        try:
            return kind(value)
        except ValueError:
            raise _mismatch(where, _NAMES[kind], value) from None
    if isinstance(value, bool) == (kind is bool):
        if isinstance(value, kind):
            return value
        if kind is float and isinstance(value, int):
            return float(value)
    raise _mismatch(where, _NAMES.get(kind, kind.__name__), value)


_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _guess(value: Any) -> Any:
    """Return what a text means as JSON, or the text itself."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError:
        return value


def _mismatch(where: str, expected: str, value: Any) -> InputError:
    return InputError(f"Setting {where} must be {expected}. Got {value!r} instead.")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_values(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, tuple | list) else value
