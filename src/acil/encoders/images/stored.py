"""The network of an image classifier: how a model file names it, where it lies, is it the same."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from acil.core.files import describe
from acil.core.files.header import names_file
from acil.encoders.images.embedder import Embedder
from acil.encoders.images.networks import DEFAULT, open_network
from acil.errors import InputError


def _file_of(network: str) -> tuple[str, Path]:
    """Return what comes before the path in the name of a network, and the path."""
    kind = "onnx:" if network.startswith("onnx:") else ""
    return kind, Path(network.removeprefix(kind))


def absolute(network: str) -> str:
    """Return the name of a network with an absolute path, so that it works from any folder."""
    if not isinstance(network, str):
        raise InputError(
            f"A network is given by its name or as an Embedder, not as {type(network).__name__}. A "
            "module of torch needs TorchEmbedder(WrappedBackbone(…)): see docs/own-images.md#networks."
        )
    kind, path = _file_of(network)
    return f"{kind}{path.absolute()}" if names_file(network) else network


def without_folder(network: str | None) -> str | None:
    """Return the name of a network as a model file has it: no file tells where others lie."""
    if network is None or not names_file(network):
        return network
    kind, path = _file_of(network)
    return f"{kind}{path.name}"


def located(stored: str | None, model: str | os.PathLike[str]) -> str:
    """Return the name of a network with the place of its file: beside the model, or else here."""
    name = without_folder(stored) or DEFAULT
    if names_file(name):
        kind, path = _file_of(name)
        beside = Path(model).absolute().parent / path
        return f"{kind}{beside if beside.is_file() else path.absolute()}"
    return name


def network_of(path: str | os.PathLike[str], backbone: str | None = None) -> Embedder:
    """Open the network of a model file, of which only the header is read.

    ``backbone`` names it as in `ImageClassifier.load`.
    """
    header = describe(path)
    learnt, stored = header["backbone"], header["images"] or {}
    if learnt is None:
        raise FromFeaturesError(path)
    if backbone is not None:
        embedder = open_network(backbone)
    else:
        embedder = open_stored(located(stored.get("source") or learnt.get("name"), path), learnt)
    require_identity(embedder.identity, learnt)
    return embedder


def require_network(path: str | os.PathLike[str]) -> None:
    """Raise unless a model file names a network, as ONNX and serving need it."""
    if describe(path)["backbone"] is None:
        raise InputError(
            f"ONNX and serving need a network, and {os.fspath(path)} was learnt from features. "
            "acil export --inference works."
        )


class FromFeaturesError(InputError):
    """Images are given to a model that was learnt from features."""

    def __init__(self, model: str | os.PathLike[str]) -> None:
        super().__init__(
            f"{os.fspath(model)} was learnt from features, not from images: it names no network. Give a "
            "file of features (.npz, .parquet or .csv), or use acil.load."
        )


def open_stored(source: str | None, learnt: Mapping[str, Any] | None) -> Embedder:
    """Open the network that a user, or a model file, names; ``learnt`` is its identity in a model."""
    spec, stored = source or DEFAULT, learnt is not None
    if stored and spec.startswith("module:"):
        raise InputError(
            f"This model was learnt with the network {spec!r}, which is Python code. A file does not "
            "decide which code runs: name the network yourself (--backbone)."
        )
    try:
        if names_file(spec) and not _file_of(spec)[1].is_file():
            raise InputError(f"There is no file {_file_of(spec)[1]}.")
        return open_network(spec)
    except InputError as error:
        if not stored:
            raise
        raise InputError(
            f"The network of this model cannot be opened: {error} If it lies elsewhere now, name it "
            "(--backbone)."
        ) from error


def require_identity(opened: Mapping[str, Any] | None, learnt: Mapping[str, Any] | None) -> None:
    """Raise unless two identities, see `Embedder.identity`, are those of the same network.

    None stands for features of which no network is known.
    """
    if opened == learnt:
        return
    if learnt is None:
        raise FromFeaturesError("This model")
    if opened is None:
        raise InputError(
            f"This model was learnt from images through the network {learnt.get('name')!r}, and these "
            "are features of which no network is known. Make them with acil embed."
        )
    shown = "; ".join(
        f"{key}: {opened.get(key)!r} instead of {learnt.get(key)!r}"
        for key in ("name", "weights", "preprocessing", "engine")
        if opened.get(key) != learnt.get(key)
    )
    raise InputError(
        f"The features come from another network than those this model has learnt ({shown}). Use the "
        f"same network ({learnt.get('name')!r}, run by {learnt.get('engine')!r})."
    )
