"""`acil forget`: remove images from a model, exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from acil.cli.images import (
    AsJson,
    Backbone,
    ClassName,
    Model,
    counted,
    given_images,
    show_counts,
    shown_progress,
)


def forget(
    model: Model,
    images: Annotated[
        list[Path],
        typer.Argument(
            help="The images that were learnt: as for `acil learn`.",
            metavar="IMAGES…",
        ),
    ],
    class_name: ClassName = None,
    as_json: AsJson = False,
    backbone: Backbone = None,
) -> None:
    """Remove images: the model becomes the one that never learnt them.

    Give the same files, under the same class. A class of which all images are given disappears. This is
    exact for the head, which is all that learns here; the network in front of it was trained on other
    images and never saw these.
    """
    paths, labels = given_images(images, class_name)
    from acil.images import ImageClassifier
    from acil.storage import locked

    with shown_progress("images") as progress:
        classifier = ImageClassifier.load(model, backbone=backbone, inference=True)
        samples = classifier.prepare(paths, labels, progress=progress)
    with locked(model):
        latest = ImageClassifier.load(model, backbone=classifier.embedder)
        report = latest.forget(samples)
        latest.save(model)
    if as_json:
        typer.echo(json.dumps({**report.to_dict(), "model": str(model)}, indent=2))
        return
    show_counts(report.counts, report.totals)
    gone = [name for name in report.counts if name not in report.totals]
    if gone:
        typer.echo(f"no longer known: {', '.join(gone)}")
    number = len(samples.labels)
    them = "it" if number == 1 else "them"
    typer.echo(
        f"forgot {counted(number, 'image')}: the head of {model} is now the one that never learnt "
        f"{them}. The network never saw {them}."
    )
    if len(latest.snapshot.tracker) < sum(report.totals.values()):
        typer.echo(
            f"This holds if {them if number == 1 else 'they'} had been learnt under the class given: a "
            "model that does not track all its images (acil learn --track) cannot always tell.",
            err=True,
        )
