"""Decode many images once, into one file of pixels that later runs map into memory."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from acil.benchmark.datasets import ProgressCallback
from acil.errors import ACILError, InputError
from acil.modelfile.writing import locked, replacing
from acil.vision.decode import decode
from acil.vision.imageset import ImageSet

logger = logging.getLogger(__name__)

_VERSION = 1
#: Bytes before the pixels in the npy file: enough for any shape, and a multiple of 64.
_HEADER = 128
#: Images that each thread decodes before they are written: bounds what waits in memory.
_AHEAD = 8


@dataclass(frozen=True)
class Source:
    """One image file as it was when the folder was listed.

    Attributes
    ----------
    path : Path
    name : str
        Path inside the data set, for keys and messages.
    stamp : tuple of int
        Size and time of the last change.
    """

    path: Path
    name: str
    stamp: tuple[int, int]


@dataclass(frozen=True)
class Decoded:
    """Images that could be decoded, which of the sources they are, and why the others could not."""

    images: ImageSet
    kept: Tensor
    bad: dict[str, str]


def decoded(
    sources: Sequence[Source], size: int, folder: Path, what: str, progress: ProgressCallback | None
) -> Decoded:
    """Return all images as squares of pixels, from the cache or by decoding them now.

    Parameters
    ----------
    sources : sequence of Source
    size : int
        Side of the square.
    folder : Path
        Of the cache; made if there is none.
    what : str
        Begins the file's name, and is told to ``progress``.
    progress : callable, optional
    """
    key = _key(sources, size)
    pixels, facts = folder / f"{what}-{key}.npy", folder / f"{what}-{key}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error) from error
    found = _read(pixels, facts, size)
    if found is None:
        # A second run on the same folder waits here, and then finds the file.
        with locked(pixels):
            found = _read(pixels, facts, size) or _write(sources, size, pixels, facts, what, progress)
    return found


def _key(sources: Sequence[Source], size: int) -> str:
    digest = hashlib.sha256(f"{_VERSION} {size}".encode())
    for source in sources:
        digest.update(json.dumps([source.name, *source.stamp]).encode())
    return digest.hexdigest()[:24]


def _read(pixels: Path, facts: Path, size: int) -> Decoded | None:
    """Return what the cache has; None if it has nothing, or something damaged."""
    try:
        content = json.loads(facts.read_text(encoding="utf-8"))
        kept = torch.tensor(content["kept"], dtype=torch.int64)
        expected = _HEADER + len(kept) * 3 * size * size
        if pixels.stat().st_size != expected:
            raise ValueError(f"{pixels.stat().st_size:,} bytes instead of {expected:,}")
        # Copy on write: torch wants memory it could write to, and the file must not change.
        array = np.load(pixels, mmap_mode="c", allow_pickle=False)
        if array.shape != (len(kept), 3, size, size) or array.dtype != np.uint8:
            raise ValueError(f"{array.dtype} of shape {array.shape}")
        images = ImageSet(torch.from_numpy(array), None, str(content["identity"]))
        return Decoded(images, kept, dict(content["bad"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("The cache %s is damaged (%s); decoding the images again.", pixels, error)
        return None


def _write(
    sources: Sequence[Source],
    size: int,
    pixels: Path,
    facts: Path,
    what: str,
    progress: ProgressCallback | None,
) -> Decoded:
    needed, free = len(sources) * 3 * size * size, shutil.disk_usage(pixels.parent).free
    if needed > free:
        raise InputError(
            f"{len(sources):,} images of {size} x {size} pixels need {needed:,} bytes, but "
            f"{pixels.parent} has only {free:,} free. Choose a smaller size, or another cache folder "
            "(ACIL_CACHE)."
        )
    kept, bad, digest = [], {}, hashlib.sha256(f"uint8 3 {size} {size}".encode())
    try:
        with replacing(pixels) as draft, draft.open("wb") as file:
            file.write(bytes(_HEADER))
            for index, result in enumerate(_decode_all(sources, size)):
                if isinstance(result, str):
                    bad[sources[index].name] = result
                else:
                    row = result.numpy().tobytes()
                    file.write(row)
                    digest.update(row)
                    kept.append(index)
                if progress is not None:
                    progress(f"decoding {what}", index + 1, len(sources))
            file.seek(0)
            file.write(_header((len(kept), 3, size, size)))
        with replacing(facts) as draft:
            content = {"identity": digest.hexdigest(), "kept": kept, "bad": bad}
            draft.write_text(json.dumps(content), encoding="utf-8")
    except ACILError as error:
        raise _unusable(pixels.parent, error) from error
    found = _read(pixels, facts, size)
    if found is None:
        raise InputError(f"{pixels} disappeared as soon as it was written. Choose another cache folder.")
    return found


def _decode_all(sources: Sequence[Source], size: int) -> Iterator[Tensor | str]:
    """Yield each image, or why it cannot be decoded, in order."""
    n_threads = min(32, os.cpu_count() or 1)
    job: Callable[[Source], Tensor | str] = partial(_decode_one, size=size)
    with ThreadPoolExecutor(n_threads) as pool:
        for start in range(0, len(sources), step := n_threads * _AHEAD):
            yield from pool.map(job, sources[start : start + step])


def _decode_one(source: Source, size: int) -> Tensor | str:
    try:
        return decode(source.path, size)
    except (InputError, OSError) as error:
        return str(error)


def _header(shape: tuple[int, ...]) -> bytes:
    """Return the header of an npy file of bytes, padded to a length that does not depend on the shape.

    So the number of rows can be written last, when it is known how many images were good.
    """
    text = repr({"descr": "|u1", "fortran_order": False, "shape": shape}).encode("latin-1")
    start = b"\x93NUMPY\x01\x00" + (_HEADER - 10).to_bytes(2, "little")
    return start + text.ljust(_HEADER - 11) + b"\n"


def _unusable(folder: Path, error: Exception) -> InputError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return InputError(
        f"Cannot keep decoded images in {folder}: {reason} Choose another folder with the option cache "
        "or the environment variable ACIL_CACHE."
    )
