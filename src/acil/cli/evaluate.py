"""`acil evaluate`: accuracy on images whose classes are known."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from acil.cli.images import (
    AsJson,
    Backbone,
    ClassName,
    Force,
    Model,
    aligned,
    counted,
    given_images,
    plain,
    require_free,
    shown_progress,
)


def evaluate(
    model: Model,
    images: Annotated[
        list[Path],
        typer.Argument(
            help="Folder with one folder for each class, or CSV of path,label.", metavar="FOLDER"
        ),
    ],
    class_name: ClassName = None,
    plot: Annotated[Path | None, typer.Option(help="Write the confusion matrix as PNG here.")] = None,
    force: Force = False,
    as_json: AsJson = False,
    backbone: Backbone = None,
) -> None:
    """Compare predictions with the true classes of images.

    Accuracies are in percent and count the likeliest class, also of images that are called unknown.
    """
    if plot is not None:
        require_free(plot, force)
    paths, labels = given_images(images, class_name)
    from acil.images import ImageClassifier

    with shown_progress("images") as progress:
        found = ImageClassifier.load(model, backbone=backbone).evaluate(paths, labels, progress=progress)
    if plot is not None:
        _draw(found, plot)
    if found.not_learnt:
        typer.echo(
            f"left out: {counted(sum(found.not_learnt.values()), 'image')} of classes not learnt "
            f"({', '.join(map(plain, found.not_learnt))}); {found.not_learnt_unknown} called unknown",
            err=True,
        )
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
        return
    for name, accuracy in zip(aligned(found.per_class), found.per_class.values(), strict=True):
        typer.echo(f"{name}  {accuracy:6.2f} %")
    unknown = sum(found.unknown.values())
    typer.echo(
        f"accuracy {found.accuracy:.2f} % of {counted(found.images, 'image')}; {unknown} called unknown"
    )
    if plot is not None:
        typer.echo(str(plot), err=True)


def _draw(found: Any, path: Path) -> None:
    """Draw the confusion matrix, in percent of each true class."""
    from matplotlib.figure import Figure

    from acil.atomic import replacing

    totals = found.confusion.sum(axis=1, keepdims=True)
    shares = 100 * found.confusion / totals.clip(min=1)
    side = 2.5 + 0.45 * len(found.classes)
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axes = figure.subplots()
    picture = axes.imshow(shares, vmin=0, vmax=100, cmap="Blues")
    names = [plain(name).replace("$", r"\$") for name in found.classes]
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    axes.set_title(f"accuracy {found.accuracy:.1f} %")
    for (row, column), count in _counts(found.confusion):
        colour = "white" if shares[row, column] > 50 else "black"
        axes.text(column, row, str(count), ha="center", va="center", color=colour)
    figure.colorbar(picture, label="% of true class")
    with replacing(path) as draft, warnings.catch_warnings(record=True) as said:
        warnings.filterwarnings("always", message=r"Glyph .* missing from font")
        figure.savefig(draft, format="png", dpi=120)
    if any("missing from font" in str(warning.message) for warning in said):
        typer.echo(
            f"{path} shows boxes where its font lacks a letter of a class name. The table has all.",
            err=True,
        )


def _counts(confusion: Any) -> list[tuple[tuple[int, int], int]]:
    return [
        ((row, column), int(confusion[row, column]))
        for row, column in zip(*confusion.nonzero(), strict=True)
    ]
