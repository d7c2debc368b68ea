"""Which images, of which classes: what was given, as pairs of image and label."""

from __future__ import annotations

import csv
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from acil.encoders.images.decode import PICTURES, Source
from acil.errors import InputError

logger = logging.getLogger(__name__)

#: One place of images, or several images.
Given = str | os.PathLike[str] | Sequence[Source]
#: A format that this build of Pillow lacks is reported when the file is read.
SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
) | {".jp2", ".avif", ".heic", ".heif"}
LISTS = (".csv", ".tsv")
#: What a prediction says of an image that is like nothing learnt; so no class may be called that.
UNKNOWN = "unknown"
#: What people have instead of tables, and what to do with it.
_NOT_READ = dict.fromkeys((".gz", ".bz2", ".xz", ".zst", ".zip"), "is compressed. Unpack it first.")
_NOT_READ |= dict.fromkeys((".xlsx", ".xls", ".ods"), "is a spreadsheet. Save it as CSV in UTF-8.")
_MAX_NAME = 200
_SHOWN = 5


@dataclass
class Listing:
    """Image files and their labels, one for each."""

    paths: list[Path] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    #: Entries of class folders that are no images by their name, and images beside class folders.
    ignored: list[Path] = field(default_factory=list)

    def add(self, paths: Iterable[Path], label: str) -> None:
        """Add files of one class."""
        added = list(paths)
        self.paths += added
        self.labels += [label] * len(added)


def check_class_name(name: str) -> str:
    """Return the name of a class, or say why it cannot be one: it is shown, and names a folder."""
    fault = None
    if not name or name != name.strip():
        fault = "is empty, or begins or ends with a space"
    elif len(name) > _MAX_NAME:
        fault = f"has {len(name)} characters, more than {_MAX_NAME}"
    elif not name.isprintable():
        fault = "has characters that cannot be printed"
    elif "/" in name or "\\" in name or name in (".", ".."):
        fault = "reads like a path"
    elif name == UNKNOWN:
        fault = "is what predictions call samples that are like nothing learnt"
    if fault is not None:
        raise InputError(f"The class name {name[:_MAX_NAME]!r} {fault}. Rename the class.")
    return name


def list_images(source: str | os.PathLike[str], label: str | None = None) -> Listing:
    """Return the images of a folder, a CSV file or one image file.

    Parameters
    ----------
    source : str or path-like
        With ``label``: a folder of images, or an image. Without: a folder with one folder for each
        class, or a CSV file. Class folders may be symbolic links; hidden entries are left out.
    label : str, optional
        Class of all these images.
    """
    path = Path(source)
    if label is not None:
        listing = Listing()
        if path.is_dir():
            _add_folder(listing, path, check_class_name(label))
        elif path.suffix.lower() in LISTS:
            raise InputError(f"{path} is a list, which names the classes itself: give no other class.")
        else:
            listing.add([existing(path)], check_class_name(label))
        return listing
    if path.is_dir():
        return _class_folders(path)
    if path.suffix.lower() in LISTS:
        return _read_csv(existing(path))
    if path.suffix.lower() in SUFFIXES:
        raise InputError(f"{path} is one image: say which class it belongs to (--class NAME).")
    existing(path)
    raise InputError(
        f"{path} is neither a folder with one folder for each class, nor a CSV file of path and label, "
        "nor a file of features (.npz, .parquet, .csv). Give one of these, or images with --class NAME."
    )


