"""Runs that failed: a short word for the table, and the message once below it."""

from __future__ import annotations

import re

from acil.benchmark.report.rows import Cell, Comparison, Row, Run, Stat

# What a message says → what stands in place of numbers. Records have the message, not its class.
_REASONS = (
    ("not positive definite", "not solvable"),
    ("condition number of gram", "not solvable"),
    ("diverged", "diverged"),
)
_OTHER = "failed"


def average_or_reason(cell: Cell) -> Stat | str | None:
    """Return Ā over seeds; where no seed was finished, why.

    Parameters
    ----------
    cell : Cell
    """
    average = cell.over_seeds("average_accuracy")
    return reason(cell.failed[0]) if average is None and not cell.runs and cell.failed else average


def reason(run: Run) -> str:
    """Return in a word or two why a run failed.

    Parameters
    ----------
    run : Run
        One that failed.
    """
    message = _message(run)
    return next((short for part, short in _REASONS if part in message), _OTHER)


def failure_notes(comparison: Comparison) -> list[str]:
    """Return each message once: runs that differ only in numbers share one.

    Parameters
    ----------
    comparison : Comparison
    """
    alike: dict[tuple[str, str], list[tuple[int, Row, Run]]] = {}
    partly = False
    for k, row, cell in comparison.cells():
        partly = partly or bool(cell.runs and cell.failed)
        for run in cell.failed:
            short = reason(run)
            kind = "" if short != _OTHER else re.sub(r"\d+", "", _message(run))
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
