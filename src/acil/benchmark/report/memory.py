"""The plot of accuracy against what a method keeps: samples, or statistics, in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from acil.benchmark.report.captions import described, series
from acil.benchmark.report.labels import nbytes
from acil.benchmark.report.rows import Cell, Comparison, Row, Stat
from acil.benchmark.report.style import error_bars, grid, legend_below, line_style, panels
from acil.benchmark.suites import MEMORY_RULE


@dataclass(frozen=True)
class _Point:
    kept: int
    average: Stat


def memory_plot(comparison: Comparison) -> Figure | None:
    """Draw Ā against the bytes kept after the last phase, one panel for each K.

    The variants of a method (its widths, its numbers of exemplars) are one line. A method that keeps
    nothing has no place on a logarithmic axis: its level is a dotted line. None if there are not two
    points to compare.

    Parameters
    ----------
    comparison : Comparison
    """
    lines = _lines(comparison)
    counts = [
        sum(point.kept > 0 for by_phases in lines.values() for point in by_phases.get(k, []))
        for k in comparison.phases
    ]
    if max(counts) < 2:
        return None
    rows, columns = grid(len(comparison.phases))
    title = f"Average accuracy against what is kept\n{described(comparison)}"
    figure, axes = panels(rows, columns, title, 4.6, 3.4, len(comparison.phases))
    handles: dict[str, Any] = {}
    for k, panel in zip(comparison.phases, axes, strict=True):
        for position, (name, by_phases) in enumerate(lines.items()):
            if k in by_phases:
                handles.setdefault(name, _draw(panel, position, by_phases[k]))
        panel.set_title(f"K = {k}")
        panel.set_xscale("log")
        panel.set_xlabel("samples and statistics kept (bytes, logarithmic)")
        panel.set_ylabel("average accuracy Ā (%)")
    _share(axes)
    legend_below(figure, [*handles.values()], [*handles])
    return figure


def _lines(comparison: Comparison) -> dict[str, dict[int, list[_Point]]]:
    """Return line → K → points, fewest bytes first."""
    lines: dict[str, dict[int, list[_Point]]] = {}
    for row in comparison.rows:
        for k, cell in row.cells.items():
            kept, average = _kept(cell), cell.over_seeds("average_accuracy")
            if kept is not None and average is not None:
                points = lines.setdefault(_name(comparison, row), {}).setdefault(k, [])
                points.append(_Point(kept, average))
    for by_phases in lines.values():
        for points in by_phases.values():
            points.sort(key=lambda point: point.kept)
    return lines


def _name(comparison: Comparison, row: Row) -> str:
    varied = MEMORY_RULE if MEMORY_RULE in row.settings else "expansion_size"
    return series(comparison, row, without=varied)


def _kept(cell: Cell) -> int | None:
    samples, statistics = cell.kept("samples"), cell.kept("statistics")
    return None if samples is None or statistics is None else samples + statistics


def _draw(panel: Axes, position: int, points: list[_Point]) -> Any:
    style = line_style(position)
    shown = [point for point in points if point.kept]
    if not shown:
        return panel.axhline(points[0].average.mean, color=style["color"], linestyle=(0, (1, 2)))
    averages = [point.average for point in shown]
    return error_bars(
        panel, position, [p.kept for p in shown], [a.mean for a in averages], [a.std for a in averages]
    )


def _share(axes: list[Axes]) -> None:
    """Give all panels one scale, with a tick for each power of ten in plain units."""
    low, high = min(a.get_xlim()[0] for a in axes), max(a.get_xlim()[1] for a in axes)
    bottom, top = min(a.get_ylim()[0] for a in axes), max(a.get_ylim()[1] for a in axes)
    for panel in axes:
        panel.set_xlim(low, high)
        panel.set_ylim(bottom, top)
        # Within one decade powers of ten would leave the axis without a number.
        steps = (1.0,) if high / low > 100 else (1.0, 2.0, 5.0)
        panel.xaxis.set_major_locator(LogLocator(base=10, subs=steps, numticks=12))
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: nbytes(value, short=True)))
