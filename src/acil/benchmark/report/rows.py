"""What tables and plots show: runs, averaged over seeds, in rows that may be compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from acil.benchmark.published import PROTOCOLS, protocol_name


@dataclass(frozen=True)
class Stat:
    """Mean over seeds, and the standard deviation (n − 1) where there is more than one."""

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True)
class Run:
    """One method, with its settings, on one seed and one K."""

    identity: Mapping[str, Any]
    phases: tuple[Mapping[str, Any], ...]
    summary: Mapping[str, Any] | None
    #: What stopped it, if it could not be finished.
    failure: Mapping[str, Any] | None = None

    @property
    def classes(self) -> tuple[int | None, int | None]:
        """Return the base classes, and all classes of a finished run, as far as records tell."""
        first = self.phases[0] if self.phases and self.phases[0]["phase"] == 0 else {}
        # A run without base classes begins with its first increment: only its settings say so.
        base = self.identity["settings"].get("base", first.get("classes_seen"))
        return base, self.phases[-1]["classes_seen"] if self.phases and self.summary else None


@dataclass(frozen=True)
class Cell:
    """The finished runs of one row at one K, one for each seed, and those that failed."""

    runs: tuple[Run, ...]
    failed: tuple[Run, ...] = ()

    @property
    def tried(self) -> tuple[Run, ...]:
        """Return all runs, finished or failed."""
        return (*self.runs, *self.failed)

    @property
    def has_phases(self) -> bool:
        """Say whether there is a record of any phase."""
        return any(run.phases for run in self.runs)

    def over_seeds(self, name: str) -> Stat | None:
        """Return the mean of a number in the summaries."""
        return stat(run.summary.get(name) for run in self.runs if run.summary)

    def worst(self, name: str) -> float | None:
        """Return the largest of a number in the summaries."""
        values = [run.summary.get(name) for run in self.runs if run.summary]
        return max((value for value in values if value is not None), default=None)

    def kept(self, part: str) -> int | None:
        """Return the bytes kept after the last phase, the most of all seeds."""
        return max((run.phases[-1]["memory"][part] for run in self.runs if run.phases), default=None)

    def peak(self) -> int | None:
        """Return the most memory that the process ever had, in bytes."""
        values = [record["peak_rss"] for run in self.runs for record in run.phases]
        return max((value for value in values if value is not None), default=None)

    def seconds(self, chosen: Callable[[int], bool]) -> Stat | None:
        """Return the seconds of all phases whose number is chosen."""
        return stat(
            sum(record["seconds"] for record in run.phases if chosen(record["phase"]))
            for run in self.runs
            if any(chosen(record["phase"]) for record in run.phases)
        )

    def curve(self, name: str) -> list[tuple[int, int, Stat]]:
        """Return phase, classes seen and the mean of a number in the phase records."""
        return self.curve_of(lambda record: record[name])

    def at_phase(self, phase: int, name: str) -> Stat | None:
        """Return the mean of a number in the records of one phase."""
        return next((mean for found, _, mean in self.curve(name) if found == phase), None)

    def curve_of(
        self, value: Callable[[Mapping[str, Any]], float | None]
    ) -> list[tuple[int, int, Stat]]:
        """Return phase, classes seen and the mean of what a function takes from each phase record."""
        by_phase: dict[int, list[Mapping[str, Any]]] = {}
        for run in self.runs:
            for record in run.phases:
                by_phase.setdefault(record["phase"], []).append(record)
        means = [(phase, found, stat(map(value, found))) for phase, found in sorted(by_phase.items())]
        return [(phase, found[0]["classes_seen"], mean) for phase, found, mean in means if mean]


@dataclass(frozen=True)
class Row:
    """One method with one set of settings: a row of a table, a line in a plot."""

    method: str
    settings: Mapping[str, Any]
    label: str
    cells: Mapping[int, Cell]


@dataclass(frozen=True)
class Comparison:
    """Rows that may stand in one table: same data set, order, recipe and classes."""

    dataset: str
    order: str
    recipe: str
    base_classes: int | None
    classes: int | None
    rows: tuple[Row, ...]

    @property
    def about(self) -> dict[str, str | int | None]:
        """Return what all rows have in common."""
        names = ("dataset", "order", "recipe", "base_classes", "classes")
        return {name: getattr(self, name) for name in names}

    @property
    def phases(self) -> tuple[int, ...]:
        """Return every K that a row has."""
        return tuple(sorted({k for row in self.rows for k in row.cells}))

    @property
    def finished(self) -> Comparison:
        """Return what there are numbers of: nothing of a run that failed can be drawn."""
        kept = [
            replace(row, cells={k: cell for k, cell in row.cells.items() if cell.runs})
            for row in self.rows
        ]
        return replace(self, rows=tuple(row for row in kept if row.cells))

    def cells(self) -> Iterator[tuple[int, Row, Cell]]:
        """Yield K, row and cell of all there is, K by K."""
        for k in self.phases:
            for row in self.rows:
                if k in row.cells:
                    yield k, row, row.cells[k]

    @property
    def is_published_protocol(self) -> bool:
        """Say whether the classes are split as in the paper, so that its numbers may stand beside."""
        protocol = PROTOCOLS.get(protocol_name(self.dataset))
        return protocol is not None and (protocol.base_classes, protocol.classes) == (
            self.base_classes,
            self.classes,
        )


def stat(values: Iterable[float | None]) -> Stat | None:
    """Return mean and standard deviation of the values that are there; None if none is.

    Examples
    --------
    >>> stat([1.0, None, 3.0])
    Stat(mean=2.0, std=1.4142135623730951, n=2)
    """
    found = [value for value in values if value is not None]
    if not found:
        return None
    mean = math.fsum(found) / len(found)
    if len(found) == 1:
        return Stat(mean, None, 1)
    return Stat(
        mean, math.sqrt(math.fsum((v - mean) ** 2 for v in found) / (len(found) - 1)), len(found)
    )
