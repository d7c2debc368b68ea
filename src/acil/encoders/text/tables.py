"""Tables and folders of texts: CSV, TSV, JSON lines and parquet, and folders of .txt files.

`docs/text.md` describes the formats.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import logging
import os
import re
import threading
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acil.encoders.images.embedder import UnreadableError
from acil.encoders.images.listing import LISTS, check_class_name, delimiter_of, existing, holds_images
from acil.encoders.text.encoder import clean_text
from acil.errors import InputError, MissingExtraError

logger = logging.getLogger(__name__)

#: Columns of texts and of labels, unless others are named.
TEXT, LABEL = "text", "label"
#: Tables by the ends of their names, which say the format.
JSON_LINES, PARQUET, TXT = (".jsonl", ".ndjson"), ".parquet", ".txt"
#: A table with one of these holds features, whatever else it has: see `acil.encoders.tables`.
_FEATURES = ("features", "embedding")
#: Bad lines that are named in the message.
_TOLD = 5
#: What bytes that are not UTF-8 become while a table is taken apart, and what is said of them.
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_BYTES = "has bytes that are not UTF-8: save it as UTF-8."
#: The longest cell is a setting of the whole process.
_LIMIT = threading.Lock()

#: Where something stands: the number of a line (of a row in parquet), or the path of a file.
Place = int | str
#: A row of a table: its place, and its cells by column or what is wrong with it.
Row = tuple[Place, Mapping[str, Any] | str]


@dataclass(frozen=True)
class TextTable:
    """Texts of a file or a folder."""

    texts: list[str]
    """As `acil.encoders.text.clean_text` returns them."""
    labels: list[str] | None
    """Class of each text; None if the table has no labels."""
    bad: list[tuple[Place, str]]
    """Lines that were left out, and why."""
    taken: str
    """What was taken, for the user: which columns, how many texts."""
    places: list[Place]
    """Where each text stands."""


def is_text_table(path: str | os.PathLike[str]) -> bool:
    """Say whether a path holds texts: by its columns, and of folders by what they hold.

    Texts are JSON lines; a CSV, TSV or parquet file with a column ``text`` (and none of features); a
    .txt file; and a folder of .txt files, or of folders of them, without images.
    """
    place = Path(path)
    if place.is_dir():
        return _holds_texts(place)
    suffix = place.suffix.lower()
    if suffix in (*JSON_LINES, TXT) or not place.is_file():
        return suffix in (*JSON_LINES, TXT)
    if suffix in LISTS:
        with place.open("rb") as file:
            first = file.readline(2**20).decode("utf-8-sig", errors="replace")
        try:
            names = next(csv.reader(io.StringIO(first, newline=""), delimiter=delimiter_of(place)), [])
        except csv.Error:
            return False
    elif suffix == PARQUET:
        names = _parquet(place).schema_arrow.names
    else:
        return False
    columns = {_key(name) for name in names}
    return TEXT in columns and not columns & {*_FEATURES}


def read_texts(
    path: str | os.PathLike[str],
    text_column: str | None = None,
    label_column: str | None = None,
    skip_bad: bool = False,
    labelled: bool = True,
) -> TextTable:
    """Return the texts of a table or a folder, and their labels if it has some.

    Parameters
    ----------
    path : str or path-like
        A CSV, TSV, JSON lines (.jsonl, .ndjson) or parquet file; a .txt file, which is one text; or a
        folder of .txt files, or with a folder of them for each class. All in UTF-8.
    text_column, label_column : str, optional
        Columns to take instead of ``text`` and ``label``.
    skip_bad : bool, default=False
        Leave out lines that cannot be used, instead of refusing all.
    labelled : bool, default=True
        Read labels, if there are any; without, a line needs none.
    """
    place = existing(Path(path))
    suffix = place.suffix.lower()
    if place.is_dir() or suffix == TXT:
        if text_column is not None or label_column is not None:
            raise InputError(f"{place} is no table, and has no columns. Give no names of columns.")
        alone: tuple[bool, Iterator[Row]] = False, iter([(str(place), _file_cells(place, ""))])
        named, rows = _folder_rows(place) if place.is_dir() else alone
        return _table(place, rows, TEXT, LABEL if named and labelled else None, skip_bad)
    wanted = (text_column or TEXT, label_column or LABEL)
    if suffix in LISTS:
        names, rows = _csv_rows(place)
    elif suffix in JSON_LINES:
        names, rows = _json_rows(place)
    elif suffix == PARQUET:
        names, rows = _parquet_rows(place, wanted)
    else:
        raise InputError(
            f"{place} is no table of texts. Give a file .csv, .tsv, .jsonl or .parquet with a column "
            f"{TEXT!r}, or a folder with a folder of .txt files for each class."
        )
    listed = ", ".join(map(repr, names[:10])) or "none"
    text = _column(place, names, wanted[0], "texts", "--text-column")
    if not names and suffix in LISTS:
        raise InputError(f"{place} has no first line with the names of its columns.")
    if not names and suffix in JSON_LINES:
        text = wanted[0]  # its lines are bad, or there are none
    if text is None:
        hint = " It is separated by ';': write it with commas." if ";" in "".join(names[:1]) else ""
        raise InputError(
            f"{place} has no column {wanted[0]!r}; its columns are {listed}.{hint} Name that of the "
            "texts (--text-column)."
        )
    label = _column(place, names, wanted[1], "labels", "--label-column") if labelled else None
    if label is None and label_column is not None and labelled:
        raise InputError(f"{place} has no column {label_column!r}; its columns are {listed}.")
    return _table(place, rows, text, label, skip_bad)


def _table(
    path: Path, rows: Iterator[Row], text_column: str, label_column: str | None, skip_bad: bool
) -> TextTable:
    """Check all rows; raise if some are bad, unless they are to be left out."""
    texts: list[str] = []
    labels: list[str] = []
    places: list[Place] = []
    bad: list[tuple[Place, str]] = []
    for place, cells in rows:
        try:
            if isinstance(cells, str):
                raise InputError(cells)
            text = _text(cells.get(text_column))
            label = "" if label_column is None else clean_label(cells.get(label_column))
        except InputError as error:
            bad.append((place, str(error)))
            continue
        texts.append(text)
        labels.append(label)
        places.append(place)
    if not texts and not bad:
        raise InputError(f"{path} has no texts.")
    if bad and not (skip_bad and texts):
        named = [f"{where(place)}: {reason}" for place, reason in bad[:_TOLD]]
        named += [f"And {len(bad) - _TOLD} more."] if len(bad) > _TOLD else []
        raise UnreadableError(
            f"{len(bad)} of {len(texts) + len(bad)} texts of {path} cannot be used; nothing was "
            f"changed. {' '.join(named)}",
            len(texts),
        )
    taken = f"{path.name}: {len(texts):,} text{'s' if len(texts) > 1 else ''}"
    if path.is_dir():
        taken += " from .txt files"
        taken += f" of {len(set(labels))} class folders" if label_column else ", without labels"
    elif path.suffix.lower() != TXT:
        taken += f" from column {text_column!r}, "
        taken += f"labels from column {label_column!r}" if label_column else "without labels"
    return TextTable(texts, labels if label_column else None, bad, taken, places)


def where(place: Place) -> str:
    """Return the place of a text in words."""
    return f"Line {place}" if isinstance(place, int) else place


def _text(value: Any) -> str:
    if value is None:
        raise InputError("it has no text.")
    if not isinstance(value, str):
        raise InputError(f"its text is no text, but of type {type(value).__name__}.")
    if _NOT_UTF8.search(value):
        raise InputError(f"it {_BYTES}")
    return clean_text(value)


def clean_label(value: Any) -> str:
    """Return the name of a class in Unicode's composed form, without white space around it, or raise."""
    if isinstance(value, str):
        if _NOT_UTF8.search(value):
            raise InputError(f"the label {_BYTES}")
        value = unicodedata.normalize("NFC", value).strip()
    elif type(value) is int:
        value = str(value)
    elif value is not None:
        raise InputError(f"the label is of type {type(value).__name__}, not text or a whole number.")
    if not value:
        raise InputError("it has no label. Give all texts one, or leave the column out.")
    return check_class_name(value)


