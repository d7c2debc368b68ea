"""`acil predict`: which class, how sure, and whether it is like anything learnt."""

from __future__ import annotations

import csv
import io
import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from acil.cli.images import AsJson, Backbone, Model, aligned, plain, shown_progress


class Format(StrEnum):
    """How predictions are printed."""

    table = "table"
    csv = "csv"
    json = "json"


def predict(
    model: Model,
    images: Annotated[
        list[Path], typer.Argument(help="Images, or folders of images.", metavar="IMAGES…")
    ],
    top: Annotated[int, typer.Option(min=1, help="Number of classes to name.")] = 3,
    unknown_above: Annotated[
        float,
        typer.Option(
            min=0,
            help="Call an image unknown when its novelty is beyond this; images like those learnt have "
            "about 1. 0 calls none unknown.",
        ),
    ] = 1.7,
    format_: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.table,
    as_json: AsJson = False,
    backbone: Backbone = None,
) -> None:
    """Name the class of images, with probabilities, or "unknown"."""
    if as_json and format_ is Format.csv:
        raise typer.BadParameter(
            "It contradicts --format csv. Give one of the two.", param_hint="--json"
        )
    from acil.images import ImageClassifier
    from acil.vision.listing import list_files

    files = list_files(images)
    threshold = unknown_above or None
    with shown_progress("images") as progress:
        classifier = ImageClassifier.load(model, backbone=backbone, inference=threshold is None)
        found = classifier.classify(files, top, threshold, progress)
    if threshold is not None and found[0].novelty is None:
        typer.echo("This model can only predict: it cannot tell what is unknown.", err=True)
    if as_json or format_ is Format.json:
        typer.echo(json.dumps([prediction.to_dict() for prediction in found], indent=2))
    elif format_ is Format.csv:
        typer.echo(_csv(found, top), nl=False)
    else:
        _show(found)


def _csv(found: list[Any], top: int) -> str:
    """Return one line an image: path, label, novelty, then class and probability of the best."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    shown = min(top, max(len(prediction.top) for prediction in found))
    ranks = [name for rank in range(1, shown + 1) for name in (f"class{rank}", f"probability{rank}")]
    writer.writerow(["image", "label", "novelty", *ranks])
    for prediction in found:
        cells = [cell for name, share in prediction.top for cell in (name, f"{share:.6f}")]
        novelty = "" if prediction.novelty is None else f"{prediction.novelty:.4f}"
        writer.writerow([prediction.image, prediction.label, novelty, *cells])
    return text.getvalue()


def _show(found: list[Any]) -> None:
    images = aligned(prediction.image for prediction in found)
    labels = aligned(prediction.label for prediction in found)
    for image, label, prediction in zip(images, labels, found, strict=True):
        top = "  ".join(f"{plain(name)} {share:.0%}" for name, share in prediction.top)
        novelty = "" if prediction.novelty is None else f"novelty {prediction.novelty:4.2f}  "
        typer.echo(f"{image}  {label}  {novelty}{top}")
