"""Data sets: one file each and one line in the registry.

A loader is a function ``load(root, *, skip_bad, progress, **options)`` that returns a `Dataset`; what
comes after ``root`` may be missing. A user's own needs no line here: ``"package.module:function"`` is a
name too.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acil.encoders.images.imageset import ImageSet
from acil.encoders.images.listing import first_of
from acil.errors import InputError

#: Called with what is being done, how much is done, and of how much (None if unknown).
ProgressCallback = Callable[[str, int, int | None], None]
#: Environment variable that names the folder of the data.
ROOT_VARIABLE = "ACIL_DATA"


#: Name → a module here with a function `load`, and options given to it.
DATASETS: dict[str, tuple[str, dict[str, Any]]] = {
    # 8 x 8 digits that ship with scikit-learn
    "digits": ("digits", {}),
    "cifar100": ("cifar100", {}),
    # imagefolder:DIR with train/CLASS/* and val/CLASS/*
    "imagefolder": ("imagefolder", {}),
    # imagenet:DIR: the official folders and archives, read while a network trains
    "imagenet": ("imagenet", {"n_classes": 1000, "subset": "podnet"}),
    # A hundred classes of it: by the option subset, which is podnet's if nothing is said; or by name
    "imagenet100": ("imagenet", {"n_classes": 100}),
    "imagenet100-lucir": ("imagenet", {"n_classes": 100, "subset": "lucir"}),
    "imagenet100-podnet": ("imagenet", {"n_classes": 100, "subset": "podnet"}),
    # Where pre-trained networks are compared: folders, no base phase, recipe "pretrained"
    "cub": ("imagefolder", {"n_classes": 200}),
    "imagenet-r": ("imagefolder", {"n_classes": 200}),
    "cars": ("imagefolder", {"n_classes": 196}),
    # features:FILE with embeddings of any network (safetensors or npz)
    "features": ("features", {}),
}
#: Modules of data that lie where the user says: the name may be followed by a colon and the place.
WITH_PLACE = ("imagefolder", "imagenet", "features")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and labels of a training and a test split."""

    name: str
    train: ImageSet
    #: int64, 0 … len(class_names) - 1; each class has at least one image in each split.
    train_labels: Tensor
    test: ImageSet
    test_labels: Tensor
    class_names: tuple[str, ...]
    default_recipe: str
    #: Classes of the base phase unless the user says otherwise; 0: there is none.
    default_base: int
    #: Names of images that were left out because they could not be read.
    skipped: tuple[str, ...] = ()
    #: What to know of an outline: how images were counted.
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_split(self, "training", self.train, self.train_labels)
        _check_split(self, "test", self.test, self.test_labels)

    @cached_property
    def identity(self) -> str:
        """Hash of all images, labels and class names."""
        digest = hashlib.sha256()
        digest.update(f"{self.train.identity} {self.test.identity} {self.class_names!r}".encode())
        for labels in (self.train_labels, self.test_labels):
            digest.update(labels.contiguous().numpy().tobytes())
        return digest.hexdigest()

    @cached_property
    def class_sizes(self) -> Tensor:
        """Number of training samples of each class, (classes,)."""
        return torch.bincount(self.train_labels, minlength=len(self.class_names))


def load(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    skip_bad: bool = False,
    check: bool = False,
    outline: bool = False,
    progress: ProgressCallback | None = None,
    **options: Any,
) -> Dataset:
    """Load a data set.

    ``name`` is a key of `DATASETS`, ``"imagefolder:DIR"``, ``"features:FILE"``, or a user's own loader,
    ``"package.module:function"``; ``root`` is where the data are, by default where the environment
    variable ACIL_DATA says. ``skip_bad`` leaves out images that cannot be read, instead of stopping;
    ``check`` reads every image of one that otherwise is read while a network trains, and ``outline``
    reads none where that can be: enough for a plan. ``progress`` is told about long work; ``options``
    are those of the loader.

    Examples
    --------
    >>> digits = load("digits")
    >>> len(digits.train), len(digits.test), digits.train.shape
    (1201, 596, (1, 8, 8))
    """
    loader, place, fixed = _resolve(name)
    known = inspect.signature(loader).parameters
    common: dict[str, Any] = {"skip_bad": skip_bad, "progress": progress}
    rare = {"check": check, "outline": outline}
    common |= {option: value for option, value in rare.items() if option in known}
    if not any(p.kind is p.VAR_KEYWORD for p in known.values()):
        accepted = [option for option in known if option not in ("root", *common, *fixed)]
        unknown = [option for option in options if option not in accepted]
        if unknown:
            raise InputError(
                f"The data set {name!r} has no option {unknown[0]!r}. "
                f"Known: {', '.join(accepted) or 'none'}."
            )
        # A loader need not care about these.
        common = {option: value for option, value in common.items() if option in known}
    try:
        return loader(place or data_root(root), **common, **fixed, **options)
    except OSError as error:
        raise InputError(f"Cannot read the data set {name!r}: {error}.") from error


