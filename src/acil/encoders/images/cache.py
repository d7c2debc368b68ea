"""A cache of extracted features: in memory, and in files for later runs."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from acil.core.files.reading import TensorFile
from acil.core.files.writing import cannot_write, locked, write_tensors
from acil.errors import ACILError

logger = logging.getLogger(__name__)

METADATA_KEY = "acil_features"
_TENSOR = "features"
#: Bytes of rows that are written together, at most this much work is lost.
_BLOCK_BYTES = 2**20


class FeatureCache:
    """Keep tensors by key: those used last in memory, all of them in a folder. For one thread.

    Parameters
    ----------
    folder : str, path-like or None
        One safetensors file per key, made when needed. None keeps them in memory only.
    max_bytes : int, default=2 GiB
        Of tensors in memory. A larger one is read from its file each time.

    Notes
    -----
    A file is written beside its place and renamed, so that several processes may share a folder: what
    they write under one key is the same. A file that is damaged, or cannot be written, costs time but
    no result: the tensor is computed again and a warning logged.

    Examples
    --------
    >>> import torch
    >>> cache = FeatureCache(None)
    >>> cache.get("zeros", lambda: torch.zeros(2, 3)).shape
    torch.Size([2, 3])
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, max_bytes: int = 2 * 2**30) -> None:
        self.folder = None if folder is None else Path(folder)
        self.max_bytes = max_bytes
        self._recent: OrderedDict[str, Tensor] = OrderedDict()
        #: Keys of files whose checksums this process has compared.
        self._checked: set[str] = set()

    def get(self, key: str, compute: Callable[[], Tensor]) -> Tensor:
        """Return the tensor of a key, computing it if neither memory nor folder has it.

        The key says everything that decides the values. The tensor is on the CPU, contiguous, and shared
        with the cache: not to be changed in place.
        """
        features = self._recent.pop(key, None)
        if features is None:
            features = self._read(key)
        if features is None:
            features = compute().detach().cpu().contiguous()
            self._write(key, features)
        if features.nbytes <= self.max_bytes:
            self._recent[key] = features
        while sum(entry.nbytes for entry in self._recent.values()) > self.max_bytes:
            self._recent.popitem(last=False)
        return features

    def rows(
        self,
        key: str,
        shape: tuple[int, int],
        compute: Callable[[int], Iterator[Tensor]],
        chosen: Tensor | None = None,
    ) -> Tensor:
        """Return some rows of a float32 tensor that is too large to be kept in memory, or all of them.

        ``compute`` yields rows from a number on. They are written as they come, into a ``.npy`` file, so
        that a killed process goes on where it was; only the rows chosen are in memory. Without a folder
        this is `get`.
        """
        path = self.path(key, "npy")
        if path is None:
            features = self.get(key, lambda: torch.cat([torch.empty(0, shape[1]), *compute(0)]))
            return features if chosen is None else features[chosen]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            sums = path.with_suffix(".crc")
            sums.touch()
            # A second process waits here, and then finds the file.
            with locked(sums):
                if key not in self._checked:
                    _complete(path, shape, compute)
                    self._checked.add(key)
        except OSError as error:
            raise cannot_write(path, error) from error
        # Mapped for as long as it takes to copy what is asked for.
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        return torch.from_numpy(np.array(array if chosen is None else array[chosen.numpy()]))

    def path(self, key: str, suffix: str = "safetensors") -> Path | None:
        """Return the file of a key, which may not exist yet; None without a folder."""
        name = f"{hashlib.sha256(key.encode()).hexdigest()}.{suffix}"
        return None if self.folder is None else self.folder / name

    def _read(self, key: str) -> Tensor | None:
        path = self.path(key)
        if path is None:
            return None
        try:
            file = TensorFile(path)
            facts, tensor = file.facts(METADATA_KEY), file.tensors()[_TENSOR]
            if facts["key"] == key and facts["crc32"] == _checksum(tensor):
                return tensor
            cause = "its content is not what it says"
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            cause = str(error)
        logger.warning("Cached features %s are damaged (%s): they are computed again.", path, cause)
        return None

    def _write(self, key: str, tensor: Tensor) -> None:
        path = self.path(key)
        if path is None:
            return
        facts = json.dumps({"key": key, "crc32": _checksum(tensor)})
        try:
            write_tensors(path, {_TENSOR: tensor}, {METADATA_KEY: facts}, make_folder=True)
        except ACILError as error:
            logger.warning("Features are not cached in %s: %s", self.folder, error)


def _complete(path: Path, shape: tuple[int, int], compute: Callable[[int], Iterator[Tensor]]) -> None:
    """Write what is missing of a file of rows; what is there is compared with its checksums.

    Rows stand in blocks. The checksum of a block is written after its rows, so a process that is killed
    leaves whole blocks, and a part that nothing points to.
    """
    n, width = shape
    step = max(1, _BLOCK_BYTES // (4 * width))
    sums, draft = path.with_suffix(".crc"), path.with_suffix(".part")
    there = path if path.exists() else draft
    done = _whole_blocks(there, sums, shape, step)
    first = min(n, done * step)
    if there == path and first == n:
        return
    if there == path:
        logger.warning("Features %s are damaged: they are computed again from row %d on.", path, first)
        path.replace(draft)
    header = _header(shape)
    with _opened(draft) as file, _opened(sums) as marks:
        file.write(header)
        file.seek(len(header) + 4 * width * first)
        file.truncate()
        marks.seek(4 * done)
        marks.truncate()
        waiting = torch.empty(0, width)
        for rows in compute(first) if first < n else ():
            waiting = torch.cat([waiting, rows])
            while len(waiting) >= step or (len(waiting) and first + len(waiting) == n):
                block, waiting = waiting[:step], waiting[step:]
                file.write(block.numpy().tobytes())
                file.flush()
                marks.write(_checksum(block).to_bytes(4, "little"))
                marks.flush()
                first += len(block)
        os.fsync(file.fileno())
    draft.replace(path)


def _whole_blocks(path: Path, sums: Path, shape: tuple[int, int], step: int) -> int:
    """Return how many blocks of a file are whole, from the first on."""
    n, width = shape
    header = _header(shape)
    try:
        marks = np.frombuffer(sums.read_bytes()[: 4 * -(-n // step)], dtype="<u4", count=-1)
    except (OSError, ValueError):
        return 0
    done = 0
    with suppress(OSError), path.open("rb") as file:
        if file.read(len(header)) == header:
            for mark in marks:
                rows = min(step, n - done * step)
                content = file.read(4 * width * rows)
                if len(content) < 4 * width * rows or zlib.crc32(content) != mark:
                    break
                done += 1
    return done


def _header(shape: tuple[int, int]) -> bytes:
    held = io.BytesIO()
    facts = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(held, facts)
    return held.getvalue()


def _opened(path: Path) -> BinaryIO:
    """Open a file to write in, without losing what is there."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")


def _checksum(tensor: Tensor) -> int:
    """Return the CRC-32 of the values: fast, and enough against damage."""
    return zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data)
