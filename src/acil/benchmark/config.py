"""The settings of a run: one dataclass, read from flags or TOML, written out complete."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acil.benchmark.orders import canonical_order
from acil.benchmark.plan import DEFAULTS
from acil.errors import InputError

#: Method settings that have flags of their own.
METHOD_SETTINGS = ("expansion_size", "gamma", "solver", "dtype")


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides what a run computes, and where it finds things.

    Attributes
    ----------
    dataset : str
        Registered name, or ``imagefolder:DIR`` or ``features:FILE``.
    methods : tuple of str
        In the suite ``compare`` by default all that are registered.
    phases : tuple of int
        Numbers K of incremental phases.
    seeds : tuple of int
    recipe : str or None
        None is the data set's own.
    order : str
        ``natural``, ``seed1993``, ``podnet1`` … or ``seed:7``, the canonical name of a seed.
    base : int or None
        Classes of the base phase; None is half of them.
    classes : int or None
        Use only the first classes of the order.
    suite : str
        ``main``, ``compare``, ``table1``, ``ablation``, ``width`` or ``memory``.
    backbone : str or None
        File of a trained network, instead of base training.
    settings : dict
        Method settings beyond the recipe: ``expansion_size``, ``gamma``, ``solver``, ``dtype`` …
    recipe_changes : dict
        Changes of the recipe by dotted key, such as ``training.epochs``.
    data : dict
        Options of the data set, such as ``size`` of a folder of images.
    device : str
    root : str or None
        Folder of the data; None is the environment variable ACIL_DATA.
    skip_bad : bool
        Leave out images that cannot be read, instead of stopping.
    joint_check : bool
        Compare the final scores with joint learning, where a method can.
    jobs : int
        Processes that work at the same time.
    """

    dataset: str = "digits"
    methods: tuple[str, ...] = ("acil",)
    phases: tuple[int, ...] = (5,)
    seeds: tuple[int, ...] = (0, 1, 2)
    recipe: str | None = None
    order: str = "natural"
    base: int | None = None
    classes: int | None = None
    suite: str = "main"
    backbone: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    recipe_changes: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    device: str = "auto"
    root: str | None = None
    skip_bad: bool = False
    joint_check: bool = True
    jobs: int = 1


#: Fields that say where and how, not what: a resumed run may change them.
PLACES = ("device", "root", "skip_bad", "jobs")
#: Fields that may be paths: what counts is what is there.
_CONTENTS = ("dataset", "backbone")
#: Options of data sets that say where, not what.
_DATA_PLACES = ("cache",)
#: Dotted groups → the field that holds them.
_GROUPS = {"settings": "settings", "recipe": "recipe_changes", "data": "data"}
#: Fields that only add work: a resumed run may have more of them.
LISTS = ("methods", "phases", "seeds")


def make_config(values: Mapping[str, Any]) -> RunConfig:
    """Return the settings that a mapping describes, checked field by field.

    Parameters
    ----------
    values : Mapping
        Field names; ``settings.NAME``, ``recipe.KEY`` and ``data.NAME`` set one method setting, change
        the recipe or set an option of the data set. Lists may be comma-separated text.
    """
    values = {**DEFAULTS.get(str(values.get("suite")), {}), **values}
    known = {item.name: item for item in dataclasses.fields(RunConfig)}
    result: dict[str, Any] = {name: {} for name in _GROUPS.values()}
    for name, value in values.items():
        group, dot, rest = name.partition(".")
        if dot and rest and group in _GROUPS:
            result[_GROUPS[group]][rest] = parse_value(value)
        elif name in METHOD_SETTINGS:
            result["settings"][name] = parse_value(value)
        elif name in _GROUPS.values():
            result[name].update({key: parse_value(item) for key, item in _table(name, value).items()})
        elif name in known:
            result[name] = _converted(name, value)
        else:
            raise InputError(
                f"There is no setting {name!r}. Known: {', '.join([*known, *METHOD_SETTINGS])}, "
                "settings.NAME, recipe.KEY and data.NAME."
            )
    if result.get("suite") == "compare" and "methods" not in result:
        from acil.methods import available

        result["methods"] = available()
    config = RunConfig(**result)
    _check(config)
    return config


