"""Rows of a report: runs averaged over seeds, and how they are named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

from acil.bench.published import PROTOCOLS, protocol_name

#: Settings with a short name; all others keep their own.
SHORT_NAMES = {"expansion_size": "d", "gamma": "γ"}


@dataclass(frozen=True)
class Stat:
    """Mean over seeds, and the standard deviation (n − 1) if there are several."""

    mean: float
    std: float | None


@dataclass(frozen=True)
class Run:
    """One method with its settings, on one seed and one K."""

    identity: Mapping[str, Any]
    phases: tuple[Mapping[str, Any], ...]
    summary: Mapping[str, Any] | None
    #: The record of the error that stopped it.
    failure: Mapping[str, Any] | None = None

    @property
    def protocol(self) -> str | None:
        """The protocol, if it is not the usual one."""
        protocol: str | None = self.identity["settings"].get("protocol")
        return protocol

    @property
    def classes(self) -> tuple[int | None, int | None]:
        """Return the base classes, and all classes of a finished run, if the records have them."""
        first = self.phases[0] if self.phases and self.phases[0]["phase"] == 0 else {}
        # A run with base 0 starts with its first increment: only its settings say so.
        base = self.identity["settings"].get("base", first.get("classes_seen"))
        return base, self.phases[-1]["classes_seen"] if self.phases and self.summary else None


@dataclass(frozen=True)
class Cell:
    """The runs of one row at one K, one per seed: finished ones and failed ones."""

    runs: tuple[Run, ...]
    failed: tuple[Run, ...] = ()

    @property
    def tried(self) -> tuple[Run, ...]:
        """Return all runs, finished or failed."""
        return (*self.runs, *self.failed)

    @property
    def has_phases(self) -> bool:
        """Say whether any phase was recorded."""
        return any(run.phases for run in self.runs)

    def over_seeds(self, name: str) -> Stat | None:
        """Return the mean of a number in the summaries."""
        return stat(run.summary.get(name) for run in self.runs if run.summary)

    def worst(self, name: str) -> float | None:
        """Return the largest value of a number in the summaries."""
        values = [run.summary.get(name) for run in self.runs if run.summary]
        return max((value for value in values if value is not None), default=None)

    def kept(self, *parts: str) -> int | None:
        """Return the bytes kept after the last phase; of each part, the most over seeds."""
        last = [run.phases[-1]["memory"] for run in self.runs if run.phases]
        return sum(max(memory[part] for memory in last) for part in parts) if last else None

    def peak(self) -> int | None:
        """Return the largest memory of the process, in bytes."""
        values = [record["peak_rss"] for run in self.runs for record in run.phases]
        return max((value for value in values if value is not None), default=None)

    def seconds(self, chosen: Callable[[int], bool]) -> Stat | None:
        """Return the seconds of all phases whose number is chosen."""
        times = [[r["seconds"] for r in run.phases if chosen(r["phase"])] for run in self.runs]
        return stat(sum(seconds) for seconds in times if seconds)

    def curve(self) -> list[tuple[int, Stat]]:
        """Return the classes seen after each phase, and the mean accuracy."""
        by_phase: dict[int, list[Mapping[str, Any]]] = {}
        for run in self.runs:
            for record in run.phases:
                by_phase.setdefault(record["phase"], []).append(record)
        return [
            (records[0]["classes_seen"], mean)
            for _, records in sorted(by_phase.items())
            if (mean := stat(record["accuracy"] for record in records))
        ]

    def first_accuracy(self) -> Stat | None:
        """Return the mean accuracy after phase 0."""
        return stat(r["accuracy"] for run in self.runs for r in run.phases if r["phase"] == 0)


@dataclass(frozen=True)
class Row:
    """One method with one set of settings: a row of a table, a line in a plot."""

    method: str
    settings: Mapping[str, Any]
    label: str
    cells: Mapping[int, Cell]


@dataclass(frozen=True)
class Comparison:
    """Rows of one table: same data set, order, recipe and classes."""

    dataset: str
    order: str
    recipe: str
    base_classes: int | None
    classes: int | None
    rows: tuple[Row, ...]

    @property
    def phases(self) -> tuple[int, ...]:
        """Return every K of any row."""
        return tuple(sorted({k for row in self.rows for k in row.cells}))

    @property
    def finished(self) -> Comparison:
        """Return the part with results: a failed run cannot be drawn."""
        rows = [
            replace(row, cells={k: cell for k, cell in row.cells.items() if cell.runs})
            for row in self.rows
        ]
        return replace(self, rows=tuple(row for row in rows if row.cells))

    def cells(self) -> Iterator[tuple[int, Row, Cell]]:
        """Yield K, row and cell, one K after the other."""
        for k in self.phases:
            for row in self.rows:
                if k in row.cells:
                    yield k, row, row.cells[k]

    @property
    def protocol(self) -> str | None:
        """The protocol of the runs, if it is not the usual one."""
        return next(
            (run.protocol for row in self.rows for c in row.cells.values() for run in c.tried), None
        )

    @property
    def is_published_protocol(self) -> bool:
        """Say whether the classes are split as in the paper, so that its numbers compare."""
        return self.protocol is None and PROTOCOLS.get(protocol_name(self.dataset)) == (
            self.base_classes,
            self.classes,
        )

    def label_without(self, row: Row, setting: str) -> str:
        """Return the label of a row without one of its settings: the name of a line in a plot."""
        others = [other.settings for other in self.rows if other.method == row.method]
        return label(row.method, row.settings, [name for name in differing(others) if name != setting])


def stat(values: Iterable[float | None]) -> Stat | None:
    """Return mean and standard deviation of the values that are not None; None without any."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    return Stat(fmean(numbers), stdev(numbers) if len(numbers) > 1 else None)


def differing(variants: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings that are not the same in all variants, sorted by name."""
    names = sorted({name for variant in variants for name in variant})
    return [name for name in names if len({repr(variant.get(name, ...)) for variant in variants}) > 1]


def label(method: str, settings: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return the method and those settings that tell it from its variants.

    Examples
    --------
    >>> label("acil", {"expansion_size": 512, "gamma": 0.1}, ["gamma"])
    'acil (γ = 0.1)'
    """
    parts = [
        "no expansion"
        if name == "expansion_size" and settings[name] is None
        else f"{SHORT_NAMES.get(name, name)} = {plain(settings[name])}"
        for name in names
        if name in settings
    ]
    return f"{method} ({', '.join(parts)})" if parts else method


def plain(value: Any) -> str:
    """Return the value of a setting as text."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return "+".join(plain(item) for item in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {plain(item)}" for name, item in sorted(value.items()))
    return str(value)


def sort_key(value: Any) -> tuple[Any, ...]:
    """Return a sort key: None first, then numbers by size, then texts."""
    if value is None:
        return (0, 0, "")
    if isinstance(value, int | float):
        return (1, value, "")
    return (2, 0, plain(value))
