"""The tables of a report: their rows, titles and notes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from acil.benchmark.published import Published, ablation, elsewhere, protocol_name, published
from acil.benchmark.report.collect import BASE
from acil.benchmark.report.render import Column, Table, Value
from acil.benchmark.report.rows import SHORT_NAMES, Cell, Comparison, Row, Run, Stat, differing, plain

_K = Column("phases", "K", "count", "$K$", only_if_varied=True)
_METHOD = Column("method", "Method")
_METHOD_IF_SEVERAL = Column("method", "Method", only_if_varied=True)
# Seeds tried, and how many of them failed
_SEEDS = Column("seeds", "Seeds", "count", only_if_varied=True)
_FAILED = Column("failed", "Failed", "count")
_AVERAGE = Column("average_accuracy", "Ā (%)", "percent", r"$\bar{A}$ (\%)")
_LAST = Column("last_accuracy", "A_K (%)", "percent", r"$A_K$ (\%)")
_FORGETTING = Column("forgetting", "F (%)", "percent", "$F$ (\\%)")
_PUBLISHED = Column("published_average_accuracy", "Published Ā", "percent")
_DIFFERENCE = Column("difference", "Difference", "difference")
_SAMPLES = Column("samples_bytes", "Samples kept", "bytes")
_STATISTICS = Column("statistics_bytes", "Statistics kept", "bytes")
_WEIGHTS = Column("weights_bytes", "Weights", "bytes")
_BASE_SECONDS = Column("base_seconds", "Phase 0 (s)", "seconds")
_SECONDS = Column("seconds", "Later phases (s)", "seconds")

# Part of an error message → the words shown in place of numbers
_REASONS = {
    "not positive definite": "not solvable",
    "condition number of gram": "not solvable",
    "diverged": "diverged",
}
_OTHER_REASON = "failed"


def overview_table(comparison: Comparison) -> Table | None:
    """Return Ā of each method (rows) at each K (columns); None if there is only one K."""
    if len(comparison.phases) < 2:
        return None
    columns = [_METHOD]
    for k in comparison.phases:
        columns.append(Column(f"average_accuracy_{k}", f"Ā (%), K = {k}", "percent"))
        columns.append(Column(f"difference_{k}", "to published", "difference"))
    rows = []
    for row in comparison.rows:
        values: list[Value] = [row.label]
        for k in comparison.phases:
            mean = _average(row.cells[k]) if k in row.cells else None
            values += [mean, _difference(mean, _published(comparison, row, k))]
        rows.append(values)
    title = f"Average accuracy on {described(comparison, with_phases=False)}"
    # Messages of failed runs are below the full table.
    return Table("overview", title, columns, rows, _spread_notes(comparison))


def main_table(comparison: Comparison) -> Table:
    """Return every number of each method at each K, beside the published ones."""
    columns = (
        *(_K, _METHOD, _SEEDS, _FAILED, _AVERAGE, _PUBLISHED, _DIFFERENCE, _LAST, _FORGETTING),
        Column("published_forgetting", "Published F", "percent"),
        *(_SAMPLES, _STATISTICS, _BASE_SECONDS, _SECONDS),
        Column("joint_difference", "Joint difference", "scientific"),
        Column("condition", "κ", "scientific"),
        Column("peak_bytes", "Peak memory", "bytes", only_in_csv=True),
    )
    rows: list[list[Value]] = []
    for k, row, cell in comparison.cells():
        average, paper = _average(cell), _published(comparison, row, k)
        rows.append(
            [
                *(k, row.label, *_seeds(cell), average),
                *(paper.average_accuracy if paper else None, _difference(average, paper)),
                *(cell.over_seeds("last_accuracy"), cell.over_seeds("forgetting")),
                *(paper.forgetting if paper else None, cell.kept("samples"), cell.kept("statistics")),
                *(cell.seconds(lambda phase: phase == 0), cell.seconds(lambda phase: phase > 0)),
                *(cell.worst("joint_difference"), cell.worst("condition"), cell.peak()),
            ]
        )
    return _table("main", "Comparison", comparison, columns, rows, _published_notes(comparison))


def base_table(comparison: Comparison) -> Table:
    """Return accuracy and forgetting against the number of base classes."""
    columns = (
        *(_K, _METHOD_IF_SEVERAL, Column("base_classes", "Base classes", "count"), _SEEDS, _FAILED),
        Column("base_phase_accuracy", "A_0 (%)", "percent", r"$A_0$ (\%)"),
        *(_AVERAGE, _LAST, _FORGETTING),
    )
    rows: list[list[Value]] = [
        [
            *(k, comparison.label_without(row, BASE), row.settings[BASE], *_seeds(cell)),
            *(cell.at_phase(0, "accuracy"), _average(cell)),
            *(cell.over_seeds("last_accuracy"), cell.over_seeds("forgetting")),
        ]
        for k, row, cell in comparison.cells()
    ]
    notes = (
        "A_0: accuracy after phase 0, on the base classes alone.",
        "All other numbers of these runs are in main.csv.",
    )
    table = _table("base", "Accuracy against the size of the base", comparison, columns, rows, notes)
    del table.about["base_classes"]
    return table


def ablation_table(comparison: Comparison) -> Table:
    """Return the effect of expansion and γ, beside the paper's ablation."""
    known = ("expansion_size", "gamma")
    others = [name for name in differing([row.settings for row in comparison.rows]) if name not in known]
    columns = (
        *(_K, _METHOD_IF_SEVERAL, Column("expansion", "Expansion"), Column("gamma", "γ", "count")),
        *(Column(name, SHORT_NAMES.get(name, name)) for name in others),
        *(_SEEDS, _FAILED, _AVERAGE, _PUBLISHED, _DIFFERENCE, _LAST, _FORGETTING),
    )
    rows: list[list[Value]] = []
    remarks: list[str] = []
    for k, row, cell in comparison.cells():
        width, gamma = row.settings.get("expansion_size", "yes"), row.settings.get("gamma")
        paper = None
        if comparison.is_published_protocol and row.method == "acil" and isinstance(gamma, int | float):
            paper = ablation(comparison.dataset, width is not None, gamma, k)
        if paper:
            remarks += [f"Published: {paper.source}.", *paper.notes]
        average = _average(cell)
        rows.append(
            [
                *(k, row.method, plain(width), gamma),
                *(plain(row.settings[name]) if name in row.settings else None for name in others),
                *(*_seeds(cell), average, paper.average_accuracy if paper else None),
                *(_difference(average, paper), cell.over_seeds("last_accuracy")),
                cell.over_seeds("forgetting"),
            ]
        )
    title = "Ablation of expansion and regularization"
    return _table("ablation", title, comparison, columns, rows, list(dict.fromkeys(remarks)))


