"""`acil history` and `acil undo`: what changed when, and back to an earlier state."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from acil.cli.learn import show_counts
from acil.cli.shared import AsJson, Model, counted, echo_json, table, tell


def history(model: Model, as_json: AsJson = False) -> None:
    """Show what changed when, and how accurate the model was.

    The file remembers the last 100 changes: their time, numbers of samples and classes, and what --gate
    measured; no sample and no name. Where the state after a change is kept, acil undo --to N goes back
    to it.
    """
    from acil.core.files import describe
    from acil.growing import ModelFile

    file = ModelFile(model)
    entries, header = file.history(), describe(model)
    kept = {number for number in file.states().values() if number is not None}
    present = len(header["classes"]), header["n_samples"]
    last = entries[-1] if entries else None
    otherwise = last is not None and (last.classes, last.samples) != present
    if as_json:
        changes = [{**entry.to_dict(), "kept": entry.number in kept} for entry in entries]
        echo_json({"model": str(model), "changes": changes, "undo_left": file.undo_left})
        return
    rows = [("", "when (UTC)", "change", "samples", "in model", "classes", "held-out", "state")]
    for entry in entries:
        accuracy, number = (entry.measured.get(name) for name in ("accuracy", "samples"))
        of = "" if number is None else f" of {number:,.0f}"
        now = entry is last and not otherwise
        rows.append(
            (
                str(entry.number),
                entry.time[:16].replace("T", " "),
                entry.action,
                f"{entry.change:+,}" if entry.change else "",
                f"{entry.samples:,}",
                f"{entry.classes:,}",
                "" if accuracy is None else f"{accuracy:.2f} %{of}",
                "now" if now else "kept" if entry.number in kept else "",
            )
        )
    if entries:
        typer.echo(table(rows, right=(0, 3, 4, 5, 6)))
    else:
        typer.echo(f"{model}: no change has been recorded")
    if otherwise:
        tell(f"{model} has been changed since by something that does not record it")
    earlier = [number for number in file.states().values() if number is None]
    if earlier:
        tell(f"kept, too: {counted(len(earlier), 'state')} from before the first change recorded")


def undo(
    model: Model,
    remove: Annotated[
        bool, typer.Option("--remove", help="Change nothing, and delete all earlier states.")
    ] = False,
    to: Annotated[
        int | None,
        typer.Option(min=1, help="Go back to the state after this change; see `acil history`."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Take back the last changes of a model.

    One of them, or with --to N all since change N: the file becomes, bit for bit, what it was. Up to ten
    earlier states are kept, in the folder .MODEL.undo beside the model, as long as they take no more
    than 1 GiB. An undone change is gone: to have it again, learn or forget again.
    """
    from acil.core.files import describe
    from acil.core.files.header import in_order
    from acil.growing import ModelFile

    if remove and to is not None:
        raise typer.BadParameter("It contradicts --remove: give one.", param_hint="--to")
    file = ModelFile(model)
    if remove:
        number = file.remove_states()
        tell(f"removed {counted(number, 'earlier state')} of {model}")
        if as_json:
            echo_json({"model": str(model), "removed": number, "undo_left": 0})
        return

    def compared(state: Path) -> tuple[dict[str, int], dict[str, int]]:
        return _counts(describe(model)) if model.exists() else {}, _counts(describe(state))

    (before, after), _ = file.undo(compared, to)
    left = file.undo_left
    if as_json:
        echo_json({"model": str(model), "totals": after, "undo_left": left})
        return
    names = in_order(name for name in {*before, *after} if before.get(name) != after.get(name))
    show_counts({name: after.get(name, 0) - before.get(name, 0) for name in names}, after)
    when = "before the last change" if to is None else f"after change {to}"
    typer.echo(f"{model} is as it was {when}; {counted(left, 'earlier state')} left")


def _counts(header: dict[str, Any]) -> dict[str, int]:
    return dict(zip(map(str, header["classes"]), header["counts"], strict=True))
