"""The tables of a report: comparison, size of the base, ablation, width and memory."""

from __future__ import annotations

from acil.benchmark.published import Published, ablation
from acil.benchmark.report.bases import SIZE
from acil.benchmark.report.captions import described, paper_row, published_notes, series, spread_notes
from acil.benchmark.report.failures import average_or_reason, failure_notes
from acil.benchmark.report.labels import SHORT_NAMES, differing, plain
from acil.benchmark.report.render import Column, Table, Value
from acil.benchmark.report.rows import Cell, Comparison, Row, Stat

_AVERAGE = Column("average_accuracy", "Ā (%)", "percent", r"$\bar{A}$ (\%)")
_LAST = Column("last_accuracy", "A_K (%)", "percent", r"$A_K$ (\%)")
_FORGETTING = Column("forgetting", "F (%)", "percent", "$F$ (\\%)")
_PUBLISHED = Column("published_average_accuracy", "Published Ā", "percent")
_DIFFERENCE = Column("difference", "Difference", "difference")
_K = Column("phases", "K", "count", "$K$", only_if_varied=True)
# Seeds tried, and of these the ones without a result
_SEEDS = Column("seeds", "Seeds", "count", only_if_varied=True)
_FAILED = Column("failed", "Failed", "count")
_SAMPLES = Column("samples_bytes", "Samples kept", "bytes")
_STATISTICS = Column("statistics_bytes", "Statistics kept", "bytes")
_WEIGHTS = Column("weights_bytes", "Weights", "bytes")
_METHOD = Column("method", "Method")
_BASE_SECONDS = Column("base_seconds", "Phase 0 (s)", "seconds")
_SECONDS = Column("seconds", "Later phases (s)", "seconds")

_MAIN = (
    *(_K, _METHOD, _SEEDS, _FAILED, _AVERAGE, _PUBLISHED, _DIFFERENCE, _LAST, _FORGETTING),
    Column("published_forgetting", "Published F", "percent"),
    *(_SAMPLES, _STATISTICS, _BASE_SECONDS, _SECONDS),
    Column("joint_difference", "Joint difference", "scientific"),
    Column("condition", "κ", "scientific"),
    Column("peak_bytes", "Peak memory", "bytes", only_in_csv=True),
)


def overview_table(comparison: Comparison) -> Table | None:
    """Return Ā of each method (rows) at each K (columns); None if there is only one K.

    Parameters
    ----------
    comparison : Comparison
    """
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
            mean = average_or_reason(row.cells[k]) if k in row.cells else None
            values += [mean, _difference(mean, paper_row(comparison, row, k))]
        rows.append(values)
    title = f"Average accuracy on {described(comparison, with_phases=False)}"
    # Messages of runs that failed are below the full table.
    return Table("overview", title, columns, rows, spread_notes(comparison))


def main_table(comparison: Comparison) -> Table:
    """Return every number of each method at each K, beside the published ones.

    Parameters
    ----------
    comparison : Comparison
    """
    rows: list[list[Value]] = []
    for k, row, cell in comparison.cells():
        average, paper = average_or_reason(cell), paper_row(comparison, row, k)
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
    title = f"Comparison on {described(comparison)}"
    notes = (*_notes(comparison), *published_notes(comparison))
    return Table("main", title, _MAIN, rows, notes, "phases", comparison.about)


def base_table(comparison: Comparison) -> Table:
    """Return accuracy and forgetting against the number of base classes.

    Parameters
    ----------
    comparison : Comparison
        Of rows that differ in it.
    """
    columns = (
        *(_K, Column("method", "Method", only_if_varied=True)),
        *(Column("base_classes", "Base classes", "count"), _SEEDS, _FAILED),
        Column("base_phase_accuracy", "A_0 (%)", "percent", r"$A_0$ (\%)"),
        *(_AVERAGE, _LAST, _FORGETTING),
    )
    rows: list[list[Value]] = [
        [
            *(k, series(comparison, row, without=SIZE), row.settings[SIZE], *_seeds(cell)),
            *(cell.at_phase(0, "accuracy"), average_or_reason(cell)),
            *(cell.over_seeds("last_accuracy"), cell.over_seeds("forgetting")),
        ]
        for k, row, cell in comparison.cells()
    ]
    title = f"Accuracy against the size of the base on {described(comparison)}"
    about = {name: value for name, value in comparison.about.items() if name != "base_classes"}
    notes = (
        *_notes(comparison),
        "A_0: accuracy after phase 0, on the base classes alone.",
        "All other numbers of these runs are in main.csv.",
    )
    return Table("base", title, columns, rows, notes, "phases", about)


