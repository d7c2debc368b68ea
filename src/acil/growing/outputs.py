"""Predictions as files: a table, or folders of links or copies by class."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from acil.core.files.writing import replacing
from acil.encoders.images.listing import UNKNOWN, check_class_name
from acil.encoders.samples import counted
from acil.errors import InputError, MissingExtraError
from acil.growing.results import Prediction

#: Kinds of tables, by the ends of their names.
TABLES = (".csv", ".jsonl", ".parquet")
#: What makes a spreadsheet run a cell, where it is the first character; some take the wide ones, too.
_RUN = frozenset("=+-@\t\r\n＝＋－＠")


def quoted(cell: str) -> str:
    """Return the text of a cell so that no spreadsheet takes it for a formula.

    Examples
    --------
    >>> quoted("=1+1"), quoted("cat")
    ("'=1+1", 'cat')
    """
    return f"'{cell}" if cell[:1] in _RUN else cell


def columns(found: Sequence[Prediction]) -> dict[str, list[Any]]:
    """Return predictions as columns: sample, label, novelty, then class and probability of the best."""
    ranks = max((len(prediction.top) for prediction in found), default=0)
    table: dict[str, list[Any]] = {
        found[0].thing if found else "image": [prediction.image for prediction in found],
        "label": [prediction.label for prediction in found],
        "novelty": [prediction.novelty for prediction in found],
    }
    for rank in range(ranks):
        pairs = [p.top[rank] if rank < len(p.top) else ("", None) for p in found]
        table[f"class{rank + 1}"] = [name for name, _ in pairs]
        table[f"probability{rank + 1}"] = [share for _, share in pairs]
    return table


def write_csv(found: Sequence[Prediction], file: IO[str]) -> None:
    """Write predictions as CSV; texts that a spreadsheet would run begin with an apostrophe."""
    table = columns(found)
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(table)
    for row in zip(*table.values(), strict=True):
        writer.writerow(map(_cell, table, row))


def _cell(column: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4f}" if column == "novelty" else f"{value:.6f}"
    # A carriage return alone would end the line, for some readers.
    return quoted(str(value)).replace("\r\n", "\n").replace("\r", "\n")


def require_table(path: Path) -> None:
    """Raise unless predictions can be written to a file of this name."""
    kind = path.suffix.lower()
    if kind not in TABLES:
        raise InputError(
            f"Predictions are written to a file whose name ends with {', '.join(TABLES)}, not {path}."
        )
    if kind == ".parquet":
        _pandas()


def write_predictions(found: Sequence[Prediction], path: str | os.PathLike[str]) -> None:
    """Write predictions to a table, whole or not at all: a line for each, in their order.

    Parameters
    ----------
    found : sequence of Prediction
    path : str or path-like
        CSV (.csv), JSON lines (.jsonl), or parquet (.parquet, needs pandas and pyarrow). A file that is
        there is replaced. Only JSON lines have samples that could not be read, with the reason.
    """
    place = Path(path)
    require_table(place)
    kind, readable = place.suffix.lower(), [p for p in found if p.error is None]
    with replacing(place) as draft:
        if kind == ".parquet":
            _pandas().DataFrame(columns(readable)).to_parquet(draft, index=False)
            return
        with draft.open("w", encoding="utf-8", newline="") as file:
            if kind == ".csv":
                write_csv(readable, file)
            else:
                file.writelines(f"{json.dumps(p.to_dict(), ensure_ascii=False)}\n" for p in found)


def _pandas() -> Any:
    try:
        import pandas
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "Writing parquet needs the packages pandas and pyarrow. Install them with: pip install "
            "pandas pyarrow"
        ) from error
    return pandas


def sort_into(
    folder: str | os.PathLike[str], found: Sequence[Prediction], copy: bool = False
) -> dict[str, int]:
    """Make a folder with a folder for each class that is named, of links to image files or of copies.

    Unknown images are in one of their own, ``unknown``; those that could not be read are left out. What
    is there is not touched: see `require_new_folder`. Return the number of images of each class.
    """
    readable = [prediction for prediction in found if prediction.error is None]
    names = [UNKNOWN if p.unknown else check_class_name(p.label) for p in readable]
    files = [p.image for p in readable]
    pairs = [(f"{name}/{Path(file).name}", file) for name, file in zip(names, files, strict=True)]
    link_into(folder, pairs, copy)
    return counted(names)


def link_into(
    folder: str | os.PathLike[str], files: Iterable[tuple[str, str]], copy: bool = False
) -> None:
    """Make a folder of links, or of copies: the name in it, and the file, of each.

    It is there as a whole or not at all. Where files would have the same name, later ones get a number.
    """
    place = Path(folder)
    require_new_folder(place)
    draft = place.absolute().with_name(f".{place.name}.{os.getpid()}.part")
    times: Counter[Path] = Counter()
    try:
        draft.mkdir()
        for name, file in files:
            source, target = Path(file).absolute(), Path(name)
            while times[target]:
                times[Path(name)] += 1
                target = target.with_stem(f"{Path(name).stem} ({times[Path(name)]})")
            times[target] += 1
            (draft / target).parent.mkdir(exist_ok=True)
            if copy:
                shutil.copy2(source, draft / target)
            else:
                (draft / target).symlink_to(source)
        draft.rename(place.absolute())
    except OSError as error:
        raise InputError(f"Cannot make the folder {place}: {error}. Nothing is left of it.") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def require_new_folder(folder: Path) -> None:
    """Raise unless a folder can be made: there is none, or an empty one, in a folder that exists."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError(f"{folder} exists. Give the name of a new folder.")
    if not folder.absolute().parent.is_dir():
        raise InputError(f"There is no folder {folder.absolute().parent}. Create it first.")
