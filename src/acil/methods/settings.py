"""A method's own settings, picked from all that the user set for a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from acil.training.fields import from_values

T = TypeVar("T")


def read_settings(cls: type[T], values: Mapping[str, Any]) -> T:
    """Return a method's settings dataclass, filled from the settings of a run.

    Parameters
    ----------
    cls : type
        A frozen dataclass; every field has a default, and ``__post_init__`` may refuse a value with an
        `acil.errors.InputError`.
    values : Mapping
        What the user set, such as ``context.settings``. Names that are not fields of the class are left
        alone, since they may belong to another method of the same run; text is read as the field's type.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Settings:
    ...     temperature: float = 2.0
    >>> read_settings(Settings, {"temperature": "3", "gamma": 0.1})
    Settings(temperature=3.0)
    """
    names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    return from_values(cls, {name: value for name, value in values.items() if name in names})
