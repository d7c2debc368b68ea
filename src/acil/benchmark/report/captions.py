"""What stands around a table or plot: its subject, its sources, and what is missing."""

from __future__ import annotations

from acil.benchmark.published import Published, elsewhere, protocol_name, published
from acil.benchmark.report.collect import Collection
from acil.benchmark.report.labels import differing, label
from acil.benchmark.report.rows import Comparison, Row, Run


def described(comparison: Comparison, with_phases: bool = True) -> str:
    """Return what a table is about: data, order, recipe, classes, K and seeds.

    Parameters
    ----------
    comparison : Comparison
    with_phases : bool
        Name K, if there is only one.
    """
    parts = [f"order {comparison.order}", f"recipe {comparison.recipe}"]
    if comparison.base_classes is not None and comparison.classes is not None:
        parts.append(f"{comparison.base_classes} of {comparison.classes} classes in phase 0")
    elif comparison.classes is not None:
        parts.append(f"{comparison.classes} classes")
    if with_phases and len(comparison.phases) == 1:
        parts.append(f"K = {comparison.phases[0]}")
    counts = sorted({len(cell.tried) for _, _, cell in comparison.cells()})
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    parts.append(f"{seeds} seed" + "s" * (seeds != "1"))
    return f"{comparison.dataset} ({', '.join(parts)})"


def series(comparison: Comparison, row: Row, without: str) -> str:
    """Return the label of a row as if it did not have one of its settings."""
    others = [other.settings for other in comparison.rows if other.method == row.method]
    return label(row.method, row.settings, [name for name in differing(others) if name != without])


def unfinished_notes(collection: Collection) -> list[str]:
    """Return a line for each run that was interrupted."""
    rows = [row for found in collection.suites.values() for c in found for row in c.rows]
    variants = [(row.method, row.settings) for row in rows]
    variants += [(run.identity["method"], run.identity["settings"]) for run in collection.unfinished]
    lines = []
    for run in collection.unfinished:
        what = run.identity
        names = differing([settings for method, settings in variants if method == what["method"]])
        where = f"suite {what['suite']}, order {what['order']}, recipe {what['recipe']}"
        lines.append(
            f"{label(what['method'], what['settings'], names)}, K = {what['phases']}, seed "
            f"{what['seed']}, on {what['dataset']} ({where}): {_state(run)}"
        )
    return lines


def _state(run: Run) -> str:
    if not run.phases:
        return "no phase is finished"
    return f"its last phase is {run.phases[-1]['phase']} of {run.identity['phases']}"


def paper_row(comparison: Comparison, row: Row, k: int) -> Published | None:
    """Return what the source of a row has for it, if our run is under its protocol."""
    if not comparison.is_published_protocol:
        return None
    return published(protocol_name(comparison.dataset), row.method, k, comparison.recipe)


def spread_notes(comparison: Comparison) -> tuple[str, ...]:
    """Return what ± means, where there is one."""
    several = any(len(cell.runs) > 1 for _, _, cell in comparison.cells())
    return ("Mean ± standard deviation (n − 1) over seeds.",) if several else ()


def published_notes(comparison: Comparison) -> list[str]:
    """Return sources and caveats of the paper's numbers, and what others report."""
    if not comparison.is_published_protocol:
        return []
    sources: list[str] = []
    remarks: list[str] = []
    others: dict[str, list[str]] = {}
    for k, row, _ in comparison.cells():
        paper = paper_row(comparison, row, k)
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
