"""`acil learn`: make a model from images, or add to one."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from acil.cli.images import (
    AsJson,
    Backbone,
    ClassName,
    counted,
    given_images,
    show_counts,
    shown_progress,
)
from acil.errors import InputError


def learn(
    images: Annotated[
        list[Path],
        typer.Argument(
            help="Folder with one folder for each class, or CSV of path,label; with --class: images.",
            metavar="IMAGES…",
        ),
    ],
    model: Annotated[Path, typer.Option("--model", help="Model file, made or added to.")],
    class_name: ClassName = None,
    backbone: Backbone = None,
    expansion_size: Annotated[
        int | None, typer.Option(help="Width of a random expansion, for a new model (default: none).")
    ] = None,
    gamma: Annotated[
        float | None,
        typer.Option(help="Ridge strength relative to a sample, for a new model (default: 0.1)."),
    ] = None,
    track: Annotated[
        bool,
        typer.Option(
            "--track",
            help="Keep salted hashes of the images in the file, and refuse to learn one twice. Who has "
            "the file and an image can then tell whether it was learnt.",
        ),
    ] = False,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out unreadable images.")] = False,
    as_json: AsJson = False,
) -> None:
    """Learn images of new classes, or more of known ones; nothing learnt before is lost.

    Makes the model file or extends it. The images are not stored.
    """
    start = time.perf_counter()
    if not model.absolute().parent.is_dir():
        raise InputError(f"There is no folder {model.absolute().parent}. Create it first.")
    paths, labels = given_images(images, class_name)
    options = {"expansion_size": expansion_size, "gamma": gamma}
    from acil.images import ImageClassifier
    from acil.storage import locked
    from acil.vision.pipeline import UnreadableError

    with shown_progress("images") as progress:
        # Before the lock: features take longest, and others may learn into the same model meanwhile.
        if model.exists():
            _refuse_settings(model, options)
            classifier = ImageClassifier.load(model, backbone=backbone, inference=True)
        else:
            classifier = _new(backbone, options, track)
        try:
            samples = classifier.prepare(paths, labels, skip_bad=skip_bad, progress=progress)
        except UnreadableError as error:
            if not error.others:
                raise
            raise InputError(f"{error} Or leave them out with --skip-bad.") from error
    with locked(model):
        # The file as it is now; another process may have made it or added to it.
        if model.exists():
            _refuse_settings(model, options)
            classifier = ImageClassifier.load(model, backbone=classifier.embedder, track=track)
        report = classifier.learn(samples)
        classifier.save(model)
    for message in report.skipped:
        typer.echo(f"left out: {message}", err=True)
    seconds = time.perf_counter() - start
    rate = len(samples.labels) / max(samples.seconds, 1e-9)
    if as_json:
        facts = {**report.to_dict(), "model": str(model), "seconds": seconds, "images_per_second": rate}
        typer.echo(json.dumps(facts, indent=2))
        return
    show_counts(report.counts, report.totals)
    learnt, known = (
        counted(len(samples.labels), "image"),
        counted(len(report.totals), "class", "classes"),
    )
    typer.echo(
        f"{learnt} in {seconds:.1f} s (features {rate:.0f} images/s, head {report.head_seconds:.2f} s); "
        f"{model} knows {known}"
    )


def _new(backbone: str | None, options: dict[str, Any], track: bool) -> Any:
    from acil.images import ImageClassifier

    chosen = {name: value for name, value in options.items() if value is not None}
    if backbone is not None:
        chosen["backbone"] = backbone
    return ImageClassifier(track=track, **chosen)


def _refuse_settings(model: Path, options: dict[str, Any]) -> None:
    for name, value in options.items():
        if value is not None:
            raise InputError(
                f"{model} exists, and its {name} was chosen when it was made. Leave out "
                f"--{name.replace('_', '-')}, or make a new model."
            )