def list_files(sources: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Return image files for prediction: files, those of CSV lists, all of folders, at any depth."""
    images: list[Path] = []
    for source in sources:
        path = Path(source)
        if path.suffix.lower() in LISTS and not path.is_dir():
            images += _read_csv(existing(path)).paths
            continue
        if not path.is_dir():
            images.append(existing(path))
            continue
        before, seen, tell = len(images), set(), partial(logger.warning, "left out: %s")
        # Linked class folders count; a link to a folder above would lead round in circles.
        for root, folders, files in os.walk(path, onerror=tell, followlinks=True):
            real = Path(root).resolve()
            folders[:] = [] if real in seen else sorted(f for f in folders if not f.startswith("."))
            if real not in seen:
                images += [Path(root, name) for name in sorted(files) if _is_image(name)]
            seen.add(real)
        if len(images) == before:
            raise InputError(f"{path} holds no images ({', '.join(sorted(SUFFIXES))}).")
    return images


def holds_features(path: str | os.PathLike[str]) -> bool:
    """Say whether a file holds features, by its name, and of CSV files by their first line.

    A CSV file of two columns is a list of images and labels.
    """
    place = Path(path)
    if place.suffix.lower() not in LISTS or not place.is_file():
        return place.suffix.lower() in (".npz", ".parquet")
    with place.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        try:
            return len(next(csv.reader(file, delimiter=delimiter_of(place)), [])) > 2
        except csv.Error as error:
            raise InputError(f"Cannot read {place} as CSV: {error}.") from None


def holds_images(path: str | os.PathLike[str]) -> bool:
    """Say whether a path is a folder with files named like images in it, or in a folder in it."""
    place = Path(path)
    if not place.is_dir():
        return False
    folders = [place, *(folder for folder in place.glob("[!.]*") if folder.is_dir())]
    return any(_is_image(file.name) for folder in folders for file in folder.glob("[!.]*"))


def images_and_labels(
    source: Given, labels: str | Sequence[str] | None
) -> tuple[list[Source], list[str]]:
    """Return images and the class of each, which is "" for images without labels."""
    if isinstance(source, str | os.PathLike):
        if labels is not None and not isinstance(labels, str):
            raise InputError(f"{os.fspath(source)} is one place: give one label, or a list of images.")
        listing = list_images(source, labels)
        return list(listing.paths), listing.labels
    require_list(source)
    sources = list(source)
    if not sources:
        raise InputError("There are no images. Give at least one.")
    if labels is None:
        return sources, [""] * len(sources)
    names = [labels] * len(sources) if isinstance(labels, str) else [str(label) for label in labels]
    if len(names) != len(sources):
        raise InputError(f"There are {len(sources)} images but {len(names)} labels.")
    for name in set(names):
        check_class_name(name)
    if isinstance(labels, str):
        folders = [s for s in sources if isinstance(s, str | os.PathLike) and Path(s).is_dir()]
        if folders:
            raise InputError(f"{folders[0]!s} is a folder. Give folders one at a time.")
    return sources, names


def require_labels(source: Given, labels: object) -> None:
    """Raise if images are given without labels; those in a folder are named by it."""
    if labels is None and not isinstance(source, str | os.PathLike):
        raise InputError("A list of images needs labels: one for all, or one for each.")


def require_list(source: object) -> None:
    """Raise if one image is given instead of a list of images."""
    one_array = isinstance(source, np.ndarray) and source.ndim < 4
    if one_array or isinstance(source, (str, os.PathLike, bytes, *PICTURES)):
        raise InputError("Give a list of images, even for one.")


def name_of(source: Source, number: int) -> str:
    """Return what an image is called in results."""
    return os.fspath(source) if isinstance(source, str | os.PathLike) else f"image {number + 1}"


def _class_folders(folder: Path) -> Listing:
    listing = Listing()
    names = sorted(e.name for e in folder.iterdir() if e.is_dir() and not e.name.startswith("."))
    if not names:
        raise InputError(
            f"{folder} has no class folders. Put the images of each class into a folder of its name, or "
            "say which class all its images belong to (--class NAME)."
        )
    for name in names:
        _add_folder(listing, folder / check_class_name(name), name)
    listing.ignored += sorted(e for e in folder.iterdir() if _is_image(e.name) and not e.is_dir())
    return listing


def _add_folder(listing: Listing, folder: Path, label: str) -> None:
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    images = [entry for entry in entries if _is_image(entry.name) and not entry.is_dir()]
    if not images:
        raise InputError(
            f"The class folder {folder} holds no images ({len(entries)} other entries). Images must "
            "lie directly in it: give the folder whose folders are the classes, without empty ones."
        )
    listing.add(images, label)
    listing.ignored += sorted(set(entries) - set(images))


def _is_image(name: str) -> bool:
    return Path(name).suffix.lower() in SUFFIXES and not name.startswith(".")


def _read_csv(path: Path) -> Listing:
    """Read lines of path and label; paths are relative to the file's folder and stay inside it.

    Files that are missing are reported when they are read, like those that cannot be read.
    """
    listing = Listing()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.reader(file, delimiter=delimiter_of(path)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"Cannot read {path}: {error}. Give a CSV file in UTF-8.") from None
    for number, row in enumerate(rows, start=1):
        if not row or (number == 1 and [cell.strip().lower() for cell in row] == ["path", "label"]):
            continue
        if len(row) != 2:
            hint = " It is separated by ';': write it with commas." if ";" in row[0] else ""
            raise InputError(
                f"{path}, line {number}: a list has exactly two columns, path and label; found "
                f"{len(row)}.{hint}"
            )
        name, label = row[0].strip(), row[1].strip()
        try:
            check_class_name(label)
            image = _inside(path.parent, name)
            if number == 1 and image.suffix.lower() not in SUFFIXES and not os.path.lexists(image):
                raise InputError(
                    f"there is no file {name[:_MAX_NAME]}. The first line must be path,label, or be "
                    "left out; before texts it must be text,label."
                )
            listing.add([image], label)
        except InputError as error:
            raise InputError(f"{path}, line {number}: {error}") from None
    if not listing.paths:
        raise InputError(
            f"{path} names no images. Write one line of path and label for each; before texts, a first "
            "line text,label."
        )
    return listing


def _inside(folder: Path, name: str) -> Path:
    relative = Path(name)
    if not name.isprintable() or relative.is_absolute() or ".." in relative.parts:
        raise InputError(
            f"the path {name[:_MAX_NAME]!r} leaves the folder of the list. Put the list beside or above "
            "the images."
        )
    return folder / relative


def existing(path: Path) -> Path:
    """Return a path; raise unless there is something at it that may be read as it is."""
    try:
        there, advice = path.exists(), _NOT_READ.get(path.suffix.lower())
    except (OSError, ValueError) as error:
        raise InputError(f"{str(path)[:_MAX_NAME]!r} is not a usable path ({error}).") from None
    if not there:
        raise InputError(f"There is no file {path}. Check the path.")
    if advice is not None and path.is_file():
        raise InputError(f"{path} {advice}")
    return path


def first_of(items: Sequence[object]) -> str:
    """Return the first few items as text."""
    return ", ".join(map(str, items[:_SHOWN])) + (" …" if len(items) > _SHOWN else "")


def delimiter_of(path: Path) -> str:
    """Return what stands between the cells of a CSV file, by its name."""
    return "\t" if path.suffix.lower() == ".tsv" else ","
