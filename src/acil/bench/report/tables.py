"""The tables of a report: their columns, rows, titles and notes."""

from __future__ import annotations

import re

from acil.bench.protocols import FEW, MANY, TESTED_EVERY
from acil.bench.published import (
    Published,
    ablation,
    elsewhere,
    pretrained,
    protocol_name,
    published,
)
from acil.bench.report.collect import BASE, known_method
from acil.bench.report.render import Column, Table, Value
from acil.bench.report.rows import SHORT_NAMES, Cell, Comparison, Row, Run, Stat, differing, plain

_K = Column("phases", "K", "count", "$K$", only_if_varied=True)
_METHOD = Column("method", "Method")
_METHOD_IF_SEVERAL = Column("method", "Method", only_if_varied=True)
# Seeds tried, and how many of them failed
_SEEDS = (Column("seeds", "Seeds", "count", only_if_varied=True), Column("failed", "Failed", "count"))
_AVERAGE = Column("average_accuracy", "Ā (%)", "percent", r"$\bar{A}$ (\%)")
_PUBLISHED = (
    Column("published_average_accuracy", "Published Ā", "percent"),
    Column("difference", "Difference", "difference"),
)
_LAST = Column("last_accuracy", "A_K (%)", "percent", r"$A_K$ (\%)")
_FORGETTING = Column("forgetting", "F (%)", "percent", r"$F$ (\%)")
_SAMPLES = Column("samples_bytes", "Samples kept", "bytes")
_STATISTICS = Column("statistics_bytes", "Statistics kept", "bytes")
_KEPT = Column("kept_bytes", "Kept in all", "bytes")
_WEIGHTS = Column("weights_bytes", "Weights", "bytes")
_SECONDS = Column("seconds", "Later phases (s)", "seconds")

_JOINT = Column("joint_difference", "Joint difference", "scientific")

#: Suite → what its table is about.
_SUBJECTS = {
    "main": "Comparison",
    BASE: "Accuracy against the size of the base",
    "long-tailed": "Long tail",
    "si-blurry": "Si-Blurry",
    "ablation": "Ablation of expansion and regularization",
    "width": "Accuracy against expansion size",
    "memory": "Accuracy against memory",
}
_COLUMNS = {
    "main": (
        *(_K, _METHOD, *_SEEDS, _AVERAGE, *_PUBLISHED, _LAST, _FORGETTING),
        Column("published_forgetting", "Published F", "percent"),
        *(_SAMPLES, _STATISTICS, Column("base_seconds", "Phase 0 (s)", "seconds"), _SECONDS),
        _JOINT,
        Column("condition", "κ", "scientific"),
        Column("peak_bytes", "Peak memory", "bytes", only_in_csv=True),
    ),
    "long-tailed": (
        *(_K, _METHOD, *_SEEDS, _AVERAGE, _LAST),
        *(
            Column(f"accuracy_{name}", f"A_K, {name} (%)", "percent")
            for name in ("many", "medium", "few")
        ),
        *(_FORGETTING, _STATISTICS, _SECONDS, _JOINT),
    ),
    "si-blurry": (
        *(_K, _METHOD, *_SEEDS, Column("anytime_accuracy", "A_AUC (%)", "percent")),
        Column("average_accuracy", "A_Avg (%)", "percent"),
        Column("last_accuracy", "A_Last (%)", "percent"),
        *(_FORGETTING, _STATISTICS, Column("all_seconds", "Seconds", "seconds"), _JOINT),
    ),
    BASE: (
        *(_K, _METHOD_IF_SEVERAL, Column("base_classes", "Base classes", "count"), *_SEEDS),
        Column("base_phase_accuracy", "A_0 (%)", "percent", r"$A_0$ (\%)"),
        *(_AVERAGE, _LAST, _FORGETTING),
    ),
    "ablation": (
        *(_K, _METHOD_IF_SEVERAL, Column("expansion", "Expansion"), Column("gamma", "γ", "count")),
        *(*_SEEDS, _AVERAGE, *_PUBLISHED, _LAST, _FORGETTING),
    ),
    "width": (
        *(_K, _METHOD_IF_SEVERAL, Column("expansion", "Expansion size", "count"), *_SEEDS),
        *(_AVERAGE, _LAST, _FORGETTING, _STATISTICS, _WEIGHTS, _SECONDS),
    ),
    "memory": (_K, _METHOD, *_SEEDS, _SAMPLES, _STATISTICS, _KEPT, _WEIGHTS, _AVERAGE, _LAST),
}
_NOTES: dict[str, tuple[str, ...]] = {
    "long-tailed": (
        f"Many: classes with more than {MANY} training samples; few: with at most {FEW}. All test "
        "samples count, so that classes count alike where they have as many.",
    ),
    "si-blurry": (
        f"K: tasks. A_AUC: mean of tests after every {TESTED_EVERY:,} samples; A_Avg: of those at the "
        "end of each task; F: what a class loses from its best end of a task to the last one, mean over "
        "classes.",
    ),
    BASE: (
        "A_0: accuracy after phase 0, on the base classes alone.",
        "All other numbers of these runs are in main.csv.",
    ),
    "memory": (
        "Kept in all: samples and statistics after the last phase, without the network's weights.",
    ),
}
#: Numbers of summaries that only some protocols have.
_OF_PROTOCOLS = ("accuracy_many", "accuracy_medium", "accuracy_few", "anytime_accuracy")
#: The setting that a suite has a column for, and that labels therefore leave out.
_SETTING = {BASE: BASE, "width": "expansion_size"}

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
            values += [mean, _difference(mean, _published("main", comparison, row, k))]
        rows.append(values)
    title = f"Average accuracy on {described(comparison)}"
    # Messages of failed runs are below the full table.
    return Table("overview", title, columns, rows, _spread_notes(comparison))


