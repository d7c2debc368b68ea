"""Frozen dataclasses of settings, to and from text, JSON and dotted keys."""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from acil.errors import InputError

T = TypeVar("T")

_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_NAMES: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_NAMES[type(None)] = "none"
#: What a number may have to be.
_RULES: dict[str, Callable[[float], bool]] = {
    "at least 0": lambda number: 0 <= number < math.inf,
    "at least 1": lambda number: 1 <= number < math.inf,
    "positive": lambda number: 0 < number < math.inf,
    "from 0 to 1": lambda number: 0 <= number <= 1,
    "above 0 and at most 1": lambda number: 0 < number <= 1,
    "above 0 and below 1": lambda number: 0 < number < 1,
    "at least 0 and below 1": lambda number: 0 <= number < 1,
    "from 1 to 6": lambda number: 1 <= number <= 6,
    "1, 2 or 4": lambda number: number in (1, 2, 4),
}


@dataclass(frozen=True)
class Settings:
    """Settings whose numbers keep to the rule beside their type, such as Annotated[int, "at least 0"].

    A rule is a key of ``_RULES``. Of a tuple, each entry must keep to it; None need not. A value of a
    ``Literal`` must be one of those.

    Examples
    --------
    >>> from acil.bench.training.settings import Training
    >>> Training(epochs=-1)
    Traceback (most recent call last):
    acil.errors.InputError: Training setting epochs must be at least 0. Got -1 instead.
    """

    #: Stands before the name of a setting in messages.
    where: ClassVar[str] = ""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self), include_extras=True)
        for name in (field.name for field in dataclasses.fields(self)):
            value, kind = getattr(self, name), hints[name]
            rule, holds = "", True
            if hasattr(kind, "__metadata__"):
                (rule,) = kind.__metadata__
                parts = value if isinstance(value, tuple) else (value,)
                holds = all(_RULES[rule](part) for part in parts if isinstance(part, int | float))
            elif get_origin(kind) is Literal:
                rule, holds = f"one of {', '.join(map(str, get_args(kind)))}", value in get_args(kind)
            if not holds:
                raise InputError(f"{self.where}{name} must be {rule}. Got {value!r} instead.")


def to_values(settings: Any) -> dict[str, Any]:
    """Return a dataclass as JSON has it: dictionaries, lists, numbers, text."""
    values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(settings)))
    return values


def read_settings(kind: type[T], values: Mapping[str, Any], called: Callable[[str], str] = str) -> T:
    """Return a dataclass with defaults, filled from what the user set; text is read as the field's type.

    The user's name of a field is what ``called`` makes of it. Names that are not of its fields are left
    alone, since they may belong to another method of a run.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Settings:
    ...     temperature: float = 2.0
    >>> read_settings(Settings, {"temperature": "3", "gamma": 0.1})
    Settings(temperature=3.0)
    """
    hints = get_type_hints(kind)
    names = {field.name: called(field.name) for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    given = {field: name for field, name in names.items() if name in values}
    return kind(**{field: convert(values[name], hints[field], name) for field, name in given.items()})


def changed(settings: T, changes: Mapping[str, Any]) -> T:
    """Return a copy with some values replaced, named by dotted keys: ``{"training.epochs": "3"}``.

    Settings may hold other dataclasses and mappings, which take any key. Text is read as the field's
    type, lists by commas.

    Examples
    --------
    >>> from acil.bench.training.recipes import recipe
    >>> short = changed(recipe("paper"), {"training.epochs": "3", "features.mirror": "true"})
    >>> short.training.epochs, short.features.mirror
    (3, True)
    """
    known = sorted(keys(settings))
    for key in changes:
        if not {key, f"{key}.KEY", f"{key.rpartition('.')[0]}.KEY"} & set(known):
            raise InputError(f"There is no setting {key!r}. Known: {', '.join(known)}.")
    made: T = _changed(settings, changes, "")
    return made


def _changed(settings: Any, changes: Mapping[str, Any], where: str) -> Any:
    hints, new = get_type_hints(type(settings)), {}
    for name in dict.fromkeys(key.partition(".")[0] for key in changes):
        value = getattr(settings, name)
        if name in changes:
            value = convert(changes[name], hints[name], where + name)
        inner = {key[len(name) + 1 :]: v for key, v in changes.items() if key.startswith(f"{name}.")}
        if inner and isinstance(value, Mapping):
            value = {**value, **{key: parse_value(entry) for key, entry in inner.items()}}
        elif inner:
            value = _changed(value, inner, f"{where}{name}.")
        new[name] = value
    return dataclasses.replace(settings, **new)


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
    if origin in (Union, types.UnionType):
        return _convert_union(value, arguments, where)
    if origin is Literal:
        if value in arguments:
            return value
        raise _mismatch(where, f"one of {', '.join(map(str, arguments))}", value)
    if origin is tuple:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        if not isinstance(value, list | tuple):
            raise _mismatch(where, "a list", value)
        return tuple(convert(part, arguments[0], where) for part in value)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise _mismatch(where, "a table of values", value)
        return {str(name): parse_value(entry) for name, entry in value.items()}
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
    names = [part for kind in kinds for part in (get_args(kind) or [kind])]
    raise _mismatch(where, " or ".join(_NAMES.get(kind, str(kind)) for kind in names), value)


def _convert_scalar(value: Any, kind: Any, where: str) -> Any:
    if kind is bool and isinstance(value, str) and value.lower() in _WORDS:
        return _WORDS[value.lower()]
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


def parse_value(value: Any) -> Any:
    """Return the number, truth value, list or None that a text stands for, else the text."""
    if str(value).lower() in ("none", "null"):
        return None
    try:
        return json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError:
        return value


def _mismatch(where: str, expected: str, value: Any) -> InputError:
    return InputError(f"Setting {where} must be {expected}. Got {value!r} instead.")
