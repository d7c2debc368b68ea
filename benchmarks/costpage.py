"""The cost model in words: coefficients, checks, and plans for large tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.costmodel import Assumptions, Task, file_bytes
from benchmarks.page import table

#: What a step does, and what its cost counts in.
_STEPS = {
    "learn": ("adding n rows to the sums", "s"),
    "solve": ("factorizing, and weights of c classes", "s"),
    "start": ("beginning: memory, drawing the expansion", "s"),
    "memory": ("peak memory", "bytes"),
    "save": ("writing a model file", "s"),
    "reduce2": ("one reduction between 2 processes, gloo", "s"),
    "reduce4": ("one reduction between 4 processes, gloo", "s"),
}


def text(
    figures: Mapping[str, Any],
    plans: Mapping[str, Sequence[Mapping[str, Any]]],
    tasks: Mapping[str, Task],
    assumed: Assumptions,
) -> str:
    """Return the generated part of the page on scale.

    Parameters
    ----------
    figures : mapping
        As `benchmarks.cost` measures them.
    plans : mapping of str to sequence of mapping
        By task, one plan for each number of processes.
    tasks : mapping of str to Task
    assumed : Assumptions
    """
    where = figures["environment"]
    kind = "GPUs" if figures["device"] == "cuda" else f"machines of {where['cores']} cores"
    lines = [
        "",
        f"*{where['machine']}, {where['cores']} cores, {where['threads']} threads, torch "
        f"{where['torch']}, {where['date']}"
        + (", time of the processor" if where["clock"] == "processor" else "")
        + (", sizes of a quick test*" if figures["quick"] else "*"),
        "",
        _coefficients(figures["coefficients"]),
        "",
        "At sizes that the fit has not seen:",
        "",
        _checks(figures["checks"]),
        "",
    ]
    for name, task in tasks.items():
        lines += [_heading(task, figures, kind, assumed), "", _plans(plans[name], kind), ""]
    return "\n".join(lines)


def _coefficients(coefficients: Mapping[str, Mapping[str, float]]) -> str:
    rows = []
    for kind, values in coefficients.items():
        what, unit = _STEPS[kind]
        formula = " + ".join(f"{value:.2e} · {term}" for term, value in values.items() if value)
        rows.append({"what": what, "formula": (formula or "0").replace(" · 1 ", " "), "unit": unit})
        rows[-1]["formula"] = rows[-1]["formula"].removesuffix(" · 1")
    return table(rows, {"what": ("step", ""), "formula": ("fitted", ""), "unit": ("in", "")})


def _checks(checks: Sequence[Mapping[str, Any]]) -> str:
    columns = {"what": ("", ""), "size": ("size", ""), "predicted": ("predicted", ".3g")}
    columns |= {"measured": ("measured", ".3g"), "ratio": ("ratio", ".2f")}
    return table(checks, columns)


def _heading(task: Task, figures: Mapping[str, Any], kind: str, assumed: Assumptions) -> str:
    return (
        f"**{task.rows:,} images of {task.classes:,} classes**, {task.phases} phases after a base of "
        f"half of them, {task.f} features, d = {task.d:,}, float64, on {kind}. Each extracts features "
        f"({figures['network']}) at the measured {figures['rate']:,.0f} images/s. Assumed: reductions "
        f"at {assumed.bandwidth / 1e9:g} GB/s a process; files of {assumed.image_bytes / 1e3:g} kB, "
        f"read at {assumed.storage / 1e9:g} GB/s a process "
        f"({task.rows * assumed.image_bytes / 1e12:,.1f} TB in all). Features kept as float32 would "
        f"take {task.rows * task.f * 4 / 1e12:,.2g} TB; the model file takes "
        f"{file_bytes(task.d, task.classes, task.f) / 1e9:.1f} GB."
    )


def _plans(rows: Sequence[Mapping[str, Any]], kind: str) -> str:
    times = ("features", "sums", "weights", "network", "gloo", "total")
    shown = [
        {"processes": row["processes"], **{name: duration(row[name]) for name in times}}
        | {"speed_up": rows[0]["total"] / row["total"], "memory": row["memory"] / 1e9}
        for row in rows
    ]
    columns = {"processes": (kind.partition(" ")[0], "d"), "features": ("features", "")}
    columns |= {"sums": ("sums", ""), "weights": ("weights", ""), "network": ("network", "")}
    columns |= {"gloo": ("network if by gloo as here", ""), "total": ("total", "")}
    columns |= {"speed_up": ("times one", ".1f"), "memory": ("GB each", ".1f")}
    return table(shown, columns)


def duration(seconds: float | None) -> str:
    """Return seconds as people say them; a dash where there are none.

    Examples
    --------
    >>> duration(0.0), duration(0.25), duration(90), duration(1e4), duration(1e6)
    ('0 s', '0.25 s', '90 s', '2.8 h', '11.6 days')
    """
    if seconds is None:
        return "–"
    if seconds < 300:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"