def suite_table(suite: str, comparison: Comparison) -> Table:
    """Return the table of a suite that has all its numbers: a row for each method, settings and K.

    Beside the numbers of ``main`` and ``ablation`` are those of the paper; the rows of ``memory`` go by
    the bytes that are kept.
    """
    columns = list(_COLUMNS[suite])
    if suite == "ablation":
        methods = {row.method for row in comparison.rows}
        alike = [[row.settings for row in comparison.rows if row.method == name] for name in methods]
        names = {name for variants in alike for name in differing(variants)}
        others = sorted(names - {"expansion_size", "gamma"})
        columns[4:4] = [Column(name, SHORT_NAMES.get(name, name)) for name in others]
    cells = [_values(suite, comparison, k, row, cell) for k, row, cell in comparison.cells()]
    if suite == "memory":
        cells.sort(
            key=lambda row: (row["phases"], row["kept_bytes"] is not None, row["kept_bytes"] or 0)
        )
    rows = [[values.get(column.key) for column in columns] for values in cells]
    # What all rows have in common, unless it has a column
    facts = {"dataset", "order", "recipe", "base_classes", "classes"} - {c.key for c in columns}
    about = {name: value for name, value in vars(comparison).items() if name in facts}
    notes = [*_spread_notes(comparison), *failure_notes(comparison), *_NOTES.get(suite, ())]
    notes += _never_shown(comparison)
    if suite == "main" and comparison.base_classes == 0:
        # Features say in their settings which data set they are of.
        named = {str(row.settings.get("data.published_as", "")) for row in comparison.rows}
        lines = [line for name in sorted({comparison.dataset, *named}) for line in pretrained(name)]
        notes += [f"Published, pre-trained, from zero: {line}." for line in lines]
    if suite in ("main", "ablation"):
        notes += _published_notes(suite, comparison)
    return Table(suite, f"{_SUBJECTS[suite]} on {described(comparison)}", columns, rows, notes, about)


def _values(suite: str, comparison: Comparison, k: int, row: Row, cell: Cell) -> dict[str, Value]:
    """Return what the columns of a table show of one cell, by their keys."""
    average, paper = _average(cell), _published(suite, comparison, row, k)
    label = comparison.label_without(row, _SETTING[suite]) if suite in _SETTING else row.label
    method = known_method(row.method)
    unlike = method is not None and not method.analytic_heads  # it has neither expansion nor γ
    return {
        **{name: plain(value) for name, value in row.settings.items()},
        "phases": k,
        "method": row.method if suite == "ablation" else label,
        "base_classes": row.settings.get(BASE),
        "expansion": None if unlike else plain(row.settings.get("expansion_size", "yes")),
        "gamma": row.settings.get("gamma"),
        "seeds": len(cell.tried),
        "failed": len(cell.failed) or None,
        "base_phase_accuracy": cell.first_accuracy(),
        "average_accuracy": average,
        "published_average_accuracy": paper.average_accuracy if paper else None,
        "difference": _difference(average, paper),
        "last_accuracy": cell.over_seeds("last_accuracy"),
        "forgetting": cell.over_seeds("forgetting"),
        **{name: cell.over_seeds(name) for name in _OF_PROTOCOLS},
        "all_seconds": cell.seconds(lambda phase: True),
        "published_forgetting": paper.forgetting if paper else None,
        "samples_bytes": cell.kept("samples"),
        "statistics_bytes": cell.kept("statistics"),
        "kept_bytes": cell.kept("samples", "statistics"),
        "weights_bytes": cell.kept("weights"),
        "base_seconds": cell.seconds(lambda phase: phase == 0),
        "seconds": cell.seconds(lambda phase: phase > 0),
        "joint_difference": cell.worst("joint_difference"),
        "condition": cell.worst("condition"),
        "peak_bytes": cell.peak(),
    }


