"""Folders of images, one for each class.

Images are decoded once, into one file of pixels that later runs map into memory.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from acil.bench.datasets import ROOT_VARIABLE, Dataset, ProgressCallback
from acil.core.files.writing import locked, replacing
from acil.encoders.images.decode import decode
from acil.encoders.images.embedder import decode_all
from acil.encoders.images.imageset import ImageSet
from acil.encoders.images.listing import first_of, list_images
from acil.encoders.images.networks import CACHE_VARIABLE
from acil.errors import ACILError, InputError

logger = logging.getLogger(__name__)

#: Goes up when the files of the cache change.
_VERSION = 2
#: Reasons that a message lists.
_SHOWN = 5


def load(
    root: Path | None,
    *,
    size: int = 256,
    n_classes: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    skip_bad: bool = False,
    progress: ProgressCallback | None = None,
) -> Dataset:
    """Return the images in ``train/CLASS/*`` and ``val/CLASS/*`` (or ``test/CLASS/*``) of a folder.

    Class folders may be symbolic links; hidden files and files that are no images by their name are
    ignored. Of an image the shorter side is scaled to ``size``, and the middle square is cut out. The
    pixels of all are kept in one file, of 3 x size² bytes each, in the folder ``cache``; by default the
    environment variable ACIL_CACHE names it, or it is ``.acil-cache`` in ``root``. ``skip_bad`` leaves
    out images that cannot be decoded; `Dataset.skipped` names them.

    With ``n_classes``, so many class folders must be there. Such a data set is for networks that are
    trained already: its recipe is ``pretrained``, and it has no base phase.
    """
    root = _checked_root(root)
    if type(size) is not int or not 1 <= size <= 4096:
        raise InputError(f"size must be a whole number of pixels from 1 to 4096, got {size!r}.")
    test_name = "val" if (root / "val").is_dir() else "test"
    there = {split: _class_names(root / split) for split in ("train", test_name)}
    names = there["train"]
    for classes, has, lacks in (
        (set(there[test_name]) - set(there["train"]), test_name, "train"),
        (set(names) - set(there[test_name]), "train", test_name),
    ):
        if classes:
            raise InputError(
                f"{root / has} has {len(classes)} classes that {root / lacks} lacks: "
                f"{first_of(sorted(classes))}. Both must have the same class folders."
            )
    if n_classes not in (None, len(names)):
        raise InputError(
            f"{root} has {len(names)} classes, but this data set has {n_classes}. Give all of them; "
            "a folder with some of them is an imagefolder."
        )
    folder = Path(cache or os.environ.get(CACHE_VARIABLE) or root / ".acil-cache")
    train, test = (_load_split(root / split, names, size, folder, skip_bad, progress) for split in there)
    return Dataset(
        name="imagefolder",
        train=train[0],
        train_labels=train[1],
        test=test[0],
        test_labels=test[1],
        class_names=tuple(names),
        default_recipe="imagenet" if n_classes is None else "pretrained",
        default_base=len(names) // 2 if n_classes is None else 0,
        skipped=(*train[2], *test[2]),
    )


def _checked_root(root: Path | None) -> Path:
    if root is None:
        raise InputError(
            "Which folder holds the images? Write imagefolder:DIR, give --root DIR or set "
            f"{ROOT_VARIABLE}."
        )
    for choice in (("train",), ("val", "test")):
        if not any((root / name).is_dir() for name in choice):
            raise InputError(
                f"{root} has no folder {' or '.join(choice)!r}. It must hold train/CLASS/* and "
                "val/CLASS/* (or test/CLASS/*), one folder for each class."
            )
    return root


def _class_names(folder: Path) -> list[str]:
    """Return the names of the class folders, sorted."""
    names = sorted(
        entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith(".")
    )
    if not names:
        raise InputError(f"{folder} has no class folders. Put the images of each class into a folder.")
    for name in names:
        if not name.isprintable():  # as bytes that are no UTF-8 are not
            raise InputError(f"The class folder {name!r} in {folder} has no name that can be printed.")
    return names


def _load_split(
    folder: Path,
    names: list[str],
    size: int,
    cache: Path,
    skip_bad: bool,
    progress: ProgressCallback | None,
) -> tuple[ImageSet, Tensor, tuple[str, ...]]:
    """Return the images of a split, their labels, and the names of those that were left out."""
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        # The label is not used: here any folder may be a class, whatever its name.
        listing = list_images(folder / name, "class")
        if listing.ignored:
            told = "Ignored %d entries in %s that are no images by their name."
            logger.warning(told, len(listing.ignored), folder / name)
        paths += listing.paths
        labels += [label] * len(listing.paths)
    images, readable, bad = _decoded(paths, size, cache, folder.name, progress)
    if bad and not skip_bad:
        reasons = "; ".join(list(bad.values())[:_SHOWN])
        raise InputError(
            f"{len(bad)} of {len(paths)} images in {folder} cannot be used: {reasons}"
            f"{' …' if len(bad) > _SHOWN else ''} Mend or remove them, or leave them out with "
            "--skip-bad."
        )
    if bad:
        told = first_of(list(bad))
        logger.warning("Left out %d of %d images in %s: %s", len(bad), len(paths), folder, told)
        images = images.subset(readable)
    return images, torch.tensor(labels, dtype=torch.int64)[readable], tuple(bad)


#: All images, those that could not be decoded as zeros; which ones could; why the others could not.
_Decoded = tuple[ImageSet, Tensor, dict[str, str]]


def _decoded(
    paths: Sequence[Path], size: int, folder: Path, what: str, progress: ProgressCallback | None
) -> _Decoded:
    """Return all images as squares of pixels, from the cache or by decoding them now."""
    # Folders of other data may have files of the same names, sizes and times.
    digest = hashlib.sha256(f"{_VERSION} {size} {paths[0].resolve().parent}".encode(errors="replace"))
    for path in paths:
        digest.update(json.dumps([_name(path), *_stamp(path)]).encode())
    pixels = folder / f"{what}-{digest.hexdigest()[:24]}.npy"
    shape = (len(paths), 3, size, size)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A second run on the same folder waits here, and then finds the file.
        with locked(pixels):
            decoded = _read(pixels, shape)
            if decoded is None:
                _write(paths, shape, pixels, what, progress)
                decoded = _read(pixels, shape)
    except (OSError, ACILError) as error:
        raise InputError(
            f"Cannot keep decoded images in {folder}: {error} Choose another folder with the option "
            f"cache or the environment variable {CACHE_VARIABLE}."
        ) from error
    if decoded is None:
        raise InputError(f"{pixels} disappeared as soon as it was written. Choose another cache folder.")
    return decoded


def _name(path: Path) -> str:
    """Return the path of an image inside its data set, for keys and messages."""
    return "/".join(path.parts[-3:])


def _stamp(path: Path) -> tuple[int, int]:
    """Return size and time of the last change of a file."""
    try:
        status = path.stat()
    except OSError:
        return -1, -1  # a link that leads nowhere: decoding will say so
    return status.st_size, status.st_mtime_ns


def _read(pixels: Path, shape: tuple[int, ...]) -> _Decoded | None:
    """Return what the cache has; None if it has nothing, or something damaged."""
    try:
        content = json.loads(pixels.with_suffix(".json").read_text(encoding="utf-8"))
        # Copy on write: torch wants memory it could write to, and the file must not change.
        array = np.load(pixels, mmap_mode="c", allow_pickle=False)
        if array.shape != shape or array.dtype != np.uint8:
            raise ValueError(f"{array.dtype} of shape {array.shape}")
        images = ImageSet(torch.from_numpy(array), None, str(content["identity"]))
        return images, torch.tensor(content["kept"], dtype=torch.int64), dict(content["bad"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("The cache %s is damaged (%s); decoding the images again.", pixels, error)
        return None


def _write(
    paths: Sequence[Path],
    shape: tuple[int, ...],
    pixels: Path,
    what: str,
    progress: ProgressCallback | None,
) -> None:
    needed, free = int(np.prod(shape)), shutil.disk_usage(pixels.parent).free
    if needed > free:
        raise InputError(
            f"{len(paths):,} images of {shape[-1]} x {shape[-1]} pixels need {needed:,} bytes, but "
            f"there are only {free:,} free."
        )
    readable, bad = [], {}
    digest = hashlib.sha256(f"uint8 3 {shape[-1]} {shape[-1]}".encode())
    blank = bytes(int(np.prod(shape[1:])))
    with replacing(pixels) as draft, draft.open("wb") as file:
        facts = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, facts)
        for index, result in enumerate(decode_all(paths, lambda path: decode(path, shape[-1]))):
            if isinstance(result, InputError):
                bad[_name(paths[index])] = str(result)
                file.write(blank)
            else:
                row = result.numpy().tobytes()
                file.write(row)
                digest.update(row)
                readable.append(index)
            if progress is not None:
                progress(f"decoding {what}", index + 1, len(paths))
    if bad:
        # Images that could not be decoded are rows, too: other rows, another identity.
        digest.update(json.dumps(readable).encode())
    with replacing(pixels.with_suffix(".json")) as draft:
        content = {"identity": digest.hexdigest(), "kept": readable, "bad": bad}
        draft.write_text(json.dumps(content), encoding="utf-8")
