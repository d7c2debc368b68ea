"""How time grows with samples, classes, width and phases: one thing varies, the others stay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from benchmarks.heads import learn_all
from benchmarks.problem import Problem

#: What varies → its values, and the settings that stay (width beside those of `Problem`).
FULL: dict[str, tuple[Sequence[int], dict[str, int]]] = {
    "samples": (
        (2000, 4000, 8000, 16_000, 32_000, 64_000),
        {"width": 1024, "classes": 20, "phases": 5},
    ),
    "classes": ((20, 80, 320, 1280, 2560), {"width": 1024, "rows": 8000, "phases": 5}),
    "width": ((512, 1024, 2048, 4096), {"rows": 8000, "classes": 50, "phases": 5}),
    "phases": ((1, 2, 4, 8, 16, 32, 64), {"width": 2048, "rows": 16_000, "classes": 130}),
}
QUICK: dict[str, tuple[Sequence[int], dict[str, int]]] = {
    "samples": ((250, 500, 1000), {"width": 128, "classes": 20, "phases": 2}),
    "classes": ((20, 40, 80), {"width": 128, "rows": 500, "phases": 2}),
    "width": ((64, 128, 256), {"rows": 500, "classes": 20, "phases": 2}),
    "phases": ((1, 2, 4), {"width": 128, "rows": 500, "classes": 20}),
}
_ROUNDS = 2


def measure(quick: bool) -> list[dict[str, Any]]:
    """Return seconds for each value of each thing, with the exponent fitted to all its values."""
    found = []
    for what, (values, fixed) in (QUICK if quick else FULL).items():
        key = "rows" if what == "samples" else what
        # Values take turns, so that all meet the same machine; the fastest of each counts.
        rounds = [[_timed({**fixed, key: value}) for value in values] for _ in range(_ROUNDS)]
        times = [min(taken) for taken in zip(*rounds, strict=True)]
        exponent = fitted_exponent(values, times)
        found += [
            {"varied": what, "value": value, "fixed": fixed, "seconds": taken, "exponent": exponent}
            | {"ratio": taken / times[0]}
            for value, taken in zip(values, times, strict=True)
        ]
    return found


def fitted_exponent(values: Sequence[float], times: Sequence[float]) -> float:
    """Return the slope of the straight line through (log value, log time), by least squares.

    Examples
    --------
    >>> round(fitted_exponent([1, 2, 4], [3, 12, 48]), 12)
    2.0
    """
    x, y = [math.log(v) for v in values], [math.log(t) for t in times]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - mean_x) ** 2 for a in x)


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each thing varied: its range, the first and last time, the exponent."""
    found = []
    for what in dict.fromkeys(row["varied"] for row in rows):
        part = [row for row in rows if row["varied"] == what]
        fixed = ", ".join(f"{value:,} {_WORDS[name]}" for name, value in part[0]["fixed"].items())
        found.append({"varied": what, "range": f"{part[0]['value']:,} … {part[-1]['value']:,}"})
        found[-1] |= {"fixed": fixed, "first": part[0]["seconds"], "last": part[-1]["seconds"]}
        found[-1] |= {"ratio": part[-1]["ratio"], "exponent": part[0]["exponent"]}
        values, times = ([row[key] for row in part[-2:]] for key in ("value", "seconds"))
        found[-1]["end"] = fitted_exponent(values, times)
    return found


_WORDS = {"width": "wide", "rows": "rows", "classes": "classes", "phases": "phases"}


def draw(rows: list[dict[str, Any]], folder: Path) -> Path:
    """Draw the four curves, with the line that was fitted, and return the file."""
    names = list(dict.fromkeys(row["varied"] for row in rows))
    figure, axes = plt.subplots(1, len(names), figsize=(3.1 * len(names), 3.1), layout="constrained")
    for axis, what in zip(axes, names, strict=True):
        part = [row for row in rows if row["varied"] == what]
        x, y = [row["value"] for row in part], [row["seconds"] for row in part]
        exponent = part[0]["exponent"]
        middle = math.exp(sum(math.log(t / v**exponent) for v, t in zip(x, y, strict=True)) / len(x))
        axis.loglog(x, [middle * v**exponent for v in x], color="0.7", linewidth=1.5)
        axis.loglog(x, y, "o", color="#1f5fa8", markersize=5)
        end = fitted_exponent(x[-2:], y[-2:])
        axis.set_title(f"{what}: exponent {exponent:.2f}, at the end {end:.2f}", fontsize=9)
        axis.set_xlabel(f"number of {what}" if what != "width" else "width d")
        axis.set_xticks(x, [f"{v:,}" for v in x], rotation=45, fontsize=8)
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        for line in (axis.xaxis, axis.yaxis):
            line.set_minor_locator(NullLocator())
        # Room for two labels at least, also where time hardly changes
        axis.set_ylim(min(y) / 1.5, max(y) * 1.5)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("seconds")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "growth.png"
    figure.savefig(target, dpi=130)
    plt.close(figure)
    return target


def _timed(settings: dict[str, int]) -> float:
    width = settings["width"]
    phases = Problem(**{name: value for name, value in settings.items() if name != "width"}).make()
    return learn_all(phases, width, solver="gram", dtype="float64")