def _key(name: str) -> str:
    return name.strip().casefold()


def _column(path: Path, names: list[str], wanted: str, what: str, option: str) -> str | None:
    """Return the column of this name, in small or capital letters; None if there is none."""
    if names.count(wanted) == 1:
        return wanted
    matches = [name for name in names if _key(name) == _key(wanted)]
    if len(matches) > 1:
        raise InputError(
            f"{path} has several columns {wanted!r}: {', '.join(map(repr, matches))}. Rename all but "
            f"that of the {what}, or name it ({option})."
        )
    return matches[0] if matches else None


def _csv_rows(path: Path) -> tuple[list[str], Iterator[Row]]:
    content = _decoded(path)
    with _long_cells(len(content)):
        reader = csv.reader(io.StringIO(content, newline=""), delimiter=delimiter_of(path), strict=True)
        try:
            names = next(reader, [])
        except csv.Error as error:
            raise InputError(f"Cannot read the first line of {path}: {error}.") from None
        if any(map(_NOT_UTF8.search, names)):
            raise InputError(f"The first line of {path} {_BYTES}")
        rows = list(_records(reader, names))
    return names, iter(rows)


def _records(reader: Any, names: list[str]) -> Iterator[Row]:
    while True:
        start = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            end = "" if reader.line_num == start else f" This reaches to line {reader.line_num}."
            yield start, f"its quotation marks do not fit ({error}).{end}"
            continue
        if not row:  # an empty line
            continue
        if len(row) == len(names):
            yield start, dict(zip(names, row, strict=True))
        else:
            yield (
                start,
                f"it has {len(row)} cells, and the first line has {len(names)}. Put a text with commas "
                'into quotation marks (").',
            )