def width_table(comparison: Comparison) -> Table:
    """Return accuracy and cost against the expansion size."""
    columns = (
        *(_K, _METHOD_IF_SEVERAL, Column("expansion", "Expansion size", "count")),
        *(_SEEDS, _FAILED, _AVERAGE, _LAST, _FORGETTING, _STATISTICS, _WEIGHTS, _SECONDS),
    )
    rows: list[list[Value]] = []
    for k, row, cell in comparison.cells():
        width = row.settings.get("expansion_size")
        if not isinstance(width, int):
            width = "none" if "expansion_size" in row.settings else None
        rows.append(
            [
                *(k, comparison.label_without(row, "expansion_size"), width, *_seeds(cell)),
                *(_average(cell), cell.over_seeds("last_accuracy")),
                *(cell.over_seeds("forgetting"), cell.kept("statistics"), cell.kept("weights")),
                cell.seconds(lambda phase: phase > 0),
            ]
        )
    return _table("width", "Accuracy against expansion size", comparison, columns, rows)


def memory_table(comparison: Comparison) -> Table:
    """Return accuracy against the bytes that a method keeps of its data, fewest first."""
    kept = Column("kept_bytes", "Kept in all", "bytes")
    columns = (_K, _METHOD, _SEEDS, _FAILED, _SAMPLES, _STATISTICS, kept, _WEIGHTS, _AVERAGE, _LAST)
    rows: list[list[Value]] = [
        [
            *(k, row.label, *_seeds(cell), cell.kept("samples"), cell.kept("statistics")),
            *(cell.kept("samples", "statistics"), cell.kept("weights")),
            *(_average(cell), cell.over_seeds("last_accuracy")),
        ]
        for k, row, cell in comparison.cells()
    ]
    rows.sort(key=lambda row: (row[0], row[6] is not None, row[6] or 0))
    notes = ["Kept in all: samples and statistics after the last phase, without the network's weights."]
    return _table("memory", "Accuracy against memory", comparison, columns, rows, notes)


