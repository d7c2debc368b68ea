"""The network of a classifier: how a model file names it, where it lies, whether it is the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from acil.core.files import describe
from acil.core.files.header import names_file
from acil.encoders.images.embedder import Embedder
from acil.encoders.images.networks import DEFAULT, open_network
from acil.encoders.text.encoder import TextEncoder
from acil.encoders.text.networks import open_encoder
from acil.errors import InputError

Network = TypeVar("Network", bound=Embedder | TextEncoder)
#: Comes before the path of a network that is a file or a folder, or after the second before a name.
_ONNX, _SENTENCES = "onnx:", "sentence-transformers:"


def _file_of(network: str) -> tuple[str, Path]:
    """Return what comes before the path in the name of a network, and the path."""
    kind = next((kind for kind in (_ONNX, _SENTENCES) if network.startswith(kind)), "")
    return kind, Path(network.removeprefix(kind))


def _lies_here(network: str) -> bool:
    """Say whether the name of a network is that of a file or a folder, not of a package or a hub."""
    kind, path = _file_of(network)
    return names_file(network) or (kind == _SENTENCES and path.is_dir())


def _is_there(path: Path) -> bool:
    return path.is_file() or path.is_dir()  # whatever else there is would not end, or wait for ever


def absolute(network: str) -> str:
    """Return the name of a network with an absolute path, so that it works from any folder."""
    kind, path = _file_of(network)
    return f"{kind}{path.absolute()}" if _lies_here(network) else network


def without_folder(network: str | None) -> str | None:
    """Return the name of a network as a model file has it: no file tells where others lie."""
    if network is None or not _lies_here(network):
        return network
    kind, path = _file_of(network)
    return f"{kind}{path.name}"


def located(stored: str | None, model: str | os.PathLike[str]) -> str:
    """Return the name of a network with the place of its file: beside the model, or else here."""
    name = without_folder(stored) or DEFAULT
    kind, path = _file_of(name)
    beside = Path(model).absolute().parent / path
    if kind == _SENTENCES:
        return f"{kind}{beside}" if beside.is_dir() else name
    if names_file(name):
        return f"{kind}{beside if _is_there(beside) else path.absolute()}"
    return name


def network_of(path: str | os.PathLike[str], backbone: str | None = None) -> Embedder | TextEncoder:
    """Open the network of a model file, of which only the header is read.

    ``backbone`` names it as in `ImageClassifier.load` and `TextClassifier.load`.
    """
    header = describe(path)
    learnt, stored = header["backbone"], header["images"] or {}
    if learnt is None:
        raise FromFeaturesError(path)
    opened: Callable[[str], Embedder | TextEncoder] = (
        open_encoder if header["encoder"] == "text" else open_network
    )
    if backbone is not None:
        network = opened(backbone)
    else:
        network = open_stored(located(stored.get("source") or learnt.get("name"), path), learnt, opened)
    require_identity(network.identity, learnt)
    return network


def require_network(path: str | os.PathLike[str]) -> None:
    """Raise unless a model file names a network, as ONNX and serving need it."""
    if describe(path)["backbone"] is None:
        raise InputError(
            f"ONNX and serving need a network, and {os.fspath(path)} was learnt from features. "
            "acil export --inference works."
        )


class FromFeaturesError(InputError):
    """Images or texts are given to a model that was learnt from features."""

    def __init__(self, model: str | os.PathLike[str]) -> None:
        super().__init__(
            f"{os.fspath(model)} was learnt from features: it names no network. Give a "
            "file of features (.npz, .parquet or .csv), or use acil.load."
        )


def open_stored(
    source: str, learnt: Mapping[str, Any] | None, opened: Callable[[str], Network]
) -> Network:
    """Open the network that a user, or a model file, names; ``learnt`` is its identity in a model.

    ``opened`` opens it by name: that of images, or that of texts.
    """
    stored = learnt is not None
    if stored and source.startswith("module:"):
        raise InputError(
            f"This model was learnt with the network {source!r}, which is Python code. A file does not "
            "decide which code runs: name the network yourself (--backbone)."
        )
    try:
        if names_file(source) and not _is_there(_file_of(source)[1]):
            raise InputError(f"There is no file {_file_of(source)[1]}.")
        return opened(source)
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
            f"This model was learnt through the network {learnt.get('name')!r}, and these "
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
