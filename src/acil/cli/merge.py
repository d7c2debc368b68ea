"""`acil merge`: one model from several, as if it had learnt all their images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from acil.cli.images import AsJson, Force, aligned, counted, require_free
from acil.errors import InputError


def merge(
    models: Annotated[list[Path], typer.Argument(help="Two or more model files.", metavar="MODEL…")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Model file to write.")],
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Merge models of the same network and expansion: exact, and without their images.

    An image that two of them have learnt counts twice. The settings of the first model stay.
    """
    if len(models) < 2:
        raise InputError("merge needs at least two models.")
    from acil.storage import load, locked, save

    with locked(out):
        require_free(out, force)
        merged = load(models[0])
        if getattr(merged, "images_", None) is None:
            for path in models[1:]:
                merged.merge(load(path))
            save(merged, out)
            totals = dict(zip(merged.classes_.tolist(), merged.class_count_.tolist(), strict=True))
        else:
            totals = _merge_images(models, out)
    if as_json:
        named = {str(name): count for name, count in totals.items()}
        typer.echo(json.dumps({"model": str(out), "totals": named}, indent=2))
        return
    for name, count in zip(aligned(totals), totals.values(), strict=True):
        typer.echo(f"{name}  {count:>7}")
    known, learnt = counted(len(totals), "class", "classes"), counted(sum(totals.values()), "sample")
    typer.echo(f"{out} knows {known} from {learnt}")


def _merge_images(models: list[Path], out: Path) -> dict[str, int]:
    from acil.images import ImageClassifier

    loaded = [ImageClassifier.load(path) for path in models]
    for path, model in zip(models, loaded, strict=True):
        if not model.snapshot.judges:
            raise InputError(
                f"{path} can only predict: it has no sums to merge. Give the full model file."
            )
    first, *others = loaded
    for other in others:
        first.merge(other)
    first.save(out)
    return first.counts_