def read_config(path: Path) -> dict[str, Any]:
    """Return the settings in a TOML file, as a mapping for `make_config`."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}.") from error
    values.pop("resolved", None)
    return values


def data_options(config: RunConfig) -> dict[str, Any]:
    """Return the options of the data set that decide what the data are, not where they are kept."""
    return {name: value for name, value in config.data.items() if name not in _DATA_PLACES}


def to_toml(config: RunConfig, resolved: Mapping[str, Any]) -> str:
    """Return the complete settings as TOML; ``resolved`` (what followed from them) is for readers."""
    values = {k: v for k, v in dataclasses.asdict(config).items() if v is not None}
    tables = {name: values.pop(name) for name in _GROUPS.values()}
    lines = [f"{name} = {_toml(value)}" for name, value in values.items()]
    for name, table in {**tables, "resolved": dict(resolved)}.items():
        lines += _toml_table(name, table)
    return "\n".join(lines) + "\n"


def read_resolved(path: Path) -> dict[str, Any]:
    """Return what followed from the settings of a run that is there; nothing if it was not written."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8")).get("resolved", {})
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def check_resumable(
    stored: RunConfig,
    asked: RunConfig,
    before: Mapping[str, Any] | None = None,
    now: Mapping[str, Any] | None = None,
) -> None:
    """Raise unless a run with stored settings can be gone on with by those asked for.

    Parameters
    ----------
    stored, asked : RunConfig
    before, now : Mapping, optional
        What followed from them: data set and backbone are compared by what is behind their paths.
    """
    pairs = {item.name: _compared(item.name, stored, asked) for item in dataclasses.fields(RunConfig)}
    for name in _CONTENTS:
        if before and now and name in before and name in now:
            pairs[name] = before[name], now[name]
    for name, (earlier, later) in pairs.items():
        if name in PLACES or name in LISTS or earlier == later:
            continue
        raise InputError(
            f"The run was started with {name} = {earlier!r}, now it is {later!r}. Resume with the "
            "same settings, or write into another directory."
        )


def _compared(name: str, stored: RunConfig, asked: RunConfig) -> tuple[Any, Any]:
    if name == "data":
        return data_options(stored), data_options(asked)
    return getattr(stored, name), getattr(asked, name)


def parse_value(value: Any) -> Any:
    """Return the number, truth value, list or None that a text stands for, else the text."""
    if not isinstance(value, str):
        return value
    if value.lower() in ("none", "null"):
        return None
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


def _converted(name: str, value: Any) -> Any:
    if name in LISTS:
        parts = value.split(",") if isinstance(value, str) else value
        parts = parts if isinstance(parts, list | tuple) else [parts]
        if name == "methods":
            return tuple(str(part).strip() for part in parts if str(part).strip())
        try:
            return tuple(int(part) for part in parts)
        except ValueError as error:
            raise InputError(f"{name} must be whole numbers, got {value!r}.") from error
    if name in ("base", "classes", "jobs"):
        return None if value is None else _whole(name, value)
    if name in ("skip_bad", "joint_check"):
        return _truth(name, parse_value(value))
    if name == "order":
        return canonical_order(value)
    return value if value is None else str(value)


def _table(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{name} must be a table of values, got {value!r}.")
    return value


def _whole(name: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be a whole number, got {value!r}.") from error


def _truth(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{name} must be true or false, got {value!r}.")
    return value


def _check(config: RunConfig) -> None:
    for name in LISTS:
        items = getattr(config, name)
        if not items or len(set(items)) != len(items):
            raise InputError(f"{name} must name at least one item, each once, got {items!r}.")
    if min(config.phases) < 1:
        raise InputError(f"phases must be at least 1, got {min(config.phases)}.")
    if config.jobs < 1:
        raise InputError(f"jobs must be at least 1, got {config.jobs}.")
    if min(config.seeds) < 0:
        raise InputError(f"seeds must not be negative, got {min(config.seeds)}.")


def _toml_table(name: str, table: Mapping[str, Any]) -> list[str]:
    # TOML has no null: an option that is None is written as text, which `parse_value` reads back.
    optional = name in _GROUPS.values()
    plain = {k: "none" if v is None and optional else v for k, v in table.items()}
    plain = {k: v for k, v in plain.items() if not isinstance(v, Mapping) and v is not None}
    lines = ["", f"[{name}]", *(f"{_toml_key(k)} = {_toml(v)}" for k, v in plain.items())]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += _toml_table(f"{name}.{_toml_key(key)}", value)
    return lines


def _toml_key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() else json.dumps(key)


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    # TOML's strings, numbers and truth values are written like JSON's.
    return json.dumps(value, ensure_ascii=False)
