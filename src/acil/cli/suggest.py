"""`acil suggest`: which samples to label next."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from acil.cli.given import SkipBad, TextColumn, given
from acil.cli.shared import (
    AsJson,
    Backbone,
    Force,
    Model,
    counted,
    echo_json,
    require_free,
    short,
    shown_progress,
    table,
    tell,
    tell_skipped,
)
from acil.errors import InputError


def suggest(
    model: Model,
    unlabelled: Annotated[
        list[Path],
        typer.Argument(
            help="Images, folders, CSV of path,label; tables or folders of texts; or a file of features "
            "(npz, parquet, csv).",
            metavar="UNLABELLED",
        ),
    ],
    top: Annotated[int, typer.Option(min=1, help="Number of samples to suggest.")] = 50,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write them here instead (.csv, .jsonl or .parquet)."),
    ] = None,
    links: Annotated[
        Path | None,
        typer.Option(help="Make a new folder here, with numbered links to them.", metavar="FOLDER"),
    ] = None,
    copies: Annotated[bool, typer.Option("--copy", help="Copies instead of links.")] = False,
    text_column: TextColumn = None,
    skip_bad: SkipBad = True,
    force: Force = False,
    as_json: AsJson = False,
    backbone: Backbone = None,
) -> None:
    """List the samples whose label would teach most.

    The best come first: those nearest to the border between two classes. None has been learnt. Label
    them, learn them, and ask again: the next ones depend on what was learnt.
    """
    if copies and links is None:
        raise typer.BadParameter("It belongs to --links FOLDER: give both.", param_hint="--copy")
    from acil.growing import load_classifier
    from acil.growing.outputs import link_into, require_new_folder, require_table, write_predictions

    if output is not None:
        require_free(output, force)
        require_table(output)
    if links is not None:
        require_new_folder(links)
    columns = text_column, None
    asked = given(unlabelled, model=model, columns=columns, skip_bad=skip_bad, labelled=False)
    if links is not None and asked.kind != "images":
        raise InputError("--links needs images: texts, and rows of features, are no files.")
    with shown_progress() as begin:
        classifier = load_classifier(model, backbone=backbone)
        sources = asked.prepared(classifier, begin, skip_bad)
        found = classifier.suggest(sources, top)
    tell_skipped(sources.skipped)
    if not found:
        tell(f"nothing to suggest: all of {counted(len(sources.digests), 'sample')} were learnt before")
    if output is not None:
        write_predictions(found, output)
        tell(f"{output}  {counted(len(found), 'sample')}")
    if links is not None:
        width = len(str(len(found)))
        names = [f"{rank:0{width}}-{Path(p.image).name}" for rank, p in enumerate(found, start=1)]
        link_into(links, zip(names, (p.image for p in found), strict=True), copies)
        tell(
            f"{links}  {counted(len(found), 'copy' if copies else 'link', 'copies' if copies else None)}"
        )
    if as_json:
        echo_json([{**p.to_dict(), "closeness": p.closeness} for p in found])
    elif found and output is None and links is None:
        rows = [("", "sample", "is it")]
        for rank, p in enumerate(found, start=1):
            name = short(p.image) if p.thing == "text" else p.image
            rows.append((str(rank), name, " or ".join(f"{n} {share:.0%}" for n, share in p.top[:2])))
        typer.echo(table(rows, right=(0,)))
