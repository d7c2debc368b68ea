"""How plots look: colours, legends, and files that are the same bytes for the same records."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib.style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

#: Okabe and Ito's colours, which the colour-blind tell apart; wine for a yellow too pale on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9", "#882255")
MARKERS = "osD^vP*X"
LINES = ("-", "--", ":", "-.")
DPI = 150
_STYLE = {
    "svg.hashsalt": "acil",
    "svg.fonttype": "path",
    # Names of methods and data sets are text, whatever dollars are in them.
    "text.parse_math": False,
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "figure.titlesize": 10,
}
_LABEL_CHARACTERS = 34
_INCHES_PER_CHARACTER = 0.075
_LEGEND_HANDLE = 0.6
_TITLE_CHARACTERS_PER_INCH = 13.5


@contextmanager
def styled() -> Iterator[None]:
    """Draw with our style whatever the user's own settings are."""
    with matplotlib.style.context(["default", _STYLE]):
        yield


def line_style(position: int) -> dict[str, Any]:
    """Return colour, marker and dashes of the line at a position; the first 32 all differ.

    Parameters
    ----------
    position : int
    """
    turn = position // len(COLOURS)
    return {
        "color": COLOURS[position % len(COLOURS)],
        "marker": MARKERS[position % len(MARKERS)],
        # A single point has no dashes to be told by: every second turn its marker is hollow.
        "markerfacecolor": "white" if turn % 2 else COLOURS[position % len(COLOURS)],
        "linestyle": LINES[turn % len(LINES)],
    }


def grid(n: int) -> tuple[int, int]:
    """Return rows and columns for n panels: up to three side by side, four as a square.

    Parameters
    ----------
    n : int
    """
    columns = 2 if n == 4 else min(n, 3)
    return math.ceil(n / columns), columns


def panels(
    rows: int, columns: int, title: str, width: float, height: float, n: int
) -> tuple[Figure, list[Axes]]:
    """Return a figure with n panels of the given size in inches, and its title.

    Parameters
    ----------
    rows, columns : int
    title : str
        A second line in it is for the details.
    width, height : float
        Of one panel.
    n : int
    """
    # A single panel would be too narrow for the title.
    size = (max(width * columns, 6.4), height * rows + 0.7)
    figure = Figure(figsize=size, layout="constrained")
    fits = int(size[0] * _TITLE_CHARACTERS_PER_INCH)
    lines = [part for line in title.splitlines() for part in textwrap.wrap(line, fits)]
    figure.suptitle("\n".join(lines))
    return figure, [figure.add_subplot(rows, columns, position + 1) for position in range(n)]


def legend_below(figure: Figure, handles: Sequence[Artist], labels: Sequence[str]) -> None:
    """Put a legend below all panels, in as many columns as fit, and make room for it.

    Parameters
    ----------
    figure : Figure
    handles : sequence of Artist
    labels : sequence of str
    """
    # matplotlib leaves out names that begin with an underscore.
    names = [shortened(f" {name}" if name.startswith("_") else name) for name in labels]
    width, height = figure.get_size_inches()
    entry = max(map(len, names)) * _INCHES_PER_CHARACTER + _LEGEND_HANDLE
    columns = max(1, min(len(names), int(width / entry)))
    figure.set_size_inches(width, height + 0.2 * math.ceil(len(names) / columns))
    figure.legend(handles, names, loc="outside lower center", ncols=columns)


def error_bars(
    panel: Axes, position: int, xs: Sequence[float], means: Sequence[float], stds: Sequence[float | None]
) -> Any:
    """Draw a line through means with an error bar at each, and return what stands for it in a legend.

    Parameters
    ----------
    panel : Axes
    position : int
        Of the line, for `line_style`.
    xs, means : sequence of float
    stds : sequence of float or None
        None where there is one seed.
    """
    spread = [std or 0.0 for std in stds]
    return panel.errorbar(
        xs,
        means,
        # Where there is no spread to show, no error bar of length 0 either.
        yerr=spread if any(spread) else None,
        linewidth=1.2,
        markersize=5,
        capsize=2,
        elinewidth=0.9,
        **line_style(position),
    )


def whole_numbers() -> MaxNLocator:
    """Return ticks at round whole numbers."""
    return MaxNLocator(integer=True, steps=[1, 2, 5, 10])


def shortened(name: str, most: int = _LABEL_CHARACTERS) -> str:
    """Return a name with its middle left out, if it is too long for a legend.

    Examples
    --------
    >>> shortened("package.of.somebody.with.long.names:Method", 20)
    'package.o…mes:Method'
    """
    if len(name) <= most:
        return name
    left = (most - 1) // 2
    return f"{name[:left]}…{name[len(name) - (most - 1 - left) :]}"


def image_bytes(figure: Figure) -> dict[str, bytes]:
    """Return a figure as PNG and SVG, without dates or versions in them.

    Parameters
    ----------
    figure : Figure

    Returns
    -------
    dict
        ``png`` and ``svg`` → content of the file.
    """
    files = {}
    for kind, metadata in {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}.items():
        stream = io.BytesIO()
        figure.savefig(stream, format=kind, dpi=DPI, metadata=metadata)
        files[kind] = stream.getvalue()
        # Both files have one layout, and working it out takes as long as drawing.
        figure.set_layout_engine("none")
    return files
