"""Saving and loading models: one safetensors file, no pickle, bit-equal sums."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from acil.atomic import cannot_write, replacing
from acil.classifier import ACILClassifier
from acil.errors import ModelFileError
from acil.header import InvalidFileError, parse_header
from acil.modelfile import CHECKSUM_KEY, METADATA_KEY, check_layouts, checksum, opened
from acil.storage.assembly import assembled
from acil.storage.contents import content_of
from acil.storage.tensors import InMemory, layouts

_HEADER = "header"


def save(clf: ACILClassifier, path: str | os.PathLike[str], *, inference: bool = False) -> None:
    """Write a model to one file, completely or not at all.

    The model is solved first, so that the weights in the file belong to the sums in it.

    Parameters
    ----------
    clf : ACILClassifier
        Fitted.
    path : str or path-like
        A file there is replaced.
    inference : bool, default=False
        Store only what prediction needs. Such a model cannot learn, forget or merge.

    Raises
    ------
    ModelFileError
        If the file cannot be written; a file that was there is unchanged.

    Examples
    --------
    >>> import tempfile, os
    >>> import numpy as np
    >>> from acil import ACILClassifier, load, save
    >>> X, y = np.eye(4), np.array(["cat", "dog", "cat", "dog"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.acil")
    ...     save(ACILClassifier(expansion_size=8, gamma=1.0).fit(X, y), path)
    ...     load(path).predict(X[:2])
    array(['cat', 'dog'], dtype='<U3')
    """
    text, tensors = content_of(clf, inference)
    with replacing(path) as draft:
        try:
            metadata = {METADATA_KEY: text, CHECKSUM_KEY: str(checksum(text.encode()))}
            save_file(tensors, draft, metadata=metadata)
        except SafetensorError as error:
            raise cannot_write(path, error) from error


def load(
    path: str | os.PathLike[str], *, inference: bool = False, device: str | None = None
) -> ACILClassifier:
    """Read a model from a file.

    Parameters
    ----------
    path : str or path-like
    inference : bool, default=False
        Read only what prediction needs, which is a small part of a full model.
    device : str, optional
        Where to put the model, instead of the ``device`` it was made with.

    Returns
    -------
    ACILClassifier
        Its sums are bit-equal to those saved; it goes on learning as if it had never been saved.

    Raises
    ------
    ModelFileError
        If the file is missing, damaged, hostile or written by a newer version.
    """
    with opened(path) as (file, header, found):
        return assembled(file, header, found.keys(), inference, device, path)


def pack(clf: ACILClassifier) -> dict[str, Any]:
    """Return what a full model file of a model would hold: tensors, and its header as text.

    For keeping a model inside something else; `unpack` makes the model again. Condition number and
    temperature, which take long to measure, are left out.
    """
    text, tensors = content_of(clf, inference=False, packed=True)
    return {**tensors, _HEADER: text}


def unpack(content: Mapping[str, Any], device: str | None = None) -> ACILClassifier:
    """Make the model again that `pack` described.

    Parameters
    ----------
    content : Mapping
    device : str, optional
        Where to put the model, instead of the ``device`` it was made with.
    """
    tensors = {name: value for name, value in content.items() if isinstance(value, Tensor)}
    try:
        header = parse_header(content[_HEADER], packed=True)
        check_layouts(header, layouts(tensors))
        return assembled(InMemory(tensors), header, tensors.keys(), False, device, "a packed model")
    except (InvalidFileError, KeyError) as error:
        raise ModelFileError(f"This is not the content of a model: {error}.") from None
