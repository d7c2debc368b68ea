"""Differences between methods, seed by seed, with their 95 % interval."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from scipy.special import stdtrit

from acil.bench.report.render import Column, Table, Value
from acil.bench.report.rows import Comparison, Row
from acil.bench.report.tables import described

#: Number of a summary → how its difference is called, by suite; only these suites have such tables.
_NUMBERS = {
    "main": {"average_accuracy": "Ā", "last_accuracy": "A_K"},
    "long-tailed": {"average_accuracy": "Ā", "last_accuracy": "A_K", "accuracy_few": "few"},
    "si-blurry": {"anytime_accuracy": "A_AUC", "average_accuracy": "A_Avg", "last_accuracy": "A_Last"},
}
#: The method that others are compared with, if it is there.
_REFERENCE = "acil"
#: With fewer seeds an interval says nothing.
LEAST_SEEDS = 3
_COVERAGE = 0.95


def paired_table(suite: str, comparison: Comparison) -> Table | None:
    """Return what rows are ahead of the first one of ACIL, or of all; None if no two share three seeds.

    Two runs with the same seed have the same network, and the same split where it is drawn: what these
    move both alike is not in the difference.
    """
    numbers = _NUMBERS.get(suite, {})
    columns = [Column("phases", "K", "count", "$K$", only_if_varied=True), Column("method", "Method")]
    columns += [Column("reference", "Compared with"), Column("seeds", "Seeds", "count")]
    for name, title in numbers.items():
        columns += [
            Column(f"{name}_difference", f"{title}: difference", "difference"),
            Column(f"{name}_low", "from", "difference"),
            Column(f"{name}_high", "to", "difference"),
        ]
    rows: list[list[Value]] = []
    for k in comparison.phases if numbers else ():
        there = [row for row in comparison.rows if k in row.cells and row.cells[k].runs]
        reference = next((row for row in there if row.method == _REFERENCE), there[0] if there else None)
        for row in there:
            if reference is None or row is reference:
                continue
            by_method = {name: _differences(row, reference, k, name) for name in numbers}
            pairs = max(map(len, by_method.values()))
            if pairs < LEAST_SEEDS:
                continue
            values: list[Value] = [k, row.label, reference.label, pairs]
            for differences in by_method.values():
                values += [None] * 3 if len(differences) < LEAST_SEEDS else interval(differences)
            rows.append(values)
    if not rows:
        return None
    notes = (
        "Mean of the differences between runs of one seed, with the 95 % interval of Student's t. It "
        "knows the spread over these seeds: not over class orders, data sets or test images.",
    )
    return Table("paired", f"Paired differences on {described(comparison)}", columns, rows, notes)


def interval(differences: Sequence[float]) -> list[float]:
    """Return the mean of differences, and the ends of its 95 % interval by Student's t.

    Examples
    --------
    >>> [round(value, 3) for value in interval([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484]
    """
    n, mean = len(differences), fmean(differences)
    # mean ± t(n − 1) s / √n
    reach = float(stdtrit(n - 1, (1 + _COVERAGE) / 2)) * stdev(differences) / n**0.5
    return [mean, mean - reach, mean + reach]


def _differences(row: Row, reference: Row, k: int, name: str) -> list[float]:
    """Return what a row is ahead of another one, for each seed that both have."""
    ours, theirs = (
        {run.identity["seed"]: run.summary.get(name) for run in one.cells[k].runs if run.summary}
        for one in (row, reference)
    )
    both = [(ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]
    return [ahead - behind for ahead, behind in both if ahead is not None and behind is not None]
