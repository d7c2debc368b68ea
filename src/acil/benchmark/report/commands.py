"""The commands that give the rows of a table, put together again from the records."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from acil.benchmark.report.bases import SIZE
from acil.benchmark.report.rows import Comparison, Row
from acil.benchmark.suites import MEMORY_RULE
from acil.training.recipes import RECIPES

#: Settings with a flag of their own; all others are given with --set.
_FLAGS = ("expansion_size", "gamma", "solver", "dtype")
#: Settings that say what came out or follow from others.
_FOLLOWING = ("base", "classes", "taps", "backbone", "data.identity", "data.skipped")
#: What each suite varies by itself.
_VARIED = {
    "ablation": ("expansion_size", "gamma"),
    "width": ("expansion_size",),
    "memory": ("expansion_size", MEMORY_RULE),
}


def commands(comparison: Comparison, suite: str) -> list[str]:
    """Return the commands, one for all rows that differ in nothing but the method.

    Parameters
    ----------
    comparison : Comparison
    suite : str
        As the report has it: rows of ``main`` may come from ``compare``, which runs the same.
    """
    grouped: dict[tuple[str, ...], list[Row]] = {}
    for row in comparison.rows:
        grouped.setdefault(tuple(_settings(comparison, row, suite)), []).append(row)
    return [_command(comparison, rows, suite, settings) for settings, rows in grouped.items()]


def seconds_taken(comparison: Comparison) -> float | None:
    """Return the time of all rows and seeds; of several K that one pass may serve, the longest.

    Parameters
    ----------
    comparison : Comparison
    """
    longest: dict[tuple[int, int], float] = {}
    for _, row, cell in comparison.cells():
        for run in cell.tried:
            name = (id(row), run.identity["seed"])
            took = sum(record["seconds"] for record in run.phases)
            longest[name] = max(longest.get(name, 0.0), took)
    total = sum(longest.values())
    return total if total > 0 else None


def _command(comparison: Comparison, rows: list[Row], suite: str, settings: tuple[str, ...]) -> str:
    seeds = sorted({run.identity["seed"] for row in rows for c in row.cells.values() for run in c.tried})
    parts = ["acil", "bench", "run", "--dataset", comparison.dataset]
    parts += ["--method", ",".join(dict.fromkeys(row.method for row in rows))]
    parts += ["--recipe", comparison.recipe, "--order", comparison.order]
    parts += ["--phases", ",".join(map(str, sorted({k for row in rows for k in row.cells})))]
    parts += ["--seeds", ",".join(map(str, seeds))]
    if suite != "main" and _is_of(rows, suite):
        parts += ["--suite", suite, *_steps(rows, suite)]
    return "$ " + " ".join(map(shlex.quote, [*parts, *settings]))


def _steps(rows: list[Row], suite: str) -> list[str]:
    """Return the widths and numbers of exemplars that rows of a suite vary."""
    if suite not in ("width", "memory"):
        return []
    rules = [str(row.settings[MEMORY_RULE]) for row in rows if MEMORY_RULE in row.settings]
    found: dict[str, set[Any]] = {
        "widths": {
            row.settings.get("expansion_size") for row in rows if MEMORY_RULE not in row.settings
        },
        "budgets": {int(rule.split()[0]) for rule in rules if rule.split()[0].isdecimal()},
    }
    lists = {name: sorted(v for v in values if isinstance(v, int)) for name, values in found.items()}
    return [p for n, values in lists.items() if values for p in ("--set", f"settings.{n}={values}")]


def _settings(comparison: Comparison, row: Row, suite: str) -> list[str]:
    """Return the flags of what differs from the recipe, and of classes that are not split in half."""
    flags = []
    # Of sizes in one table, each row has its own.
    base, classes = row.settings.get(SIZE, comparison.base_classes), comparison.classes
    if base is not None and classes is not None and base != classes // 2:
        flags += ["--base", str(base)]
    network = str(row.settings.get("backbone", ""))
    files = {_network(run.identity["settings"]) for cell in row.cells.values() for run in cell.tried}
    if ".safetensors" in network or any(files):
        flags += ["--backbone", next(iter(files)) if len(files) == 1 else "FILE"]
    varied = _VARIED.get(suite, ()) if _is_of([row], suite) else ()
    for name, value in row.settings.items():
        if name in _FOLLOWING or name in varied or _is_default(comparison.recipe, name, value):
            continue
        if name in _FLAGS:
            flags += [f"--{name.replace('_', '-')}", _written(value)]
        else:
            dotted = name if name.startswith(("recipe.", "data.")) else f"settings.{name}"
            flags += ["--set", f"{dotted}={_written(value)}"]
    return flags


def _is_of(rows: list[Row], suite: str) -> bool:
    """Say whether rows were run for a suite; the page about memory shows others, too."""
    return all(
        run.identity["suite"] == suite
        for row in rows
        for cell in row.cells.values()
        for run in cell.tried
    )


def _network(settings: Mapping[str, Any]) -> str:
    name = str(settings.get("backbone", ""))
    return name.partition("@")[0].rpartition("/")[2] if ".safetensors" in name else ""


def _is_default(recipe: str, name: str, value: Any) -> bool:
    known = RECIPES.get(recipe)
    if name == "solver":
        return bool(value == "gram")
    if known is None or name not in ("expansion_size", "gamma", "dtype"):
        return False
    return bool(getattr(known, name) == value)


def _written(value: Any) -> str:
    return value if isinstance(value, str) else "none" if value is None else json.dumps(value)
