"""`--gate HELD_OUT` of the commands that change a model: its options, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from acil.cli.given import Columns, given
from acil.cli.shared import counted, tell
from acil.errors import InputError

HeldOut = Annotated[
    Path | None,
    typer.Option(
        "--gate",
        help="Refuse the change, with exit code 3, if the model would do worse on these samples of the "
        "classes that it knows: none of them learnt, given like those to learn.",
        metavar="HELD_OUT",
    ),
]
MaxDrop = Annotated[
    float | None,
    typer.Option(
        "--max-drop",
        min=0,
        max=100,
        help="Percentage points of accuracy that --gate lets a change lose (default: 0.5).",
    ),
]


def require_gate(held_out: Path | None, max_drop: float | None) -> None:
    """Raise if --max-drop is given without --gate, or there are no held-out samples."""
    if held_out is None and max_drop is not None:
        raise typer.BadParameter("It belongs to --gate HELD_OUT: give both.", param_hint="--max-drop")
    if held_out is not None and not held_out.exists():
        raise InputError(f"There are no held-out samples at {held_out}. Check the path of --gate.")


def gate_of(
    held_out: Path,
    max_drop: float | None,
    file: Any,
    begin: Any,
    columns: Columns = (None, None),
) -> Any:
    """Return the gate of a change of this model file."""
    from acil.growing.gate import MAX_DROP, Gate

    found = given([held_out], model=file.path, columns=columns)
    samples = found.prepared(file, begin, what="held-out samples")
    return Gate(samples, MAX_DROP if max_drop is None else max_drop)


def tell_measured(measured: Mapping[str, Any]) -> None:
    """Say what a gate has measured."""
    if "accuracy" in measured:
        number = counted(int(measured["samples"]), "held-out sample")
        before = (
            f"; of the classes known before {measured['after']:.2f} %, before {measured['before']:.2f} %"
        )
        tell(
            f"accuracy {measured['accuracy']:.2f} % of {number}{before if 'before' in measured else ''}"
        )
