"""`acil export`: a model for other programs, or for prediction alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from acil.cli.images import AsJson, Backbone, Force, Model, counted, require_free, shown_progress
from acil.errors import InputError


def export(
    model: Model,
    onnx: Annotated[
        Path | None, typer.Option(help="Write network and head as one ONNX file here.")
    ] = None,
    inference: Annotated[
        Path | None,
        typer.Option(help="Write a small model file here that predicts but cannot learn."),
    ] = None,
    check: Annotated[
        Path | None, typer.Option(help="Folder of images to compare ONNX and PyTorch on.")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
    backbone: Backbone = None,
) -> None:
    """Write a model as ONNX, or as a file for prediction alone.

    The ONNX graph takes pixels (uint8, RGB) and gives scores and probabilities; it is compared with
    PyTorch in onnxruntime before it is written.
    """
    if onnx is None and inference is None:
        raise InputError("Say what to write: --onnx FILE, --inference FILE, or both.")
    for path in (onnx, inference):
        if path is not None:
            require_free(path, force)
            if path.resolve() == model.resolve():
                raise InputError(f"{path} is the model itself. Give another name.")
    from acil.images import ImageClassifier

    written: dict[str, Any] = {}
    with shown_progress("exporting"):
        if inference is not None:
            ImageClassifier.load(model).save(inference, inference=True)
            written["inference"] = {"path": str(inference), "bytes": inference.stat().st_size}
        if onnx is not None:
            written["onnx"] = _onnx(ImageClassifier.load(model, backbone=backbone), onnx, check)
    if as_json:
        typer.echo(json.dumps(written, indent=2))
        return
    for path in (onnx, inference):
        if path is not None:
            typer.echo(f"{path}  {path.stat().st_size:,} bytes")
    if onnx is not None:
        facts = written["onnx"]
        typer.echo(
            f"ONNX and PyTorch agree on {counted(facts['images'], 'image')}: the same classes, scores "
            f"within {facts['difference']:.1e}"
        )


def _onnx(classifier: Any, path: Path, check: Path | None) -> dict[str, Any]:
    import torch

    from acil.export import export_onnx
    from acil.vision.decode import decode
    from acil.vision.listing import list_files

    embedder, pixels = classifier.embedder, None
    if check is not None:
        size, mode, crop = embedder.preprocessing.size, embedder.mode, embedder.crop
        pixels = torch.stack([decode(file, size, mode, crop) for file in list_files([check])])
    done = export_onnx(classifier.snapshot.solved(), embedder, path, pixels)
    return {
        "path": str(path),
        "bytes": done.bytes,
        "images": done.images,
        "difference": done.difference,
    }
