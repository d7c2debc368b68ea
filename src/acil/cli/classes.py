"""`acil rename` and `acil merge-classes`: classes are named by people, and grouped by them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated, Any

import typer

from acil.cli.shared import AsJson, Model, Undo, counted, echo_json, table
from acil.errors import InputError

_TABLE = "CSV of class and new name, a line for each that gets one."


def rename(
    model: Model,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="The name that a class has, and the new one.", metavar="OLD NEW"),
    ] = None,
    table_: Annotated[
        Path | None, typer.Option("--table", help=f"{_TABLE} Names may be swapped.")
    ] = None,
    undo: Undo = True,
    as_json: AsJson = False,
) -> None:
    """Give a class another name, or many of them at once.

    Nothing else changes: samples of the class are forgotten, and more of them are learnt, under the new
    name.
    """
    if (table_ is None) == (not names) or len(names or ()) not in (0, 2):
        raise typer.BadParameter("Give OLD and NEW, or --table FILE.", param_hint="OLD NEW")
    renamed = dict([names]) if names else _read(table_)
    from acil.growing import ModelFile

    file = ModelFile(model, undo=undo)
    _tell(file, file.rename_classes(renamed).report, renamed, as_json)


def merge_classes(
    model: Model,
    names: Annotated[
        list[str] | None, typer.Argument(help="Classes that become one.", metavar="CLASS…")
    ] = None,
    into: Annotated[
        str | None, typer.Option(help="Name of the new class; one that is there may be among them.")
    ] = None,
    table_: Annotated[
        Path | None, typer.Option("--table", help=f"{_TABLE} Those of one name become one.")
    ] = None,
    undo: Undo = True,
    as_json: AsJson = False,
) -> None:
    """Make one class of several, exactly and without samples.

    The model becomes the one that learnt all of their samples under the new name. It cannot tell them
    apart any more, and they cannot be separated but by `acil undo`.
    """
    if (table_ is None) == (not names) or (into is None) != (not names):
        raise typer.BadParameter(
            "Give classes and --into NAME, or --table FILE.", param_hint="CLASS… --into"
        )
    groups = dict.fromkeys(names, into or "") if names else _read(table_)
    from acil.growing import ModelFile

    file = ModelFile(model, undo=undo)
    _tell(file, file.merge_classes(groups).report, groups, as_json)


def _read(path: Any) -> dict[str, str]:
    """Return pairs of a table: of the class, and of its new name."""
    from acil.encoders.images.listing import delimiter_of

    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [row for row in csv.reader(file, delimiter=delimiter_of(path)) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"Cannot read {path}: {error}. Give a CSV file in UTF-8.") from None
    rows = [[cell.strip() for cell in row] for row in rows]
    if rows and [cell.lower() for cell in rows[0]] in (["class", "name"], ["class", "group"]):
        del rows[0]
    for number, row in enumerate(rows, start=1):
        if len(row) != 2 or not all(row):
            raise InputError(f"{path}, row {number}: give a class and its new name, found {row}.")
    names = {old for old, _ in rows}
    if not rows or len(names) < len(rows):
        raise InputError(
            f"{path} has {'no rows' if not rows else 'a class twice'}. Give each class once."
        )
    return dict(rows)


def _tell(file: Any, report: Any, names: dict[str, str], as_json: bool) -> None:
    """Print what classes are called now, and how many samples they have."""
    if as_json:
        facts = {"model": str(file.path), "undo_left": file.undo_left}
        echo_json({**facts, "counts": report.counts, "totals": report.totals})
        return
    rows = [(old, "→", new, report.totals[new]) for old, new in names.items()]
    typer.echo(table([("class", "", "is now", "samples"), *rows], right=(3,)))
    typer.echo(f"{file.path} knows {counted(len(report.totals), 'class', 'classes')}")
