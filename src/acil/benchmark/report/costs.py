"""The plot of what each phase costs: time and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from acil.benchmark.report.captions import described
from acil.benchmark.report.labels import nbytes
from acil.benchmark.report.rows import Comparison, Stat
from acil.benchmark.report.style import legend_below, line_style, panels, whole_numbers

#: Axes that span less than this ratio are linear: a logarithmic one would have hardly a tick.
_LOGARITHMIC = 20
#: Length of a dash where lines coincide, in points of the line's width.
_DASH = 4


def cost_plot(comparison: Comparison) -> Figure:
    """Draw seconds (above) and bytes (below) of each phase, one column of panels for each K.

    Parameters
    ----------
    comparison : Comparison
    """
    n = len(comparison.phases)
    figure, axes = panels(
        2, n, f"Time and memory of each phase\n{described(comparison)}", 3.3, 2.7, 2 * n
    )
    for column, k in enumerate(comparison.phases):
        above, below = axes[column], axes[n + column]
        cells = {i: row.cells[k] for i, row in enumerate(comparison.rows) if k in row.cells}
        _phases(above, {i: cell.curve("seconds") for i, cell in cells.items()})
        _phases(below, {i: cell.curve_of(_all_memory) for i, cell in cells.items()})
        above.set_title(f"K = {k}")
        below.set_xlabel("phase")
    axes[0].set_ylabel("time of the phase (s)")
    axes[n].set_ylabel("memory, weights included")
    _share_amounts(axes[:n], lambda value: f"{value:g}")
    _share_amounts(axes[n:], lambda value: nbytes(value, short=True))
    styles = [line_style(position) | {"marker": ""} for position in range(len(comparison.rows))]
    legend_below(figure, [Line2D([], [], **s) for s in styles], [row.label for row in comparison.rows])
    return figure


def _phases(panel: Axes, curves: Mapping[int, list[tuple[int, int, Stat]]]) -> None:
    """Draw amounts against phases; lines that coincide share their length as dashes of each colour."""
    together: dict[tuple[tuple[int, str], ...], list[int]] = {}
    for position, curve in curves.items():
        # To the eye, lines that agree to two digits are one.
        looks = tuple((phase, f"{mean.mean:.2g}") for phase, _, mean in curve)
        together.setdefault(looks, []).append(position)
    for positions in together.values():
        for turn, position in enumerate(positions):
            style = line_style(position) | {"marker": ""}
            if len(positions) > 1:
                style["linestyle"] = (turn * -_DASH, (_DASH, _DASH * (len(positions) - 1)))
            # A logarithmic axis has no place for a phase that took no time at all.
            points = [(phase, mean.mean) for phase, _, mean in curves[position] if mean.mean > 0]
            panel.plot([x for x, _ in points], [y for _, y in points], linewidth=1.6, **style)
    panel.xaxis.set_major_locator(whole_numbers())


def _share_amounts(axes: list[Axes], written: Callable[[float], str]) -> None:
    """Give panels one scale for amounts: from 0, or logarithmic where they differ by much."""
    amounts = [float(y) for panel in axes for line in panel.lines for y in np.asarray(line.get_ydata())]
    low, high = min(amounts, default=1.0), max(amounts, default=1.0)
    for panel in axes:
        if high / low > _LOGARITHMIC:
            panel.set_yscale("log")
            panel.set_ylim(low / 1.5, high * 1.5)
            panel.yaxis.set_minor_formatter(NullFormatter())
        else:
            panel.set_ylim(0, high * 1.1)
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: written(value)))


def _all_memory(record: Mapping[str, Any]) -> float:
    return float(sum(record["memory"][part] for part in ("samples", "statistics", "weights")))
