"""Embeddings of any network: from one safetensors or npz file, or from what `acil embed` has written."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acil.bench.datasets import ROOT_VARIABLE, Dataset
from acil.bench.published import PRETRAINED
from acil.core.files.reading import TensorFile
from acil.encoders.images.imageset import ImageSet
from acil.encoders.images.listing import holds_features
from acil.encoders.tables import read_features
from acil.errors import InputError

#: What an array is → the names it may have.
_NAMES = {
    "train_features": ("train_features", "X_train", "x_train"),
    "train_labels": ("train_labels", "y_train"),
    "test_features": ("test_features", "X_test", "x_test"),
    "test_labels": ("test_labels", "y_test"),
}
_SUFFIXES = (".safetensors", ".npz")
#: What readers raise at a file that is not what its name says.
_DAMAGE = (zipfile.BadZipFile, ValueError, EOFError, AttributeError, TypeError)


def load(root: Path | None, *, published_as: str | None = None) -> Dataset:
    """Return the features and labels in a file, or in a folder with a file for each split.

    It has ``train_features`` and ``test_features`` of shape (n, f), used as float32, and
    ``train_labels`` and ``test_labels`` of shape (n,), whole numbers or (npz only) texts; the names
    ``X_train``, ``y_train``, ``X_test``, ``y_test`` are understood too. A folder has ``train.npz`` and
    ``test.npz``, or other files that `acil.encoders.tables.read_features` reads. Classes are the
    different training labels, sorted; their names are the labels as text.

    ``published_as`` names the data set that these are features of, if others have published numbers for
    it: a report then shows them.
    """
    if published_as not in (None, *PRETRAINED):
        raise InputError(
            f"Nothing is published of {published_as!r}. Known: {', '.join(PRETRAINED)}. Leave out "
            "data.published_as."
        )
    if root is None:
        raise InputError(
            "Which file holds the features? Write features:FILE, give --root FILE or set "
            f"{ROOT_VARIABLE}."
        )
    path = root
    if path.is_dir():
        arrays = _read_folder(path)
    elif path.suffix not in _SUFFIXES:
        raise InputError(
            f"A file of features must end with {' or '.join(_SUFFIXES)}, or be a folder with train.npz "
            f"and test.npz. Got {path}{'' if path.exists() else ', which does not exist'}."
        )
    else:
        arrays = _read(path)
    train = _features(path, "train_features", arrays)
    test = _features(path, "test_features", arrays)
    if train.shape[1] != test.shape[1]:
        raise InputError(
            f"{path}: train_features have {train.shape[1]} columns, but test_features {test.shape[1]}. "
            "Use the same network for both."
        )
    labels = _labels(path, "train_labels", arrays, len(train))
    test_labels = _labels(path, "test_labels", arrays, len(test))
    classes, train_positions = np.unique(labels, return_inverse=True)
    unknown = np.setdiff1d(test_labels, classes)
    if len(unknown):
        raise InputError(
            f"{path}: test_labels has {len(unknown)} labels that train_labels lacks, such as "
            f"{unknown[0]!s}. Test only on classes that are learnt."
        )
    return Dataset(
        name="features",
        train=ImageSet(None, train),
        train_labels=torch.from_numpy(train_positions.reshape(-1).astype(np.int64)),
        test=ImageSet(None, test),
        test_labels=torch.from_numpy(np.searchsorted(classes, test_labels).astype(np.int64)),
        class_names=tuple(str(label) for label in classes.tolist()),
        default_recipe="features",
        default_base=len(classes) // 2,
    )


def _read_folder(folder: Path) -> dict[str, Any]:
    """Return the four arrays of the files of both splits."""
    arrays: dict[str, Any] = {}
    for split in ("train", "test"):
        files = [file for file in sorted(folder.glob(f"{split}.*")) if holds_features(file)]
        if len(files) != 1:
            raise InputError(
                f"{folder} must have one file of features {split}.npz, .parquet or .csv, got "
                f"{', '.join(file.name for file in files) or 'none'}. Images become one by: acil embed "
                f"IMAGES -o {folder / split}.npz"
            )
        samples = read_features(files[0])
        if "" in samples.labels:
            raise InputError(f"{files[0]} has rows without a label. Embed a folder for each class.")
        arrays[f"{split}_features"] = samples.features
        arrays[f"{split}_labels"] = samples.labels
    return arrays


def _read(path: Path) -> dict[str, Any]:
    """Return the four arrays of a file by their first names."""
    try:
        arrays: dict[str, Any]
        if path.suffix == ".safetensors":
            arrays = TensorFile(path).tensors()
            there = list(arrays)
        else:
            # Opened here: NumPy forgets to close a file that it cannot read.
            with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                wanted = {name for names in _NAMES.values() for name in names}
                there = file.files
                arrays = {name: file[name] for name in there if name in wanted}
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror or error}.") from error
    except _DAMAGE as error:
        raise InputError(
            f"{path} is damaged or no {path.suffix[1:]} file of plain arrays: {error}. Arrays of "
            "Python objects are not read."
        ) from error
    by_meaning = {}
    for meaning, names in _NAMES.items():
        present = [name for name in names if name in arrays]
        if len(present) != 1:
            raise InputError(
                f"{path} must have one array {' or '.join(names)}, got {present or 'none'} among "
                f"{sorted(there)[:10]}. It needs features and labels of training and of test samples."
            )
        by_meaning[meaning] = arrays[present[0]]
    return by_meaning


def _features(path: Path, name: str, arrays: dict[str, Any]) -> Tensor:
    value = arrays[name]
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        value = torch.from_numpy(value)
    if not isinstance(value, Tensor) or value.ndim != 2 or value.is_complex() or value.numel() == 0:
        raise InputError(f"{path}: {name} must be numbers of shape (n, f), got {_shown(value)}.")
    result = value.to(torch.float32, copy=True).contiguous()
    finite = torch.isfinite(result).all(dim=1)
    if not bool(finite.all()):
        raise InputError(
            f"{path}: {name} has {int((~finite).sum())} rows with NaN or infinity (in float32), the "
            f"first is row {int(torch.nonzero(~finite)[0])}. Remove them."
        )
    return result


def _labels(path: Path, name: str, arrays: dict[str, Any], n: int) -> np.ndarray:
    value = arrays[name]
    array = value.numpy() if isinstance(value, Tensor) and value.dtype != torch.bfloat16 else value
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in "iuU":
        raise InputError(
            f"{path}: {name} must be whole numbers or texts of shape (n,), got {_shown(value)}."
        )
    if len(array) != n:
        raise InputError(f"{path}: there are {n} rows of features, but {len(array)} {name}.")
    return array


def _shown(value: Any) -> str:
    return f"{value.dtype} of shape {tuple(value.shape)}"
