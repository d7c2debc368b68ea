"""Files of features: what any network made of images, text or anything else, with or without labels.

`docs/embeddings.md` describes the formats.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from acil.core.files.header import NETWORK, check_identity
from acil.core.files.writing import replacing
from acil.encoders.images.listing import check_class_name, delimiter_of, existing, first_of
from acil.encoders.samples import Samples
from acil.encoders.stored import located, without_folder
from acil.errors import InputError, MissingExtraError

#: What damaged files and bad cells raise, and headers that claim more than memory holds.
_UNREADABLE = (
    *(MemoryError, OSError, EOFError, ValueError, TypeError, KeyError, AttributeError),
    *(csv.Error, zipfile.BadZipFile, zlib.error),
)
#: A column of a table whose cells are whole rows of features.
_LISTS = ("features", "embedding")
#: Arrays by the names that npz files have for them, and the names of the features, if they have any.
_Read = tuple[dict[str, Any], tuple[str, ...] | None]


def write_features(path: str | os.PathLike[str], samples: Samples) -> None:
    """Write samples to an npz file, whole or not at all; labels that are all empty are left out."""
    network = {
        "source": without_folder(samples.source),
        "identity": samples.identity,
        "encoder": samples.encoder,
    }
    arrays: dict[str, Any] = {
        "features": samples.features,
        "paths": np.array(samples.images, dtype=np.str_),
        "digests": np.array(samples.digests, dtype=np.str_),
        "network": np.array(json.dumps(network)),
    }
    if any(samples.names):
        arrays["labels"] = samples.labels
    with replacing(path) as draft, draft.open("wb") as file:
        np.savez(file, **arrays)


def read_features(path: str | os.PathLike[str], label: str | None = None) -> Samples:
    """Read an npz, parquet or CSV file of features.

    Parameters
    ----------
    path : str or path-like
    label : str, optional
        Class of all rows, instead of those in the file. Without either, labels are empty.
    """
    place = existing(Path(path))
    read = {".npz": _read_npz, ".parquet": _read_parquet}.get(place.suffix.lower(), _read_csv)
    try:
        arrays, columns = read(place)
        if "features" not in arrays:
            raise ValueError(f"it has no array 'features' (and 'labels') but {sorted(arrays)[:10]}")
        if np.iscomplexobj(arrays["features"]):
            raise ValueError("its features are complex numbers")
        features = np.asarray(arrays["features"], dtype=np.float32)
        texts = {
            name: _texts(name, np.asarray(arrays[name]))
            for name in ("labels", "paths", "digests")
            if name in arrays
        }
        network = json.loads(str(arrays.get("network", "{}")))
        source, identity = network.get("source"), network.get("identity")
        encoder = network.get("encoder", "images")
        if encoder not in ("images", "text"):
            raise ValueError(f"its network takes {encoder!r}, which is neither images nor text")
        if identity is not None:
            check_identity(identity, "network")
        if source is not None:
            NETWORK(source, "source")
            source = located(source, place)
    except _UNREADABLE as error:
        raise InputError(
            f"Cannot read features from {place}: {error}. See docs/embeddings.md."
        ) from None
    if features.ndim != 2 or 0 in features.shape:
        raise InputError(
            f"{place}: features must be a row for each sample; found an array of shape {features.shape}."
        )
    bad = np.flatnonzero(~np.isfinite(features).all(axis=1)) + 1
    if len(bad):
        rows = first_of(bad.tolist())
        raise InputError(f"{place}: features must be finite numbers; those of row {rows} are not.")
    n = len(features)
    texts.setdefault("labels", [""] * n)
    texts.setdefault("paths", [f"row {number + 1}" for number in range(n)])
    hashes = (hashlib.blake2b(row.tobytes(), digest_size=32) for row in features)
    texts.setdefault("digests", [digest.hexdigest() for digest in hashes])
    for name, values in texts.items():
        if len(values) != n:
            raise InputError(f"{place} has {n} rows of features, but {len(values)} {name}.")
    labels = texts["labels"] if label is None else [label] * n
    if any(labels):
        if "" in labels:
            raise InputError(
                f"{place}: row {labels.index('') + 1} has no label. Give all rows one, or none."
            )
        for label in set(labels):
            check_class_name(label)
    digests, names = tuple(texts["digests"]), tuple(texts["paths"])
    classes = np.array(labels, dtype=np.str_)
    return Samples(features, classes, digests, names, (), identity, source, 0.0, columns, encoder)


def _texts(name: str, values: npt.NDArray[Any]) -> list[str]:
    """Return labels, paths or digests as text; raise if a row has none."""
    if values.ndim != 1:
        raise ValueError(f"its {name} are an array of shape {values.shape}, not one for each row")
    for number, value in enumerate(values.tolist(), start=1):
        if value is None or value != value or isinstance(value, bytes):  # NaN differs from itself
            raise ValueError(f"row {number} of its {name} is {value!r}, which is no text or number")
        if isinstance(value, float) and not value.is_integer():
            raise ValueError(f"row {number} of its {name} is {value!r}, which is no whole number")
    return [str(value) for value in values.tolist()]


def _read_npz(path: Path) -> _Read:
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            return dict(file), None
    except ValueError as error:
        # NumPy advises to unpickle it.
        raise ValueError("it is no npz file of plain arrays, or has arrays of Python objects") from error


def _read_parquet(path: Path) -> _Read:
    try:
        import pandas

        table = pandas.read_parquet(path)
    except ImportError as error:
        raise MissingExtraError(
            "Reading parquet needs the packages pandas and pyarrow. Install them with: "
            "pip install pandas pyarrow"
        ) from error
    return _arrays({str(name): table[name].to_numpy() for name in table.columns})


def _read_csv(path: Path) -> _Read:
    with path.open(encoding="utf-8-sig", newline="") as file:
        names, *rows = csv.reader(file, delimiter=delimiter_of(path), strict=True)
    if not rows:
        raise ValueError("it has no rows")
    if len(set(names)) < len(names):
        raise ValueError("two of its columns have the same name")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(names):
            raise ValueError(f"line {number} has {len(row)} cells, and the first has {len(names)}")
    columns = zip(*rows, strict=True)
    return _arrays({name: np.array(column) for name, column in zip(names, columns, strict=True)})


def _arrays(columns: dict[str, npt.NDArray[Any]]) -> _Read:
    """Return the arrays of a table by the names that npz files have for them."""
    texts = {f"{name}s": columns.pop(name) for name in ("label", "path") if name in columns}
    lists = [name for name in _LISTS if name in columns]
    if lists:
        if columns[lists[0]].dtype.kind == "U":
            raise ValueError(
                f"column {lists[0]!r} of a CSV file cannot hold lists: write them as .parquet or .npz. "
                "For the texts beside it, name their column (--text-column)"
            )
        return {"features": np.stack([*columns[lists[0]]]), **texts}, None
    if not all(map(str.strip, columns)):
        raise ValueError("a column has no name; write a table of pandas with index=False")
    features = np.stack([_numbers(*pair) for pair in columns.items()], axis=1)
    return {"features": features, **texts}, tuple(columns)


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True


def _numbers(name: str, column: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    try:
        if column.dtype.kind == "U":
            column = np.where(column == "", "nan", column)  # the row of an empty cell is reported
        return column.astype(np.float32)
    except ValueError:
        cells = enumerate(column.tolist(), start=1)
        place, cell = next((place, cell) for place, cell in cells if not _is_number(cell))
        raise ValueError(
            f"column {name!r} is not of numbers: row {place} is {cell!r}. The first line names the "
            "columns, and that of labels is called 'label'; a list of images has exactly two columns, "
            "path and label; texts are in a column 'text', or in one that --text-column names"
        ) from None
