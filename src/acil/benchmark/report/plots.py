"""The plots of a report, each from one comparison; every figure is an object of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from acil.benchmark.report.baseplot import base_plot
from acil.benchmark.report.captions import described, series
from acil.benchmark.report.costs import cost_plot
from acil.benchmark.report.memory import memory_plot
from acil.benchmark.report.rows import Cell, Comparison, Stat
from acil.benchmark.report.style import (
    COLOURS,
    grid,
    legend_below,
    line_style,
    panels,
    shortened,
    whole_numbers,
)

#: More markers than that would hide the line.
_MOST_MARKERS = 12
#: Up to so many phases the numbers fit into the fields of a heat map.
_MOST_NUMBERS = 11
#: Below this percentage viridis is so dark that white is read better than black.
_DARK = 45


def figures(suite: str, comparison: Comparison) -> Iterator[tuple[str, str, Figure]]:
    """Draw everything that a suite shows of a comparison.

    Parameters
    ----------
    suite : str
    comparison : Comparison

    Yields
    ------
    tuple of str, str and Figure
        A name for files, a caption, the figure.
    """
    comparison = comparison.finished
    if not comparison.rows:
        return
    drawn: list[tuple[str, str, Figure | None]] = []
    if suite == "main" and any(cell.has_phases for _, _, cell in comparison.cells()):
        drawn.append(("accuracy", "Accuracy over the phases", accuracy_plot(comparison)))
        drawn.append(("forgetting", "Forgetting of the base classes", forgetting_plot(comparison)))
        drawn.append(("cost", "Time and memory of each phase", cost_plot(comparison)))
        for k in comparison.phases:
            drawn.append(
                (f"origin-k{k}", f"Accuracy by phase of origin, K = {k}", origin_plot(comparison, k))
            )
    elif suite == "base":
        drawn.append(("base", "Accuracy against the size of the base", base_plot(comparison)))
    elif suite == "width":
        drawn.append(("width", "Average accuracy against expansion size", width_plot(comparison)))
    elif suite == "memory":
        drawn.append(("memory", "Average accuracy against what is kept", memory_plot(comparison)))
    for name, caption, figure in drawn:
        if figure is not None:
            yield name, caption, figure


def accuracy_plot(comparison: Comparison) -> Figure:
    """Draw accuracy against classes seen, one panel for each K (the paper's Figure 2).

    Parameters
    ----------
    comparison : Comparison
    """
    rows, columns = grid(len(comparison.phases))
    title = _title("Accuracy over the phases", comparison)
    figure, axes = panels(rows, columns, title, 4.4, 3.2, len(comparison.phases))
    handles: dict[str, Artist] = {}
    for k, panel in zip(comparison.phases, axes, strict=True):
        for position, row in enumerate(comparison.rows):
            if k in row.cells and row.cells[k].has_phases:
                points = row.cells[k].curve("accuracy")
                line = _curve(
                    panel, position, [seen for _, seen, _ in points], [s for _, _, s in points]
                )
                handles.setdefault(row.label, line)
        panel.set_title(f"K = {k}")
        panel.set_xlabel("classes seen")
        panel.set_ylabel("accuracy, all classes seen (%)")
        panel.xaxis.set_major_locator(whole_numbers())
    for panel in axes:
        # One scale for all K: the panels are there to be compared.
        panel.set_ylim(min(a.get_ylim()[0] for a in axes), max(a.get_ylim()[1] for a in axes))
    legend_below(figure, [*handles.values()], [*handles])
    return figure


def width_plot(comparison: Comparison) -> Figure | None:
    """Draw Ā against the expansion size (the paper's Figure 3); None if there are not two sizes.

    Parameters
    ----------
    comparison : Comparison
        Of the suite ``width``.
    """
    lines: dict[tuple[str, int], dict[int, Stat]] = {}
    without: dict[tuple[str, int], Stat] = {}
    for row in comparison.rows:
        for k, cell in row.cells.items():
            mean, size = cell.over_seeds("average_accuracy"), row.settings.get("expansion_size", 0)
            name = (series(comparison, row, without="expansion_size"), k)
            if mean and size is None:
                without[name] = mean
            elif mean and isinstance(size, int) and size > 0:
                lines.setdefault(name, {})[size] = mean
    sizes = sorted({size for points in lines.values() for size in points})
    if len(sizes) < 2:
        return None
    figure, (panel,) = panels(
        1, 1, _title("Average accuracy against expansion size", comparison), 6.4, 3.8, 1
    )
    handles: dict[str, Artist] = {}
    for position, (name, points) in enumerate(sorted(lines.items())):
        xs = sorted(points)
        handles[f"{name[0]}, K = {name[1]}"] = _curve(panel, position, xs, [points[x] for x in xs])
        if name in without:
            colour = COLOURS[position % len(COLOURS)]
            level = [without[name].mean] * 2
            (style,) = panel.plot(sizes[:: len(sizes) - 1], level, color=colour, linestyle=(0, (1, 2)))
            handles[f"{name[0]}, K = {name[1]}, no expansion"] = style
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_locator(FixedLocator(_thinned(sizes)))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    panel.set_xlabel("expansion size d (features, logarithmic)")
    panel.set_ylabel("average accuracy Ā (%)")
    legend_below(figure, [*handles.values()], [*handles])
    return figure


def forgetting_plot(comparison: Comparison) -> Figure | None:
    """Draw F as bars, one group for each K; None if no run has it.

    Parameters
    ----------
    comparison : Comparison
    """
    found = {
        (position, k): mean
        for position, row in enumerate(comparison.rows)
        for k, cell in row.cells.items()
        if (mean := cell.over_seeds("forgetting"))
    }
    if not found:
        return None
    title = _title("Forgetting of the base classes", comparison)
    figure, (panel,) = panels(1, 1, title, max(6.4, 1.1 + 0.24 * len(found)), 3.6, 1)
    n = len(comparison.rows)
    handles: dict[str, Any] = {}
    width = min(0.8 / n, 0.25)
    for position, row in enumerate(comparison.rows):
        at = [i for i, k in enumerate(comparison.phases) if (position, k) in found]
        means = [found[position, comparison.phases[i]] for i in at]
        # Where there is no spread to show, no error bar of length 0 either.
        errors = [m.std if m.std is not None else math.nan for m in means]
        bars = panel.bar(
            [i + (position - (n - 1) / 2) * width for i in at],
            [m.mean for m in means],
            width * 0.92,
            yerr=None if all(map(math.isnan, errors)) else errors,
            color=COLOURS[position % len(COLOURS)],
            hatch=("", "//", "..", "xx")[position // len(COLOURS) % 4],
            edgecolor="white",
            linewidth=0.4,
            error_kw={"elinewidth": 0.9, "capsize": 2},
        )
        handles[row.label] = bars
    panel.axhline(0, color="black", linewidth=0.8)
    panel.set_xticks(range(len(comparison.phases)), [f"K = {k}" for k in comparison.phases])
    panel.set_xlim(-0.6, len(comparison.phases) - 0.4)
    panel.grid(visible=False, axis="x")
    panel.set_ylabel("forgetting F (percentage points)")
    legend_below(figure, [*handles.values()], [*handles])
    return figure


def origin_plot(comparison: Comparison, k: int) -> Figure | None:
    """Draw accuracy by phase of origin after each phase, one heat map for each row, at one K.

    Parameters
    ----------
    comparison : Comparison
    k : int
    """
    shown = [row for row in comparison.rows if k in row.cells and row.cells[k].has_phases]
    if not shown:
        return None
    rows, columns = grid(len(shown))
    title = _title(f"Accuracy by phase of origin, K = {k}", comparison)
    figure, axes = panels(rows, columns, title, 3.6, 3.3, len(shown))
    colours: Any = None
    for row, panel in zip(shown, axes, strict=True):
        matrix = _origins(row.cells[k])
        panel.set_facecolor("#eeeeee")
        colours = panel.imshow(
            matrix, vmin=0, vmax=100, cmap="viridis", interpolation="nearest", aspect="auto"
        )
        if k < _MOST_NUMBERS:
            for (after, origin), value in np.ndenumerate(matrix):
                if not math.isnan(value):
                    colour = "white" if value < _DARK else "black"
                    size = 8 if k <= 5 else 5.5
                    panel.text(
                        origin, after, f"{value:.0f}", ha="center", va="center", color=colour, size=size
                    )
        panel.set_title(shortened(row.label, 28))
        panel.grid(visible=False)
        panel.xaxis.set_major_locator(whole_numbers())
        panel.yaxis.set_major_locator(whole_numbers())
        panel.set_xlabel("phase in which the classes came")
        panel.set_ylabel("tested after phase")
    figure.colorbar(colours, ax=axes, label="accuracy (%)", shrink=0.9, aspect=20 * rows)
    return figure


def _title(what: str, comparison: Comparison) -> str:
    return f"{what}\n{described(comparison)}"


def _curve(panel: Axes, position: int, xs: list[int], stats: list[Stat]) -> Artist:
    means, spread = [s.mean for s in stats], [s.std or 0.0 for s in stats]
    style = line_style(position)
    step = math.ceil(len(xs) / _MOST_MARKERS)
    # Each line begins its markers elsewhere, so that lines close to each other stay readable.
    every = (position % step, step)
    (line,) = panel.plot(xs, means, linewidth=1.4, markersize=4, markevery=every, **style)
    if any(spread):
        # Near 100 % a deviation may reach where no accuracy can be.
        lower, upper = np.clip([np.subtract(means, spread), np.add(means, spread)], 0, 100)
        panel.fill_between(xs, lower, upper, color=style["color"], alpha=0.18, linewidth=0)
    return line


def _origins(cell: Cell) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the mean accuracy (tested after phase, origin), NaN where there is none."""
    size = 1 + max(record["phase"] for run in cell.runs for record in run.phases)
    matrix = np.full((size, size), math.nan)
    for origin in range(size):

        def entry(record: Mapping[str, Any], origin: int = origin) -> float | None:
            values = record["accuracy_by_origin"]
            return values[origin] if origin < len(values) else None

        for phase, _, mean in cell.curve_of(entry):
            matrix[phase, origin] = mean.mean
    return matrix


def _thinned(sizes: list[int]) -> list[int]:
    """Leave out sizes whose labels would stand on top of each other on a logarithmic axis."""
    apart = (math.log2(sizes[-1]) - math.log2(sizes[0])) / 14
    kept: list[int] = []
    for size in sizes:
        if not kept or math.log2(size / kept[-1]) >= apart:
            kept.append(size)
    return kept
