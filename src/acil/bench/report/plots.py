"""The plots of a report. The same records give files with the same bytes."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acil.bench.plan import MEMORY_RULE
from acil.bench.report.collect import BASE
from acil.bench.report.render import nbytes
from acil.bench.report.rows import Cell, Comparison, Stat, stat
from acil.bench.report.tables import described

#: Okabe and Ito's colours, which the colour-blind tell apart; wine for a yellow too pale on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9", "#882255")
MARKERS = "osD^vP*X"
LINES = ("-", "--", ":", "-.")
_DOTTED = (0, (1, 2))
_LABEL_CHARACTERS = 34
_INCHES_PER_CHARACTER = 0.075
_LEGEND_HANDLE = 0.6
_TITLE_CHARACTERS_PER_INCH = 13.5
#: More markers would hide the line.
_MOST_MARKERS = 12
#: With fewer phases than this, the numbers fit into the fields of a heat map.
_MOST_NUMBERS = 11
#: Below this percentage viridis is so dark that white text is easier to read than black.
_DARK = 45
#: What is drawn against the size of the base: accuracies first, forgetting last.
_AGAINST_BASE: dict[str, Callable[[Cell], Stat | None]] = {
    "average accuracy Ā (%)": lambda cell: cell.over_seeds("average_accuracy"),
    "last accuracy A_K (%)": lambda cell: cell.over_seeds("last_accuracy"),
    "accuracy of phase 0, A_0 (%)": lambda cell: cell.first_accuracy(),
    "forgetting F (percentage points)": lambda cell: cell.over_seeds("forgetting"),
}
#: Label → panel → points of a line.
Lines = dict[str, dict[int, list[tuple[int, Stat]]]]


def figures(suite: str, comparison: Comparison) -> Iterator[tuple[str, Figure]]:
    """Draw all plots of a suite; yield a name for files and the figure of each."""
    comparison = comparison.finished
    drawn: dict[str, Figure | None] = {}
    if suite == "main" and any(cell.has_phases for _, _, cell in comparison.cells()):
        drawn["accuracy"] = accuracy_plot(comparison)
        drawn["phases"] = phases_plot(comparison)
        drawn |= {f"origin-k{k}": origin_plot(comparison, k) for k in comparison.phases}
    elif suite in _ONE_PLOT and comparison.rows:
        drawn[suite] = _ONE_PLOT[suite](comparison)
    for name, figure in drawn.items():
        if figure is not None:
            yield name, figure


def accuracy_plot(comparison: Comparison) -> Figure:
    """Draw accuracy against classes seen, one panel for each K (the paper's Figure 2)."""
    figure, axes = panels("Accuracy over the phases", comparison, len(comparison.phases), 4.4, 3.2)
    share(axes, "y")
    lines: Lines = {row.label: {} for row in comparison.rows}
    for k, row, cell in comparison.cells():
        lines[row.label][k] = cell.curve()
    handles = _draw_lines(dict(zip(comparison.phases, axes, strict=True)), lines, band=True)
    for k, panel in zip(comparison.phases, axes, strict=True):
        panel.set(title=f"K = {k}", xlabel="classes seen", ylabel="accuracy, all classes seen (%)")
        panel.xaxis.set_major_locator(_whole_numbers())
    legend_below(figure, _highest_first(handles, lines))
    return figure


def phases_plot(comparison: Comparison) -> Figure | None:
    """Draw Ā against K, one line for each row; None for a single method or K."""
    if len({row.method for row in comparison.rows}) < 2 or len(comparison.phases) < 2:
        return None
    # Many lines are told apart only if there is room between them.
    height = 4.0 + 0.15 * len(comparison.rows)
    figure, (panel,) = panels("Average accuracy against the phases", comparison, 1, 6.4, height)
    lines: Lines = {row.label: {0: []} for row in comparison.rows}
    for k, row, cell in comparison.cells():
        if mean := cell.over_seeds("average_accuracy"):
            lines[row.label][0].append((k, mean))
    handles = _draw_lines({0: panel}, lines)
    _log_ticks(panel, 10, comparison.phases)
    panel.set(xlabel="phases K (logarithmic)", ylabel="average accuracy Ā (%)")
    legend_below(figure, _highest_first(handles, lines))
    return figure


def width_plot(comparison: Comparison) -> Figure | None:
    """Draw Ā against the expansion size (the paper's Figure 3); None for fewer than two sizes."""
    lines: Lines = {}
    without: dict[str, Stat] = {}
    ordered = [
        (comparison.label_without(r, "expansion_size"), k, r, c) for k, r, c in comparison.cells()
    ]
    for name, k, row, cell in sorted(ordered, key=lambda entry: entry[:2]):
        mean, size = cell.over_seeds("average_accuracy"), row.settings.get("expansion_size", 0)
        if mean and size is None:
            without[f"{name}, K = {k}"] = mean
        elif mean and isinstance(size, int) and size > 0:
            lines.setdefault(f"{name}, K = {k}", {0: []})[0].append((size, mean))
    sizes = sorted({size for line in lines.values() for size, _ in line[0]})
    if len(sizes) < 2:
        return None
    figure, (panel,) = panels("Average accuracy against expansion size", comparison, 1, 6.4, 3.8)
    handles: dict[str, Any] = {}
    for position, (label, line) in enumerate(lines.items()):
        handles[label] = _line(panel, position, line[0], band=True)
        if label in without:
            level = [without[label].mean] * 2
            style = _level_style(position)
            (handles[f"{label}, no expansion"],) = panel.plot([sizes[0], sizes[-1]], level, **style)
    _log_ticks(panel, 2, _thinned(sizes))
    panel.set(xlabel="expansion size d (features, logarithmic)", ylabel="average accuracy Ā (%)")
    legend_below(figure, handles)
    return figure


def origin_plot(comparison: Comparison, k: int) -> Figure | None:
    """Draw accuracy by phase of origin after each phase, one heat map for each row, at one K."""
    shown = [row for row in comparison.rows if k in row.cells and row.cells[k].has_phases]
    if not shown:
        return None
    figure, axes = panels(f"Accuracy by phase of origin, K = {k}", comparison, len(shown), 3.6, 3.3)
    colours: Any = None
    for row, panel in zip(shown, axes, strict=True):
        matrix = _origins(row.cells[k])
        panel.set_facecolor("#eeeeee")
        colours = panel.imshow(
            matrix, vmin=0, vmax=100, cmap="viridis", interpolation="nearest", aspect="auto"
        )
        style: dict[str, Any] = {"ha": "center", "va": "center", "size": 8 if k <= 5 else 5.5}
        for (after, origin), value in np.ndenumerate(matrix):
            if k < _MOST_NUMBERS and not math.isnan(value):
                colour = "white" if value < _DARK else "black"
                panel.text(origin, after, f"{value:.0f}", color=colour, **style)
        panel.grid(visible=False)
        panel.xaxis.set_major_locator(_whole_numbers())
        panel.yaxis.set_major_locator(_whole_numbers())
        panel.set(title=shortened(row.label, 28), xlabel="phase in which the classes came")
        panel.set_ylabel("tested after phase")
    figure.colorbar(colours, ax=axes, label="accuracy (%)", shrink=0.9, aspect=20 * grid(len(shown))[0])
    return figure


def base_plot(comparison: Comparison) -> Figure | None:
    """Draw Ā, A_K, A_0 and F against the number of base classes; None for fewer than two sizes."""
    if len({row.settings[BASE] for row in comparison.rows}) < 2:
        return None
    several = len(comparison.phases) > 1
    lines: Lines = {}
    for k, row, cell in comparison.cells():
        name = comparison.label_without(row, BASE) + f", K = {k}" * several
        line = lines.setdefault(name, {i: [] for i in range(len(_AGAINST_BASE))})
        for i, value in enumerate(_AGAINST_BASE.values()):
            if mean := value(cell):
                line[i].append((row.settings[BASE], mean))
    subject = "Accuracy against the size of the base"
    figure, axes = panels(subject, comparison, len(_AGAINST_BASE), 3.9, 2.7)
    share(axes[:-1], "y")
    handles = _draw_lines(dict(enumerate(axes)), lines)
    for name, panel in zip(_AGAINST_BASE, axes, strict=True):
        panel.set(xlabel="classes in phase 0", ylabel=name)
        panel.xaxis.set_major_locator(_whole_numbers())
    axes[-1].set_ylim(bottom=min(0.0, axes[-1].get_ylim()[0]))
    legend_below(figure, handles)
    return figure


def memory_plot(comparison: Comparison) -> Figure | None:
    """Draw Ā against the bytes kept after the last phase, one panel for each K.

    The variants of a method (its widths, its numbers of exemplars) are one line. A method that keeps
    nothing has no place on a logarithmic axis: it is a dotted level. None for fewer than two points.
    """
    lines: Lines = {}
    for row in comparison.rows:
        varied = MEMORY_RULE if MEMORY_RULE in row.settings else "expansion_size"
        for k, cell in row.cells.items():
            n_bytes, average = cell.kept("samples", "statistics"), cell.over_seeds("average_accuracy")
            if n_bytes is not None and average is not None:
                line = lines.setdefault(comparison.label_without(row, varied), {})
                line.setdefault(k, []).append((n_bytes, average))
    drawn = [k for line in lines.values() for k, points in line.items() for x, _ in points if x > 0]
    if len(drawn) == len(set(drawn)):
        return None
    subject = "Average accuracy against what is kept"
    figure, axes = panels(subject, comparison, len(comparison.phases), 4.6, 3.4)
    share(axes, "xy")
    handles = _draw_lines(dict(zip(comparison.phases, axes, strict=True)), lines)
    for k, panel in zip(comparison.phases, axes, strict=True):
        panel.set(title=f"K = {k}", xscale="log", ylabel="average accuracy Ā (%)")
        panel.set_xlabel("samples and statistics kept (bytes, logarithmic)")
    low, high = axes[0].get_xlim()
    for panel in axes:
        # Within one decade, powers of ten alone would leave the axis without a number.
        steps = (1.0,) if high / low > 100 else (1.0, 2.0, 5.0)
        panel.xaxis.set_major_locator(ticker.LogLocator(base=10, subs=steps, numticks=12))
        panel.xaxis.set_minor_formatter(ticker.NullFormatter())
        panel.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: nbytes(value, short=True)))
    legend_below(figure, _highest_first(handles, lines))
    return figure


