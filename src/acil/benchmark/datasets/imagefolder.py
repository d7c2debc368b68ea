"""Folders of images in ImageNet's layout, and the two ImageNet-100 subsets of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from acil.benchmark.datasets import ROOT_VARIABLE, Dataset, ProgressCallback
from acil.benchmark.datasets.imagecache import Source, decoded
from acil.benchmark.orders import IMAGENET_CLASSES, Subset, imagenet_subset
from acil.errors import InputError
from acil.vision.imageset import ImageSet
from acil.vision.listing import SUFFIXES

logger = logging.getLogger(__name__)

#: Environment variable that names the folder for decoded images.
CACHE_VARIABLE = "ACIL_CACHE"
_SHOWN = 5


def load(
    root: Path | None,
    *,
    size: int = 256,
    subset: Subset | None = None,
    cache: str | os.PathLike[str] | None = None,
    skip_bad: bool = False,
    progress: ProgressCallback | None = None,
) -> Dataset:
    """Return the images in ``train/CLASS/*`` and ``val/CLASS/*`` (or ``test/CLASS/*``).

    Parameters
    ----------
    root : Path
        Folder with ``train`` and ``val``. Class folders may be symbolic links; hidden files and files
        that are no images by their name are ignored.
    size : int
        Side of the stored square: the shorter side is scaled to it, the middle is cut out. The pixels
        of all images are kept in one file of 3 x size² bytes each.
    subset : {"lucir", "podnet"}, optional
        Take one of the two ImageNet-100 subsets. They are published as positions in the sorted list of
        the 1000 class folders, so all 1000 must be there.
    cache : str or path-like, optional
        Folder for the decoded images; by default the environment variable ACIL_CACHE says, or it is
        ``.acil-cache`` in ``root``.
    skip_bad : bool
        Leave out images that cannot be decoded; `Dataset.skipped` names them.
    progress : callable, optional
    """
    root = _checked_root(root)
    if not 1 <= size <= 4096:
        raise InputError(f"size must be from 1 to 4096 pixels, got {size}.")
    test_name = "val" if (root / "val").is_dir() else "test"
    names = _class_names(root / "train", subset)
    _check_same_classes(root, names, test_name, subset)
    folder = Path(cache or os.environ.get(CACHE_VARIABLE) or root / ".acil-cache")
    splits = [
        _load_split(root / split, names, size, folder, skip_bad, progress)
        for split in ("train", test_name)
    ]
    (train, train_labels, skipped), (test, test_labels, skipped_too) = splits
    return Dataset(
        name="imagefolder" if subset is None else f"imagenet100-{subset}",
        train=train,
        train_labels=train_labels,
        test=test,
        test_labels=test_labels,
        class_names=tuple(names),
        default_recipe="imagenet",
        default_base=len(names) // 2,
        skipped=(*skipped, *skipped_too),
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


def _class_names(folder: Path, subset: Subset | None) -> list[str]:
    """Return the names of the class folders, sorted; with a subset only those in it."""
    names = sorted(
        entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith(".")
    )
    if not names:
        raise InputError(f"{folder} has no class folders. Put the images of each class into a folder.")
    if subset is None:
        return names
    positions = imagenet_subset(subset)
    if len(names) != IMAGENET_CLASSES:
        raise InputError(
            f"The subset {subset} is a list of positions among {IMAGENET_CLASSES} classes, but {folder} "
            f"has {len(names)}. Give all of ImageNet; a folder of the subset alone is an imagefolder."
        )
    return [names[position] for position in positions]


def _check_same_classes(root: Path, names: list[str], test_name: str, subset: Subset | None) -> None:
    there = set(_class_names(root / test_name, None))
    missing = sorted(set(names) - there)
    extra = sorted(there - set(_class_names(root / "train", None)))
    for classes, has, lacks in ((extra, test_name, "train"), (missing, "train", test_name)):
        if classes:
            raise InputError(
                f"{root / has} has {len(classes)} classes that {root / lacks} lacks: {_first(classes)}. "
                "Both must have the same class folders."
            )


def _load_split(
    folder: Path,
    names: list[str],
    size: int,
    cache: Path,
    skip_bad: bool,
    progress: ProgressCallback | None,
) -> tuple[ImageSet, Tensor, tuple[str, ...]]:
    sources, labels = [], []
    for label, name in enumerate(names):
        found = _list_images(folder / name)
        sources += found
        labels += [label] * len(found)
    result = decoded(sources, size, cache, folder.name, progress)
    if result.bad and not skip_bad:
        reasons = "; ".join(list(result.bad.values())[:_SHOWN])
        raise InputError(
            f"{len(result.bad)} of {len(sources)} images in {folder} cannot be used: {reasons}"
            f"{' …' if len(result.bad) > _SHOWN else ''} Mend or remove them, or leave them out with "
            "--skip-bad."
        )
    if result.bad:
        logger.warning(
            "Left out %d of %d images in %s: %s",
            len(result.bad),
            len(sources),
            folder,
            _first(result.bad),
        )
    return result.images, torch.tensor(labels, dtype=torch.int64)[result.kept], tuple(result.bad)


def _list_images(folder: Path) -> list[Source]:
    images, others = [], 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir() or Path(entry.name).suffix.lower() not in SUFFIXES:
                others += 1
                continue
            images.append(Source(Path(entry.path), _name(entry), _stamp(entry)))
    if not images:
        raise InputError(
            f"The class folder {folder} holds no images ({others} other entries). Images must lie "
            "directly in it; remove the folder if the class has none."
        )
    if others:
        logger.warning("Ignored %d entries in %s that are no images by their name.", others, folder)
    return sorted(images, key=lambda source: source.name)


def _name(entry: os.DirEntry[str]) -> str:
    return "/".join(Path(entry.path).parts[-3:])


def _stamp(entry: os.DirEntry[str]) -> tuple[int, int]:
    try:
        status = entry.stat()
    except OSError:
        return (-1, -1)  # a link that leads nowhere: decoding will say so
    return (status.st_size, status.st_mtime_ns)


def _first(items: Iterable[str]) -> str:
    listed = list(items)
    return ", ".join(listed[:_SHOWN]) + (" …" if len(listed) > _SHOWN else "")