def described(comparison: Comparison) -> str:
    """Return what a table is about: data, order, recipe, classes, the only K and seeds."""
    parts = [f"order {comparison.order}", f"recipe {comparison.recipe}"]
    if comparison.protocol == "si-blurry":
        parts.append(f"a stream of {comparison.classes} classes")
        if comparison.base_classes:
            parts.append(f"without the {comparison.base_classes} of the network")
    elif comparison.base_classes == 0:
        parts.append(f"{comparison.classes} classes from zero")
    elif comparison.base_classes is not None and comparison.classes is not None:
        parts.append(f"{comparison.base_classes} of {comparison.classes} classes in phase 0")
    elif comparison.classes is not None:
        parts.append(f"{comparison.classes} classes")
    if len(comparison.phases) == 1:
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
    for (short, _), same in alike.items():
        k, row, run = same[0]
        where = f"{row.label}, K = {k}, seed {run.identity['seed']}"
        others = f"; {len(same) - 1} more runs likewise" if len(same) > 1 else ""
        notes.append(f"{short} ({where}{others}): {_message(run)}".replace("1 more runs", "1 more run"))
    return notes


def _message(run: Run) -> str:
    return str(run.failure["error"]) if run.failure else ""


def _average(cell: Cell) -> Stat | str | None:
    """Return Ā over seeds; if no seed was finished, why."""
    average = cell.over_seeds("average_accuracy")
    return reason(cell.failed[0]) if average is None and not cell.runs and cell.failed else average


def _difference(mean: Stat | str | None, paper: Published | None) -> float | None:
    if not isinstance(mean, Stat) or paper is None or paper.average_accuracy is None:
        return None
    return mean.mean - paper.average_accuracy


def _published(suite: str, comparison: Comparison, row: Row, k: int) -> Published | None:
    """Return the published numbers of a row, if our run follows their protocol and their recipe."""
    changed = any(name.startswith("recipe.") for name in row.settings)
    if changed or not comparison.is_published_protocol:
        return None
    if suite != "ablation":
        return published(protocol_name(comparison.dataset), row.method, k, comparison.recipe)
    gamma, expanded = row.settings.get("gamma"), row.settings.get("expansion_size", "yes") is not None
    if (comparison.recipe, row.method) != ("paper", "acil") or not isinstance(gamma, int | float):
        return None
    return ablation(comparison.dataset, expanded, gamma, k)


def _never_shown(comparison: Comparison) -> list[str]:
    """Name the classes that a stream never showed, for each seed and K."""
    seeds_by_names: dict[str, list[str]] = {}
    for k, _, cell in comparison.cells():
        for run in cell.runs:
            names = (run.summary or {}).get("never_shown")
            if names:
                seeds = seeds_by_names.setdefault(", ".join(names), [])
                place = f"K = {k}, seed {run.identity['seed']}"
                seeds += [place] if place not in seeds else []
    return [f"Never shown ({'; '.join(places)}): {names}." for names, places in seeds_by_names.items()]


def _spread_notes(comparison: Comparison) -> tuple[str, ...]:
    several = any(len(cell.runs) > 1 for _, _, cell in comparison.cells())
    return ("Mean ± standard deviation (n − 1) over seeds.",) if several else ()


def _published_notes(suite: str, comparison: Comparison) -> list[str]:
    """Return sources and caveats of the paper's numbers, and beside a comparison what others report."""
    sources: list[str] = []
    remarks: list[str] = []
    others: dict[str, list[str]] = {}
    for k, row, _ in comparison.cells() if comparison.is_published_protocol else ():
        paper = _published(suite, comparison, row, k)
        if paper:
            sources.append(f"Published: {paper.source}.")
            remarks += [note if suite == "ablation" else f"{row.method}: {note}" for note in paper.notes]
        if suite == "ablation":
            continue
        for other in elsewhere(protocol_name(comparison.dataset), row.method, k):
            if other == paper:
                continue
            about = f"{row.method}, Ā elsewhere ({other.source}): " + " ".join([*other.notes, ""])
            value = "≈ " * other.approximate + f"{other.average_accuracy:.2f} at K = {k}"
            listed = others.setdefault(about, [])
            # Variants of one method share what others report of it.
            listed += [value] if value not in listed else []
    lines = [f"{about}{', '.join(values)}." for about, values in sorted(others.items())]
    return [*dict.fromkeys(sources), *dict.fromkeys(remarks), *lines]