def described(comparison: Comparison, with_phases: bool = True) -> str:
    """Return what a table is about: data, order, recipe, classes, the only K (if wanted) and seeds."""
    parts = [f"order {comparison.order}", f"recipe {comparison.recipe}"]
    if comparison.base_classes == 0:
        parts.append(f"{comparison.classes} classes from zero")
    elif comparison.base_classes is not None and comparison.classes is not None:
        parts.append(f"{comparison.base_classes} of {comparison.classes} classes in phase 0")
    elif comparison.classes is not None:
        parts.append(f"{comparison.classes} classes")
    if with_phases and len(comparison.phases) == 1:
        parts.append(f"K = {comparison.phases[0]}")
    counts = sorted({len(cell.tried) for _, _, cell in comparison.cells()})
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    parts.append(f"{seeds} seed" + "s" * (seeds != "1"))
    return f"{comparison.dataset} ({', '.join(parts)})"


def reason(run: Run) -> str:
    """Return in a word or two why a run failed."""
    message = _message(run)
    return next((short for part, short in _REASONS.items() if part in message), _OTHER_REASON)


def failure_notes(comparison: Comparison) -> list[str]:
    """Return each error message once; messages that differ only in numbers count as one."""
    alike: dict[tuple[str, str], list[tuple[int, Row, Run]]] = {}
    partly = False
    for k, row, cell in comparison.cells():
        partly = partly or bool(cell.runs and cell.failed)
        for run in cell.failed:
            short = reason(run)
            kind = "" if short != _OTHER_REASON else re.sub(r"\d+", "", _message(run))
            alike.setdefault((short, kind), []).append((k, row, run))
    notes = ["Failed: seeds without a result; means are over the others."] if partly else []
    for (short, _), found in alike.items():
        k, row, run = found[0]
        where = f"{row.label}, K = {k}, seed {run.identity['seed']}"
        others = f"; {len(found) - 1} more runs likewise" if len(found) > 1 else ""
        notes.append(f"{short} ({where}{others}): {_message(run)}".replace("1 more runs", "1 more run"))
    return notes


def _message(run: Run) -> str:
    return str(run.failure["error"]) if run.failure else ""


def _table(
    name: str,
    subject: str,
    comparison: Comparison,
    columns: Sequence[Column],
    rows: list[list[Value]],
    notes: Sequence[str] = (),
) -> Table:
    every = (*_spread_notes(comparison), *failure_notes(comparison), *notes)
    return Table(name, f"{subject} on {described(comparison)}", columns, rows, every, comparison.about)


def _average(cell: Cell) -> Stat | str | None:
    """Return Ā over seeds; if no seed was finished, why."""
    average = cell.over_seeds("average_accuracy")
    return reason(cell.failed[0]) if average is None and not cell.runs and cell.failed else average


def _seeds(cell: Cell) -> tuple[int, int | None]:
    return len(cell.tried), len(cell.failed) or None


def _difference(mean: Stat | str | None, paper: Published | None) -> float | None:
    if not isinstance(mean, Stat) or paper is None or paper.average_accuracy is None:
        return None
    return mean.mean - paper.average_accuracy


def _published(comparison: Comparison, row: Row, k: int) -> Published | None:
    """Return the published numbers of a row, if our run follows their protocol."""
    if not comparison.is_published_protocol:
        return None
    return published(protocol_name(comparison.dataset), row.method, k, comparison.recipe)


def _spread_notes(comparison: Comparison) -> tuple[str, ...]:
    several = any(len(cell.runs) > 1 for _, _, cell in comparison.cells())
    return ("Mean ± standard deviation (n − 1) over seeds.",) if several else ()


def _published_notes(comparison: Comparison) -> list[str]:
    """Return sources and caveats of the paper's numbers, and what others report."""
    if not comparison.is_published_protocol:
        return []
    sources: list[str] = []
    remarks: list[str] = []
    others: dict[str, list[str]] = {}
    for k, row, _ in comparison.cells():
        paper = _published(comparison, row, k)
        if paper:
            sources.append(f"Published: {paper.source}.")
            remarks += [f"{row.method}: {note}" for note in paper.notes]
        for other in elsewhere(protocol_name(comparison.dataset), row.method, k):
            if other == paper:
                continue
            about = f"{row.method}, Ā elsewhere ({other.source}): " + " ".join([*other.notes, ""])
            value = "≈ " * other.approximate + f"{other.average_accuracy:.2f} at K = {k}"
            found = others.setdefault(about, [])
            # Variants of one method share what others report of it.
            found += [value] if value not in found else []
    lines = [f"{about}{', '.join(values)}." for about, values in sorted(others.items())]
    return [*dict.fromkeys(sources), *dict.fromkeys(remarks), *lines]
