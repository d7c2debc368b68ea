"""Making a data set ready: fetched or taken from where it is, checked, and loaded once."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from acil.benchmark.datasets import DATASETS, ROOT_VARIABLE, Dataset, data_root, load
from acil.benchmark.download import ProgressCallback
from acil.errors import InputError


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
    module; any other is read where it is, which checks it (and decodes a folder of images).

    Parameters
    ----------
    name : str
        See `acil.benchmark.datasets.load`.
    root : Path, optional
    url : str, optional
        Fetch from here instead of the official address.
    force : bool
        Fetch and unpack again.
    skip_bad : bool
        Leave out images that cannot be read.
    progress : callable, optional
    **options
        Of the loader.
    """
    entry = DATASETS.get(name)
    fetch = None if entry is None else getattr(importlib.import_module(entry.module), "prepare", None)
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
    return load(name, root, skip_bad=skip_bad, progress=progress, **options)
