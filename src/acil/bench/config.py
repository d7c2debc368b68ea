"""The settings of a run: one dataclass, read from flags or TOML, written out complete."""

from __future__ import annotations

import dataclasses
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_type_hints

from acil.bench.orders import canonical_order
from acil.bench.plan import defaults
from acil.bench.training.settings import convert, parse_value
from acil.errors import InputError

#: Method settings that have flags of their own.
METHOD_SETTINGS = ("expansion_size", "gamma", "solver", "dtype")


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides what a run computes, and where it finds things."""

    #: Registered name, or ``imagefolder:DIR`` or ``features:FILE``.
    dataset: str = "digits"
    #: Which samples come when, see `acil.bench.protocols`.
    protocol: Literal["class-incremental", "long-tailed", "si-blurry"] = "class-incremental"
    #: In the suite ``compare`` by default all that are registered.
    methods: tuple[str, ...] = ("acil",)
    #: Numbers K of incremental phases.
    phases: tuple[int, ...] = (5,)
    seeds: tuple[int, ...] = (0, 1, 2)
    #: None is the data set's own.
    recipe: str | None = None
    #: ``natural``, ``seed1993``, ``podnet1`` … or ``seed:7``, the canonical name of a seed.
    order: str = "natural"
    #: Classes of the base phase; None is the data set's default, mostly half of them.
    base: int | None = None
    #: Use only the first classes of the order.
    classes: int | None = None
    #: ``main``, ``compare``, ``table1``, ``ablation``, ``width`` or ``memory``.
    suite: str = "main"
    #: A trained network instead of base training: a file, timm:NAME, onnx:FILE, package.module:Class.
    backbone: str | None = None
    #: Method settings beyond the recipe: ``expansion_size``, ``gamma``, ``solver``, ``dtype`` …
    settings: dict[str, Any] = field(default_factory=dict)
    #: Changes of the recipe by dotted key, such as ``training.epochs``.
    recipe_changes: dict[str, Any] = field(default_factory=dict)
    #: Options of the data set, such as ``size`` of a folder of images.
    data: dict[str, Any] = field(default_factory=dict)
    device: str = "auto"
    #: Folder of the data; None is the environment variable ACIL_DATA.
    root: str | None = None
    #: Leave out images that cannot be read, instead of stopping.
    skip_bad: bool = False
    #: Compare the final scores with joint learning, where a method can.
    joint_check: bool = True
    #: Processes that work at the same time.
    jobs: int = 1


#: Flags that are not called what they give.
_FLAGS = {"method": "methods", "memory": "settings.memory_rule"}
#: Fields that say where and how, not what: a resumed run may change them.
PLACES = ("device", "root", "skip_bad", "jobs")
#: Fields that may be paths, or left to the data set: what counts is what followed from them.
_RESOLVED = ("dataset", "backbone", "base", "recipe")
#: Options of data sets that say where, not what.
_DATA_PLACES = ("cache", "workers")
#: Dotted groups → the field that holds them.
_GROUPS = {"settings": "settings", "recipe": "recipe_changes", "data": "data"}
#: Fields that only add work: a resumed run may have more of them.
LISTS = ("methods", "phases", "seeds")


def make_config(values: Mapping[str, Any]) -> RunConfig:
    """Return the settings that a mapping describes, checked field by field.

    Beside the fields, ``settings.NAME``, ``recipe.KEY`` and ``data.NAME`` set one method setting, change
    the recipe or set an option of the data set. Lists may be comma-separated text. What a file says
    under ``resolved`` is for readers.
    """
    values = {**defaults(str(values.get("suite")), values.get("dataset")), **values}
    known = {item.name for item in dataclasses.fields(RunConfig)}
    result: dict[str, Any] = {name: {} for name in _GROUPS.values()}
    for flag, value in values.items():
        name = _FLAGS.get(flag, flag)
        group, dot, rest = name.partition(".")
        if dot and rest and group in _GROUPS:
            result[_GROUPS[group]][rest] = parse_value(value)
        elif name in METHOD_SETTINGS:
            result["settings"][name] = parse_value(value)
        elif name in (*_GROUPS.values(), "resolved"):
            if not isinstance(value, Mapping):
                raise InputError(f"{name} must be a table of values, got {value!r}.")
            if name != "resolved":
                result[name].update({key: parse_value(item) for key, item in _flat(value)})
        elif name in known:
            result[name] = _converted(name, value)
        else:
            raise InputError(
                f"There is no setting {name!r}. Known: {', '.join(sorted(known))}, "
                f"{', '.join(METHOD_SETTINGS)}, settings.NAME, recipe.KEY and data.NAME."
            )
    if result.get("suite") == "compare" and "methods" not in result:
        from acil.bench.methods import available

        result["methods"] = available()
    config = RunConfig(**result)
    for name in LISTS:
        items = getattr(config, name)
        if not items or len(set(items)) != len(items):
            raise InputError(f"{name} must name at least one item, each once, got {items!r}.")
    for name, least, count in (
        ("phases", 1, min(config.phases)),
        ("jobs", 1, config.jobs),
        ("seeds", 0, min(config.seeds)),
    ):
        if count < least:
            raise InputError(f"{name} must be at least {least}, got {count}.")
    if max(config.seeds) >= 2**63:
        raise InputError(f"seeds must be below 2**63, got {max(config.seeds)}.")
    return config


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of tables in tables under dotted keys."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def read_config(path: Path) -> dict[str, Any]:
    """Return the settings in a TOML file, as a mapping for `make_config`."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}.") from error


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


def check_resumable(
    stored: RunConfig, asked: RunConfig, before: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
    """Raise unless a run with stored settings can be gone on with by those asked for.

    ``before`` and ``now`` are what followed from them: data set and backbone are compared by what is
    behind their paths, and a base or recipe that is the data set's own may be named.
    """
    for name in (item.name for item in dataclasses.fields(RunConfig)):
        earlier, later = getattr(stored, name), getattr(asked, name)
        if name == "data":
            earlier, later = data_options(stored), data_options(asked)
        elif name in _RESOLVED and name in before and name in now:
            earlier, later = before[name], now[name]
            if name == "recipe":  # what is changed of it is a field of its own
                earlier, later = earlier["name"], later["name"]
        if name not in (*PLACES, *LISTS) and earlier != later:
            raise InputError(
                f"The run was started with {name} = {earlier!r}, now it is {later!r}. Resume with the "
                "same settings, or write into another directory."
            )


def _converted(name: str, value: Any) -> Any:
    if name == "order":
        return canonical_order(value)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    elif name in LISTS and not isinstance(value, str | list | tuple):
        value = [value]
    return convert(value, get_type_hints(RunConfig)[name], name)


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