def styled() -> AbstractContextManager[None]:
    """Draw with our style, whatever the user's matplotlib settings are."""
    return matplotlib.style.context(["default", Path(__file__).with_suffix(".mplstyle")])


def line_style(position: int) -> dict[str, Any]:
    """Return colour, marker and dashes of the line at a position; the first 32 all differ."""
    turn = position // len(COLOURS)
    return {
        "color": COLOURS[position % len(COLOURS)],
        # A single point has no dashes: every second turn its marker is hollow, after two it is another.
        "marker": MARKERS[(position + turn // 2) % len(MARKERS)],
        "markerfacecolor": "white" if turn % 2 else COLOURS[position % len(COLOURS)],
        "linestyle": LINES[turn % len(LINES)],
    }


def grid(n: int) -> tuple[int, int]:
    """Return rows and columns for n panels: up to three side by side, four as a square."""
    columns = 2 if n == 4 else min(n, 3)
    return math.ceil(n / columns), columns


def panels(
    subject: str, comparison: Comparison, n: int, width: float, height: float
) -> tuple[Figure, list[Axes]]:
    """Return a figure with a title and n panels of this width and height, in inches."""
    rows, columns = grid(n)
    # A single panel would be too narrow for the title.
    size = (max(width * columns, 6.4), height * rows + 0.7)
    figure = Figure(figsize=size, layout="constrained")
    fits = int(size[0] * _TITLE_CHARACTERS_PER_INCH)
    figure.suptitle("\n".join([subject, *textwrap.wrap(described(comparison), fits)]))
    return figure, [figure.add_subplot(rows, columns, position + 1) for position in range(n)]


def share(axes: list[Axes], which: str) -> None:
    """Give panels one scale along these axes, so that they compare."""
    for panel in axes[1:]:
        for name in which:
            getattr(panel, f"share{name}")(axes[0])


def legend_below(figure: Figure, handles: Mapping[str, Any]) -> None:
    """Put a legend below all panels, in as many columns as fit, and make room for it."""
    # matplotlib leaves out names that begin with an underscore.
    names = [shortened(f" {name}" if name.startswith("_") else name) for name in handles]
    width, height = figure.get_size_inches()
    entry = max(map(len, names)) * _INCHES_PER_CHARACTER + _LEGEND_HANDLE
    columns = max(1, min(len(names), int(width / entry)))
    figure.set_size_inches(width, height + 0.2 * math.ceil(len(names) / columns))
    figure.legend(list(handles.values()), names, loc="outside lower center", ncols=columns)


def shortened(name: str, most: int = _LABEL_CHARACTERS) -> str:
    """Return a name without its middle, if it is too long for a legend.

    Examples
    --------
    >>> shortened("package.of.somebody.with.long.names:Method", 20)
    'package.o…mes:Method'
    """
    if len(name) <= most:
        return name
    n_before = (most - 1) // 2
    return f"{name[:n_before]}…{name[len(name) - (most - 1 - n_before) :]}"


def image_bytes(figure: Figure) -> dict[str, bytes]:
    """Return a figure as ``png`` and ``svg``, without dates or versions in them."""
    files = {}
    for kind, metadata in {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}.items():
        stream = io.BytesIO()
        figure.savefig(stream, format=kind, dpi=150, metadata=metadata)
        files[kind] = stream.getvalue()
        # Both files share one layout, which takes as long as drawing.
        figure.set_layout_engine("none")
    return files


def _whole_numbers() -> ticker.MaxNLocator:
    return ticker.MaxNLocator(integer=True, steps=[1, 2, 5, 10])


def _level_style(position: int) -> dict[str, Any]:
    # Markers at both ends tell apart levels of one colour.
    return {**line_style(position), "linestyle": _DOTTED, "markersize": 5, "clip_on": False}


def _draw_lines(axes: Mapping[int, Axes], lines: Lines, band: bool = False) -> dict[str, Any]:
    """Draw lines into their panels, and return the handle of each; those at x = 0 only as a level."""
    handles: dict[str, Any] = {}
    for number, panel in axes.items():
        for position, (label, by_panel) in enumerate(lines.items()):
            points = sorted(by_panel.get(number, []), key=lambda point: point[0])
            shown = [point for point in points if point[0]]
            if shown:
                handles.setdefault(label, _line(panel, position, shown, band))
            elif points:
                level = panel.axhline(points[0][1].mean, **_level_style(position))
                handles.setdefault(label, level)
    return handles


def _highest_first(handles: Mapping[str, Any], lines: Lines) -> dict[str, Any]:
    """Order a legend by where its lines end, the mean over panels: as the eye meets them in a plot."""

    def end(label: str) -> float:
        drawn = [points for points in lines[label].values() if points]
        return float(np.mean([max(points, key=lambda point: point[0])[1].mean for points in drawn]))

    return {label: handles[label] for label in sorted(handles, key=end, reverse=True)}


def _line(panel: Axes, position: int, points: list[tuple[int, Stat]], band: bool) -> Any:
    """Draw a line through means and, if there is any spread, a band around it or error bars."""
    xs, means, spread = zip(*((x, mean.mean, mean.std or 0.0) for x, mean in points), strict=True)
    style = line_style(position)
    if not band:
        style |= {"linewidth": 1.2, "markersize": 5, "capsize": 2, "elinewidth": 0.9}
        return panel.errorbar(xs, means, yerr=spread if any(spread) else None, **style)
    step = math.ceil(len(xs) / _MOST_MARKERS)
    # Each line starts its markers elsewhere, so that close lines stay readable.
    every = (position % step, step)
    (line,) = panel.plot(xs, means, linewidth=1.4, markersize=4, markevery=every, **style)
    if any(spread):
        lower, upper = np.clip([np.subtract(means, spread), np.add(means, spread)], 0, 100)
        panel.fill_between(xs, lower, upper, color=style["color"], alpha=0.18, linewidth=0)
    return line


def _log_ticks(panel: Axes, base: int, ticks: Sequence[int]) -> None:
    """Give a panel a logarithmic axis of whole numbers, with these ticks and no others."""
    panel.set_xscale("log", base=base)
    panel.xaxis.set_major_locator(ticker.FixedLocator(ticks))
    panel.xaxis.set_minor_locator(ticker.NullLocator())
    panel.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _origins(cell: Cell) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the mean accuracy (tested after phase, origin), NaN where there is none."""
    by_place: dict[tuple[int, int], list[float | None]] = {}
    for record in (record for run in cell.runs for record in run.phases):
        for origin, value in enumerate(record["accuracy_by_origin"]):
            by_place.setdefault((record["phase"], origin), []).append(value)
    size = 1 + max(phase for phase, _ in by_place)
    matrix = np.full((size, size), math.nan)
    for place, values in by_place.items():
        mean = stat(values)
        matrix[place] = mean.mean if mean else math.nan
    return matrix


def _thinned(sizes: list[int]) -> list[int]:
    """Leave out sizes whose labels would overlap on a logarithmic axis."""
    apart = (math.log2(sizes[-1]) - math.log2(sizes[0])) / 14
    shown: list[int] = []
    for size in sizes:
        if not shown or math.log2(size / shown[-1]) >= apart:
            shown.append(size)
    return shown


_ONE_PLOT = {BASE: base_plot, "width": width_plot, "memory": memory_plot}