def prepare(
    name: str,
    root: Path | None = None,
    *,
    url: str | None = None,
    force: bool = False,
    skip_bad: bool = False,
    progress: ProgressCallback | None = None,
    **options: Any,
) -> Dataset:
    """Make a data set ready for benchmarks and return it, loaded.

    A data set that can be fetched has a function ``prepare(root, *, url, force, progress)`` in its
    module. Any other is loaded from where it is, which checks it (and decodes a folder of images).

    Arguments are those of `load`; ``url`` replaces the official address, ``force`` fetches and unpacks
    again.
    """
    fetch = getattr(_module(name), "prepare", None) if name in DATASETS else None
    if fetch is not None:
        place = data_root(root)
        if place is None:
            raise InputError(f"Where to put {name}? Give --root DIR or set {ROOT_VARIABLE}.")
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"Cannot use the folder {place}: {error.strerror}. Give another."
            ) from error
        fetch(place, url=url, force=force, progress=progress)
    elif url is not None:
        raise InputError(f"There is nothing to fetch for {name!r}: an address is of no use.")
    return load(name, root, skip_bad=skip_bad, check=True, progress=progress, **options)


def data_root(root: str | os.PathLike[str] | None) -> Path | None:
    """Return the folder of the data: the one given, else the one that ACIL_DATA names, else None."""
    chosen = root if root is not None else os.environ.get(ROOT_VARIABLE)
    return Path(chosen).expanduser() if chosen else None


def restrict(dataset: Dataset, classes: Sequence[int]) -> Dataset:
    """Keep some classes, and number them by their place in the list.

    With a class order (or its beginning) the labels become positions in that order. Half of fewer
    classes are the base phase by default, if there is one.

    Examples
    --------
    >>> restrict(load("digits"), [7, 3]).class_names
    ('7', '3')
    """
    n_classes = len(dataset.class_names)
    fewer = len(classes) < n_classes
    places = torch.full((n_classes,), -1, dtype=torch.int64)
    places[list(classes)] = torch.arange(len(classes))
    train, train_labels = _kept(dataset.train, places[dataset.train_labels])
    test, test_labels = _kept(dataset.test, places[dataset.test_labels])
    return dataclasses.replace(
        dataset,
        train=train,
        train_labels=train_labels,
        test=test,
        test_labels=test_labels,
        class_names=tuple(dataset.class_names[label] for label in classes),
        default_base=len(classes) // 2 if dataset.default_base and fewer else dataset.default_base,
    )


def _kept(images: ImageSet, places: Tensor) -> tuple[ImageSet, Tensor]:
    """Return the images whose class has a place, and these places."""
    indices = torch.nonzero(places >= 0).flatten()
    if len(indices) == len(places):
        return images, places
    return images.subset(indices).alone(), places[indices]


def _module(name: str) -> Any:
    return importlib.import_module(f"{__name__}.{DATASETS[name][0]}")


def _resolve(name: str) -> tuple[Callable[..., Dataset], Path | None, dict[str, Any]]:
    """Return the loader that a name means, the place that the name itself gives, and its options."""
    head, colon, tail = name.partition(":")
    if head in DATASETS:
        module, options = DATASETS[head]
        if colon and not (module in WITH_PLACE and tail):
            usual = f"{head}:DIR" if module in WITH_PLACE else "imagefolder:DIR or features:FILE"
            raise InputError(f"{name!r} names no data set: write {usual}.")
        place = Path(tail).expanduser() if colon else None
        return _module(head).load, place, options
    if not colon:
        raise InputError(
            f"There is no data set {name!r}. Known: {', '.join(DATASETS)}; your own is "
            "'package.module:function'."
        )
    try:
        return getattr(importlib.import_module(head), tail), None, {}
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"Cannot load the data set {name!r}: {error}. Give 'package.module:function' of a module "
            "that Python finds (see PYTHONPATH)."
        ) from error


def _check_split(dataset: Dataset, split: str, images: ImageSet, labels: Tensor) -> None:
    n_classes = len(dataset.class_names)
    if labels.dtype != torch.int64 or labels.shape != (len(images),):
        raise InputError(
            f"The {split} labels of {dataset.name} must be int64 of shape ({len(images)},), one for "
            f"each image, got {labels.dtype} of shape {tuple(labels.shape)}."
        )
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < n_classes:
        raise InputError(
            f"The {split} labels of {dataset.name} must be from 0 to {n_classes - 1}, got "
            f"{int(labels.min())} to {int(labels.max())}."
        )
    counts = torch.bincount(labels, minlength=n_classes)
    missing = [dataset.class_names[i] for i in torch.nonzero(counts == 0).flatten().tolist()]
    if missing:
        raise InputError(
            f"{dataset.name} has no {split} image of {len(missing)} of its {n_classes} classes "
            f"({first_of(missing)}). Each class needs one."
        )
