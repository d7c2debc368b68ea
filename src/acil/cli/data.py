"""`acil data`: make data sets ready for benchmarks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from acil.cli.shared import AsJson, assignment, echo_json, progress_bars, table, tell

app = typer.Typer(no_args_is_help=True, help="Make data sets ready for benchmarks.")


@app.command()
def prepare(
    name: Annotated[
        str, typer.Argument(help="digits, cifar100, imagefolder:DIR, features:FILE …", metavar="NAME")
    ],
    root: Annotated[
        Path | None,
        typer.Option(help="Folder of the data.", envvar="ACIL_DATA", metavar="DIR", show_default=False),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Fetch the official archive from here instead.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Fetch and unpack again.")] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out images that cannot be read.")
    ] = False,
    options: Annotated[
        list[str] | None,
        typer.Option("--set", help="Option of the data set, such as size=224.", metavar="KEY=VALUE"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a data set, or take its archive; check and unpack it."""
    from acil.bench.datasets import prepare as prepare_data
    from acil.bench.training.settings import parse_value

    chosen = {key: parse_value(value) for key, value in map(assignment, options or [])}

    start = time.perf_counter()
    try:
        with progress_bars() as progress:
            dataset = prepare_data(
                name, root, url=url, force=force, skip_bad=skip_bad, progress=progress, **chosen
            )
    except KeyboardInterrupt:
        tell("Stopped. Run the same command again: what is done and kept is not done anew.")
        raise
    report = {
        "dataset": dataset.name,
        "root": None if root is None else str(root),
        "train": len(dataset.train),
        "test": len(dataset.test),
        "classes": len(dataset.class_names),
        "shape": " x ".join(str(length) for length in dataset.train.shape),
        "skipped": len(dataset.skipped),
        "identity": dataset.identity,
        "seconds": round(time.perf_counter() - start, 2),
    }
    if as_json:
        echo_json(report)
    else:
        typer.echo(table(report.items()))
