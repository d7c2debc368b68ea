"""Runs that differ in the number of base classes, put together from their own comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from acil.benchmark.records import canonical
from acil.benchmark.report.labels import differing, label, sort_key
from acil.benchmark.report.rows import Cell, Comparison, Row, Run

#: Fewer sizes show no course.
LEAST_SIZES = 3
#: The setting in which rows of such a comparison differ.
SIZE = "base"
_NETWORK = "backbone"
_NETWORK_FILE = ".safetensors"


def against_base(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """Return comparisons of runs that differ only in the number of base classes.

    There is one wherever three sizes are found. Each row is one size, at every K that three sizes have.
    Networks read from files count as those that were trained on the way; where a size has both, the one
    with more seeds is taken.

    Parameters
    ----------
    comparisons : sequence of Comparison
        Each with one number of base classes.
    """
    grouped: dict[tuple[Any, ...], list[Comparison]] = {}
    for comparison in comparisons:
        if comparison.base_classes is not None and comparison.classes is not None:
            name = (comparison.dataset, comparison.order, comparison.recipe, comparison.classes)
            grouped.setdefault(name, []).append(comparison)
    found = []
    for (dataset, order, recipe, classes), alike in grouped.items():
        rows = _rows(alike)
        if rows:
            found.append(Comparison(dataset, order, recipe, None, classes, rows))
    return tuple(found)


def is_shown_by(comparison: Comparison, others: Sequence[Comparison]) -> bool:
    """Say whether a table against the size of the base has all rows of a comparison.

    A comparison with several K or rows has more to show, and so has one with published numbers.

    Parameters
    ----------
    comparison : Comparison
        With one number of base classes.
    others : sequence of Comparison
        As from `against_base`.
    """
    if comparison.is_published_protocol or len(list(comparison.cells())) != 1:
        return False
    ((_, _, cell),) = comparison.cells()
    return any(cell == shown for other in others for _, _, shown in other.cells())


def _rows(comparisons: Sequence[Comparison]) -> tuple[Row, ...]:
    networks = {
        str(row.settings[_NETWORK])
        for comparison in comparisons
        for row in comparison.rows
        if not _is_from_file(row)
    }
    # Method and settings → K → size → cell, of networks from files and of others
    lines: dict[tuple[str, str], tuple[dict[str, Any], dict[int, dict[int, dict[bool, Cell]]]]] = {}
    for comparison in comparisons:
        for row in comparison.rows:
            settings = {k: v for k, v in row.settings.items() if k not in (SIZE, _NETWORK)}
            if not _is_from_file(row):
                settings[_NETWORK] = row.settings[_NETWORK]
            elif len(networks) == 1:
                # A file does not tell its architecture: the only one there is.
                settings[_NETWORK] = next(iter(networks))
            name = (row.method, canonical(settings))
            by_phases = lines.setdefault(name, (settings, {}))[1]
            for k, cell in row.cells.items():
                found = by_phases.setdefault(k, {}).setdefault(comparison.base_classes or 0, {})
                kind = _is_from_file(row)
                found[kind] = _joined(found[kind], cell) if kind in found else cell
    rows = []
    for (method, _), (settings, by_phases) in lines.items():
        cells: dict[int, dict[int, Cell]] = {}
        for k, sizes in by_phases.items():
            if len(sizes) >= LEAST_SIZES:
                for size, kinds in sizes.items():
                    cells.setdefault(size, {})[k] = max(kinds.values(), key=lambda c: len(c.runs))
        rows += [Row(method, {**settings, SIZE: size}, "", by_k) for size, by_k in cells.items()]
    return _labelled(rows)


def _joined(first: Cell, second: Cell) -> Cell:
    """Put the seeds of two cells together; if they share one, return the larger cell."""
    seeds = [{run.identity["seed"] for run in cell.tried} for cell in (first, second)]
    if seeds[0] & seeds[1]:
        return second if len(second.runs) > len(first.runs) else first

    def seed(run: Run) -> int:
        return int(run.identity["seed"])

    return Cell(
        tuple(sorted([*first.runs, *second.runs], key=seed)),
        tuple(sorted([*first.failed, *second.failed], key=seed)),
    )


def _labelled(rows: list[Row]) -> tuple[Row, ...]:
    """Name rows by what tells them apart, and sort them: sizes of one line follow each other."""
    result = []
    for row in rows:
        names = differing([other.settings for other in rows if other.method == row.method])
        key = [sort_key(row.settings.get(name)) for name in names if name != SIZE]
        named = Row(row.method, row.settings, label(row.method, row.settings, names), row.cells)
        result.append(((row.method, key, row.settings[SIZE]), named))
    return tuple(row for _, row in sorted(result, key=lambda pair: pair[0]))


def _is_from_file(row: Row) -> bool:
    """Say whether the network is from a file; where each seed has its own, the row names none."""
    return _NETWORK not in row.settings or _NETWORK_FILE in str(row.settings[_NETWORK])