@contextmanager
def _long_cells(length: int) -> Iterator[None]:
    """Allow cells of so many characters, which the csv module takes for an error beyond 131,072."""
    with _LIMIT:
        before = csv.field_size_limit()
        csv.field_size_limit(max(before, length))
        try:
            yield
        finally:
            csv.field_size_limit(before)


def _json_rows(path: Path) -> tuple[list[str], Iterator[Row]]:
    rows: list[Row] = []
    names: dict[str, None] = {}
    for number, line in enumerate(_decoded(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            rows.append(
                (number, f"it {_BYTES}" if _NOT_UTF8.search(line) else f"it is no JSON: {error}.")
            )
            continue
        if isinstance(value, dict):
            names |= dict.fromkeys(value)
            rows.append((number, value))
        else:
            rows.append((number, 'it is no object {"text": …}.'))
    return list(names), iter(rows)


def _parquet(path: Path) -> Any:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise MissingExtraError(
            "Reading parquet needs the packages pandas and pyarrow. Install them with: "
            "pip install pandas pyarrow"
        ) from error
    try:
        return ParquetFile(path)
    except (ArrowException, OSError) as error:
        raise InputError(f"Cannot read {path} as parquet: {error}") from None


def _parquet_rows(path: Path, wanted: tuple[str, str]) -> tuple[list[str], Iterator[Row]]:
    file = _parquet(path)
    names = [str(name) for name in file.schema_arrow.names]
    needed = [name for name in names if _key(name) in map(_key, wanted)]
    if len({*needed}) < len(needed) or not needed:  # told by whoever looks for the columns
        return names, iter(())
    try:
        columns = file.read(columns=needed).to_pydict()
    except Exception as error:  # damaged pages raise classes of several libraries
        raise InputError(f"Cannot read {path} as parquet: {error}") from None
    cells = zip(*(columns[name] for name in needed), strict=True)
    numbered = enumerate((dict(zip(needed, row, strict=True)) for row in cells), start=1)
    return names, iter([(f"Row {number}", row) for number, row in numbered])


def _decoded(path: Path) -> str:
    """Return a file as text; bytes that are not UTF-8 stay, so that their line can be told."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error}.") from None
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InputError(f"{path} is in UTF-16. Save it as UTF-8.")
    return content.decode("utf-8-sig", errors="surrogateescape")


def _entries(folder: Path, wanted: Callable[[os.DirEntry[str]], bool]) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            shown = [entry for entry in entries if not entry.name.startswith(".") and wanted(entry)]
    except OSError as error:
        raise InputError(f"Cannot read the folder {folder}: {error}.") from None
    return (Path(entry.path) for entry in sorted(shown, key=lambda entry: entry.name))


def _folders(folder: Path) -> list[Path]:
    return list(_entries(folder, lambda entry: entry.is_dir()))


def _text_files(folder: Path) -> list[Path]:
    return list(_entries(folder, lambda e: e.name.lower().endswith(".txt") and not e.is_dir()))


def _holds_texts(folder: Path) -> bool:
    return not holds_images(folder) and any(map(_text_files, [folder, *_folders(folder)]))


def _folder_rows(folder: Path) -> tuple[bool, Iterator[Row]]:
    """Return the .txt files of class folders, and True; or those of the folder itself, and False."""
    classes = [(place, _text_files(place)) for place in _folders(folder)]
    samples = [(file, place.name) for place, files in classes for file in files]
    labelled, beside = bool(samples), _text_files(folder)
    if labelled and beside:
        logger.warning("left out: %s .txt files beside the class folders of %s", len(beside), folder)
    named = samples or [(file, "") for file in beside]
    return labelled, ((str(file), _file_cells(file, label)) for file, label in named)


def _file_cells(file: Path, label: str) -> Mapping[str, Any] | str:
    try:
        text = _decoded(file)
    except InputError as error:
        return str(error)
    return {TEXT: text, LABEL: label}
