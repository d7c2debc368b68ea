"""What users give to an image classifier: places of images, labels, and the network they belong to."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acil.errors import InputError
from acil.images.snapshot import Snapshot
from acil.vision.embedder import Embedder, Source
from acil.vision.listing import check_class_name, list_images
from acil.vision.networks import DEFAULT, open_network

#: One place of images, or several images.
Given = str | os.PathLike[str] | Sequence[Source]


def listed(source: Given, labels: str | Sequence[str] | None) -> tuple[list[Source], list[str]]:
    """Return images and the class of each.

    Parameters
    ----------
    source : str, path-like or sequence of str, path-like or bytes
    labels : str or sequence of str, optional
    """
    if isinstance(source, bytes):
        raise InputError("Give a list of images, even for one.")
    if isinstance(source, str | os.PathLike):
        if labels is not None and not isinstance(labels, str):
            raise InputError(f"{os.fspath(source)} is one place: give one label, or a list of images.")
        listing = list_images(source, labels)
        return list(listing.paths), listing.labels
    sources = list(source)
    if labels is None:
        raise InputError("A list of images needs labels: one for all, or one for each.")
    names = [labels] * len(sources) if isinstance(labels, str) else [str(label) for label in labels]
    if len(names) != len(sources):
        raise InputError(f"There are {len(sources)} images but {len(names)} labels.")
    if not sources:
        raise InputError("There are no images. Give at least one.")
    for name in set(names):
        check_class_name(name)
    if isinstance(labels, str):
        folders = [s for s in sources if not isinstance(s, bytes) and Path(s).is_dir()]
        if folders:
            raise InputError(f"{folders[0]!s} is a folder. Give folders one at a time.")
    return sources, names


def name_of(source: Source, number: int) -> str:
    """Return what an image is called in results."""
    return f"image {number + 1}" if isinstance(source, bytes) else os.fspath(source)


def settled(source: str) -> str:
    """Return the name of a network so that it means the same from any folder."""
    kind, separator, rest = source.partition(":")
    if separator and kind == "onnx":
        return f"onnx:{Path(rest).absolute()}"
    return str(Path(source).absolute()) if source.endswith(".safetensors") else source


def reopened(source: str | None, snapshot: Snapshot | None) -> Embedder:
    """Open the network of a model.

    Parameters
    ----------
    source : str or None
        As a user, or a model file, names it.
    snapshot : Snapshot or None
        The model, where there is one already.
    """
    name = DEFAULT if snapshot is None else str(snapshot.head.backbone_.get("name"))
    spec = source or name
    stored = snapshot is not None
    if stored and spec.startswith("module:"):
        raise InputError(
            f"This model was learnt with the network {spec!r}, which is Python code. A file does not "
            "decide which code runs: name the network yourself (--backbone)."
        )
    try:
        return open_network(spec)
    except InputError as error:
        if not stored:
            raise
        raise InputError(
            f"The network of this model cannot be opened: {error} If it lies elsewhere now, name it "
            "(--backbone)."
        ) from error


def require_identity(given: Mapping[str, Any], learnt: Mapping[str, Any]) -> None:
    """Raise unless two identities are those of the same network.

    Parameters
    ----------
    given, learnt : mapping
        See `Embedder.identity`.
    """
    if given == learnt:
        return
    differing = [
        key
        for key in ("name", "weights", "preprocessing", "engine")
        if given.get(key) != learnt.get(key)
    ]
    shown = "; ".join(f"{key}: {given.get(key)!r} instead of {learnt.get(key)!r}" for key in differing)
    raise InputError(
        f"The features come from another network than those this model has learnt ({shown}). Use the "
        f"same network ({learnt.get('name')!r}, run by {learnt.get('engine')!r})."
    )