def ablation_table(comparison: Comparison) -> Table:
    """Return what expansion and γ do, beside the paper's ablation.

    Parameters
    ----------
    comparison : Comparison
        Of the suite ``ablation``.
    """
    known = ("expansion_size", "gamma")
    others = [name for name in differing([row.settings for row in comparison.rows]) if name not in known]
    columns = (
        *(_K, Column("method", "Method", only_if_varied=True), Column("expansion", "Expansion")),
        *(
            Column("gamma", "γ", "count"),
            *(Column(name, SHORT_NAMES.get(name, name)) for name in others),
        ),
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
        average = average_or_reason(cell)
        shown = "none" if width is None else plain(width)
        rows.append(
            [
                *(k, row.method, shown, gamma),
                *(plain(row.settings[name]) if name in row.settings else None for name in others),
                *(*_seeds(cell), average, paper.average_accuracy if paper else None),
                *(_difference(average, paper), cell.over_seeds("last_accuracy")),
                cell.over_seeds("forgetting"),
            ]
        )
    title = f"Ablation of expansion and regularization on {described(comparison)}"
    notes = [*_notes(comparison), *dict.fromkeys(remarks)]
    return Table("ablation", title, columns, rows, notes, "phases", comparison.about)


def width_table(comparison: Comparison) -> Table:
    """Return accuracy and cost against the expansion size.

    Parameters
    ----------
    comparison : Comparison
        Of the suite ``width``.
    """
    columns = (
        *(
            _K,
            Column("method", "Method", only_if_varied=True),
            Column("expansion", "Expansion size", "count"),
        ),
        *(_SEEDS, _FAILED, _AVERAGE, _LAST, _FORGETTING, _STATISTICS, _WEIGHTS, _SECONDS),
    )
    rows: list[list[Value]] = [
        [
            *(k, series(comparison, row, without="expansion_size"), _width(row), *_seeds(cell)),
            *(average_or_reason(cell), cell.over_seeds("last_accuracy")),
            *(cell.over_seeds("forgetting"), cell.kept("statistics"), cell.kept("weights")),
            cell.seconds(lambda phase: phase > 0),
        ]
        for k, row, cell in comparison.cells()
    ]
    title = f"Accuracy against expansion size on {described(comparison)}"
    return Table("width", title, columns, rows, _notes(comparison), "phases", comparison.about)


def memory_table(comparison: Comparison) -> Table:
    """Return accuracy against the bytes that a method keeps of what it has seen, fewest first.

    Parameters
    ----------
    comparison : Comparison
    """
    kept = Column("kept_bytes", "Kept in all", "bytes")
    columns = (_K, _METHOD, _SEEDS, _FAILED, _SAMPLES, _STATISTICS, kept, _WEIGHTS, _AVERAGE, _LAST)
    rows: list[list[Value]] = []
    for k, row, cell in comparison.cells():
        samples, statistics = cell.kept("samples"), cell.kept("statistics")
        total = None if samples is None or statistics is None else samples + statistics
        rows.append(
            [
                *(k, row.label, *_seeds(cell), samples, statistics, total, cell.kept("weights")),
                *(average_or_reason(cell), cell.over_seeds("last_accuracy")),
            ]
        )
    rows.sort(key=lambda row: (row[0], row[6] is not None, row[6] or 0))
    title = f"Accuracy against memory on {described(comparison)}"
    notes = ("Kept in all: samples and statistics after the last phase, without the network's weights.",)
    return Table(
        "memory", title, columns, rows, (*_notes(comparison), *notes), "phases", comparison.about
    )


def _seeds(cell: Cell) -> tuple[int, int | None]:
    return len(cell.tried), len(cell.failed) or None


def _notes(comparison: Comparison) -> tuple[str, ...]:
    return (*spread_notes(comparison), *failure_notes(comparison))


def _difference(mean: Stat | str | None, paper: Published | None) -> float | None:
    if not isinstance(mean, Stat) or paper is None or paper.average_accuracy is None:
        return None
    return mean.mean - paper.average_accuracy


def _width(row: Row) -> Value:
    width = row.settings.get("expansion_size")
    return width if isinstance(width, int) else "none" if "expansion_size" in row.settings else None
