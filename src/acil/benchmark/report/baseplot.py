"""The plot of accuracy and forgetting against the number of base classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acil.benchmark.report.bases import SIZE
from acil.benchmark.report.captions import described, series
from acil.benchmark.report.rows import Cell, Comparison, Stat
from acil.benchmark.report.style import error_bars, grid, legend_below, panels, whole_numbers

#: The first ones are accuracies, the last is forgetting.
_DRAWN: dict[str, Callable[[Cell], Stat | None]] = {
    "average accuracy Ā (%)": lambda cell: cell.over_seeds("average_accuracy"),
    "last accuracy A_K (%)": lambda cell: cell.over_seeds("last_accuracy"),
    "accuracy of phase 0, A_0 (%)": lambda cell: cell.at_phase(0, "accuracy"),
    "forgetting F (percentage points)": lambda cell: cell.over_seeds("forgetting"),
}
#: Room above and below the lines, as a part of what they span.
_MARGIN = 0.06


def base_plot(comparison: Comparison) -> Figure | None:
    """Draw Ā, A_K, A_0 and F against the number of base classes; None if there are not two sizes.

    Parameters
    ----------
    comparison : Comparison
        Of rows that differ in it.
    """
    sizes = sorted({row.settings[SIZE] for row in comparison.rows})
    if len(sizes) < 2:
        return None
    rows, columns = grid(len(_DRAWN))
    title = f"Accuracy against the size of the base\n{described(comparison)}"
    figure, axes = panels(rows, columns, title, 3.9, 2.7, len(_DRAWN))
    handles: dict[str, Any] = {}
    for (name, value), panel in zip(_DRAWN.items(), axes, strict=True):
        for position, (line, cells) in enumerate(_lines(comparison).items()):
            means = {size: mean for size, cell in cells.items() if (mean := value(cell))}
            if means:
                stds = [mean.std for mean in means.values()]
                artist = error_bars(panel, position, [*means], [m.mean for m in means.values()], stds)
                handles.setdefault(line, artist)
        panel.set_ylabel(name)
        panel.set_xlabel("classes in phase 0")
        panel.xaxis.set_major_locator(whole_numbers())
    _share(axes[:-1])
    axes[-1].set_ylim(bottom=min(0.0, axes[-1].get_ylim()[0]))
    legend_below(figure, [*handles.values()], [*handles])
    return figure


def _lines(comparison: Comparison) -> dict[str, dict[int, Cell]]:
    """Return line → size → cell, smallest size first."""
    several = len(comparison.phases) > 1
    lines: dict[str, dict[int, Cell]] = {}
    for k, row, cell in comparison.cells():
        name = series(comparison, row, without=SIZE) + f", K = {k}" * several
        lines.setdefault(name, {})[row.settings[SIZE]] = cell
    return {name: dict(sorted(cells.items())) for name, cells in lines.items()}


def _share(axes: list[Axes]) -> None:
    """Give the accuracies one scale: they are there to be compared."""
    limits = [panel.dataLim.intervaly for panel in axes if panel.lines]
    low, high = min(ends[0] for ends in limits), max(ends[1] for ends in limits)
    margin = max(_MARGIN * (high - low), 1.0)
    for panel in axes:
        panel.set_ylim(low - margin, high + margin)
