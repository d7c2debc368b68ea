"""A cache of extracted features: in memory, and in files for later runs."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import zlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from acil.core.files.writing import write_tensors
from acil.errors import ACILError

logger = logging.getLogger(__name__)

METADATA_KEY = "acil_features"
_TENSOR = "features"


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

    def get(self, key: str, compute: Callable[[], Tensor]) -> Tensor:
        """Return the tensor of a key, computing it if neither memory nor folder has it.

        The key says everything that decides the values. The tensor is on the CPU, contiguous, and shared
        with the cache: not to be changed in place.
        """
        found = self._recent.pop(key, None)
        if found is None:
            found = self._read(key)
        if found is None:
            found = compute().detach().cpu().contiguous()
            self._write(key, found)
        if found.nbytes <= self.max_bytes:
            self._recent[key] = found
        while sum(kept.nbytes for kept in self._recent.values()) > self.max_bytes:
            self._recent.popitem(last=False)
        return found

    def path(self, key: str) -> Path | None:
        """Return the file of a key, which may not exist yet; None without a folder."""
        name = f"{hashlib.sha256(key.encode()).hexdigest()}.safetensors"
        return None if self.folder is None else self.folder / name

    def _read(self, key: str) -> Tensor | None:
        path = self.path(key)
        if path is None:
            return None
        try:
            with safe_open(path, framework="pt") as file:
                facts = json.loads((file.metadata() or {}).get(METADATA_KEY, "{}"))
                # Copied, because what is mapped may lie at an address that slows everything down.
                tensor: Tensor = file.get_tensor(_TENSOR).clone()
            if facts["key"] == key and facts["crc32"] == _checksum(tensor):
                return tensor
            cause = "its content is not what it says"
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
            cause = str(error)
        except RuntimeError:
            # A file is opened twice, for its header and by torch: another process may have removed it
            # in between. That is no damage.
            return None
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


def _checksum(tensor: Tensor) -> int:
    """Return the CRC-32 of the values: fast, and enough against damage."""
    return zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data)
