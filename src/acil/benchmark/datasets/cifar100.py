"""CIFAR-100 (Krizhevsky, 2009) from either of its official layouts, and fetching it.

The files must have their official sizes: 50,000 training and 10,000 test images. (Tests set `RECORDS` to
smaller numbers.)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from acil.benchmark.archive import unpack
from acil.benchmark.datasets import ROOT_VARIABLE, Dataset
from acil.benchmark.datasets.safe_pickle import read_pickle
from acil.benchmark.download import Checksum, ProgressCallback, download
from acil.errors import InputError
from acil.vision.imageset import ImageSet, content_identity

N_CLASSES = 100
#: Images in each official file.
RECORDS = {"train": 50_000, "test": 10_000}
_N_COARSE = 20
_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
#: One byte of coarse label, one byte of fine label, then the red, green and blue planes, row by row.
_RECORD = 2 + _PIXELS
#: The unpacked files come to 185 million bytes.
_MOST_UNPACKED = 1 << 30
_AGAIN = "Fetch it again: acil data prepare cifar100 --root DIR --force"


@dataclass(frozen=True)
class Layout:
    """One official archive: how to read it, its file, its folder, the files that must be in it."""

    kind: Literal["binary", "python"]
    archive: str
    checksum: Checksum
    folder: str
    files: tuple[str, ...]


ADDRESS = "https://www.cs.toronto.edu/~kriz/"
BINARY = Layout(
    "binary",
    "cifar-100-binary.tar.gz",
    Checksum("md5", "03b5dce01913d631647c71ecec9e9cb8"),
    "cifar-100-binary",
    ("train.bin", "test.bin", "fine_label_names.txt"),
)
PYTHON = Layout(
    "python",
    "cifar-100-python.tar.gz",
    Checksum("md5", "eb9058c3a382ffc7106e4002c42a8d85"),
    "cifar-100-python",
    ("train", "test", "meta"),
)
#: The one looked for first comes first; the first of all is the one that is fetched.
LAYOUTS = (BINARY, PYTHON)


def load(
    root: Path | None, *, skip_bad: bool = False, progress: ProgressCallback | None = None
) -> Dataset:
    """Return CIFAR-100 with its 100 fine classes.

    Parameters
    ----------
    root : Path
        Folder that holds ``cifar-100-binary`` or ``cifar-100-python``, or one of these itself.
    skip_bad, progress
        Ignored: the files are right as a whole or not, and reading them takes seconds.
    """
    folder, layout = _locate(root)
    read = _read_binary if layout.kind == "binary" else _read_python
    names = _binary_names(folder) if layout.kind == "binary" else _python_names(folder)
    train, train_labels = read(folder, "train")
    test, test_labels = read(folder, "test")
    return Dataset(
        name="cifar100",
        train=ImageSet(train, None, content_identity(train)),
        train_labels=train_labels,
        test=ImageSet(test, None, content_identity(test)),
        test_labels=test_labels,
        class_names=names,
        default_recipe="paper",
        default_base=N_CLASSES // 2,
    )


def prepare(
    root: Path, *, url: str | None = None, force: bool = False, progress: ProgressCallback | None = None
) -> None:
    """Fetch CIFAR-100 or take the archive that is there, check it and unpack it.

    Parameters
    ----------
    root : Path
    url : str, optional
        Another address of one of the two official archives, which must keep its name.
    force : bool
        Unpack again even if the data are there; fetch again an archive whose checksum is wrong.
    progress : callable, optional
    """
    if not force and _found(root) is not None:
        return
    there = [layout for layout in LAYOUTS if (root / layout.archive).exists()]
    layout = _layout_of(url) if url else [*there, *LAYOUTS][0]
    archive = download(
        url or ADDRESS + layout.archive,
        root / layout.archive,
        checksum=layout.checksum,
        replace=force,
        progress=progress,
    )
    unpack(archive, root, layout.folder, max_bytes=_MOST_UNPACKED, replace=force, progress=progress)


def _layout_of(url: str) -> Layout:
    name = url.partition("?")[0].rpartition("/")[2]
    for layout in LAYOUTS:
        if layout.archive == name:
            return layout
    known = " or ".join(layout.archive for layout in LAYOUTS)
    raise InputError(f"The address must end with {known}, got {url!r}.")


def _found(root: Path) -> tuple[Path, Layout] | None:
    for layout in LAYOUTS:
        for folder in (root / layout.folder, root):
            if all((folder / name).is_file() for name in layout.files):
                return folder, layout
    return None


def _locate(root: Path | None) -> tuple[Path, Layout]:
    if root is None:
        raise InputError(
            f"Where is CIFAR-100? Give --root DIR or set {ROOT_VARIABLE}. To fetch it: acil data "
            "prepare cifar100 --root DIR."
        )
    found = _found(root)
    if found is None:
        raise InputError(
            f"{root} holds neither {BINARY.folder} nor {PYTHON.folder} with all its files. "
            f"Run: acil data prepare cifar100 --root {root} (without a network, copy "
            f"{LAYOUTS[0].archive} from {ADDRESS} there first)."
        )
    return found


def _read_binary(folder: Path, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    path, n = folder / f"{split}.bin", RECORDS[split]
    size = path.stat().st_size
    if size != n * _RECORD:
        raise InputError(
            f"{path} has {size:,} bytes, but {n:,} images of {_RECORD:,} bytes make {n * _RECORD:,}: it "
            f"is {'truncated' if size < n * _RECORD else 'not the official file'}. {_AGAIN}."
        )
    records = np.fromfile(path, dtype=np.uint8).reshape(n, _RECORD)
    for name, column, limit in (("coarse", 0, _N_COARSE), ("fine", 1, N_CLASSES)):
        _check_labels(path, name, records[:, column], limit)
    pixels = np.ascontiguousarray(records[:, 2:]).reshape(n, *_SHAPE)
    return torch.from_numpy(pixels), torch.from_numpy(records[:, 1].astype(np.int64))


def _binary_names(folder: Path) -> tuple[str, ...]:
    path = folder / "fine_label_names.txt"
    try:
        return _checked_names(path, path.read_text(encoding="utf-8").split())
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text: {error}. {_AGAIN}.") from error


def _read_python(folder: Path, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    path, n = folder / split, RECORDS[split]
    content = _entries(path, "data", "fine_labels")
    data, labels = content["data"], content["fine_labels"]
    if not isinstance(data, np.ndarray) or data.shape != (n, _PIXELS):
        found = data.shape if isinstance(data, np.ndarray) else type(data).__name__
        raise InputError(f"{path}: 'data' must have the shape ({n}, {_PIXELS}), got {found}. {_AGAIN}.")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise InputError(f"{path}: 'fine_labels' must be a list of whole numbers. {_AGAIN}.")
    if len(labels) != n:
        raise InputError(f"{path} has {n:,} images, but {len(labels):,} labels. {_AGAIN}.")
    _check_labels(path, "fine", np.array(labels), N_CLASSES)
    return torch.from_numpy(data.reshape(n, *_SHAPE).copy()), torch.tensor(labels, dtype=torch.int64)


def _python_names(folder: Path) -> tuple[str, ...]:
    path = folder / "meta"
    names = _entries(path, "fine_label_names")["fine_label_names"]
    listed = names if isinstance(names, list) else []
    return _checked_names(path, [_text(name) for name in listed])


def _entries(path: Path, *names: str) -> dict[str, Any]:
    content = read_pickle(path)
    found = {_text(key): value for key, value in content.items()} if isinstance(content, dict) else {}
    for name in names:
        if name not in found:
            raise InputError(f"{path} has no {name!r}: it is not the official file. {_AGAIN}.")
    return found


def _text(value: Any) -> Any:
    """Return bytes as text: Python 2, which wrote the official files, did not tell them apart."""
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _checked_names(path: Path, names: list[Any]) -> tuple[str, ...]:
    texts = [name for name in names if isinstance(name, str)]
    if len(texts) != len(names) or len(set(texts)) != N_CLASSES or len(texts) != N_CLASSES:
        raise InputError(f"{path} must name {N_CLASSES} classes, each once, got {len(names)}. {_AGAIN}.")
    return tuple(texts)


def _check_labels(path: Path, name: str, labels: np.ndarray, limit: int) -> None:
    wrong = np.flatnonzero((labels < 0) | (labels >= limit))
    if len(wrong):
        raise InputError(
            f"{path} has the {name} label {labels[wrong[0]]} in record {wrong[0]}, but labels go from 0 "
            f"to {limit - 1}: the file is damaged. {_AGAIN}."
        )
