"""Image files as the images of a data set: read when they are needed, never all at once.

What is kept of an image is its name, and its place if it lies in an archive. Worker processes decode
ahead of the network, through torch's `DataLoader`.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import math
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from acil.encoders.images.decode import Box, Source, decode, decode_box
from acil.encoders.images.embedder import decode_all, worker_threads
from acil.encoders.images.imageset import content_identity
from acil.errors import InputError

#: torchvision's defaults for RandomResizedCrop.
AREA = (0.08, 1.0)
ASPECT = (3 / 4, 4 / 3)
ATTEMPTS = 10
#: Fewer images are read by this process: starting workers takes as long.
_FEW = 256
#: Files of archives that a process keeps open.
_OPEN = 64
#: Where worker processes put what they have decoded.
SHARED_MEMORY = Path("/dev/shm")
#: Batches that each worker decodes ahead.
AHEAD = 2
#: glibc's number of the size from which blocks are mapped, and that size: more than a decoded
#: photograph, which would be mapped again for every image, and less than a batch.
_M_MMAP_THRESHOLD, _LARGE_BLOCK = -3, 2**22


class Task(NamedTuple):
    """One image to be read, by a worker or by this process."""

    #: Empty: an image in memory.
    path: str
    #: Of the first byte; or position in memory.
    offset: int
    #: Bytes in an archive; below 0: the whole file.
    length: int
    #: Draws the part that training sees; None: the middle, as features take it.
    seed: int | None


class View(NamedTuple):
    """What is made of an image file."""

    #: Side in pixels.
    size: int
    #: Part of the shorter side that the middle takes, see `acil.encoders.images.decode`.
    crop: float


class ImageFiles:
    """Images in files or in archives that are not compressed, decoded when they are asked for.

    Parameters
    ----------
    folders : sequence of path
        Of the files; or the archives.
    folder_of : ndarray of shape (n,)
        Position of each image's folder or archive.
    names : ndarray of shape (n,), of bytes
        Name in its folder, as the file system has it.
    identity : str
        Says which images these are, for caches.
    size : int
        Side in pixels of what features are made of.
    crop : float
        Part of the shorter side that is kept of them: 224 / 256 is ImageNet's protocol.
    places : (ndarray, ndarray), optional
        First byte and length of each image in its archive.
    workers : int, optional
        Processes that decode; by default one for each core.
    advice : str
        A command that finds all images that cannot be read.
    held : Tensor of shape (m, 3, height, width), uint8, optional
        Images in memory that follow those of the files.

    Examples
    --------
    >>> files = ImageFiles(["photos"], np.zeros(2), np.array([b"a.jpg", b"b.jpg"]), "two", size=64)
    >>> files.shape
    (2, 3, 64, 64)
    """

    dtype = torch.uint8
    ndim = 4
    device = torch.device("cpu")

    def __init__(
        self,
        folders: Sequence[str | os.PathLike[str]],
        folder_of: npt.NDArray[Any],
        names: npt.NDArray[np.bytes_],
        identity: str,
        *,
        size: int,
        crop: float = 0.875,
        places: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None,
        workers: int | None = None,
        advice: str = "",
        held: Tensor | None = None,
    ) -> None:
        self._folders = [os.fspath(folder) for folder in folders]
        self._folder_of = np.asarray(folder_of, dtype=np.int32)
        self._names, self._places = names, places
        self.view, self.advice = View(size, crop), advice
        self.workers = worker_threads() if workers is None else workers
        # Other pixels, another identity
        self.identity = f"{identity}:{size}:{crop:g}"
        self._own, self._held = identity, held
        self.shape = (len(self), 3, size, size)

    def __len__(self) -> int:
        return len(self._names) + (0 if self._held is None else len(self._held))

    @overload
    def __getitem__(self, chosen: slice) -> Tensor: ...
    @overload
    def __getitem__(self, chosen: Tensor) -> Tensor: ...
    def __getitem__(self, chosen: slice | Tensor) -> Tensor:
        """Return the middle of some images, uint8, of shape (n, 3, size, size)."""
        positions = torch.arange(len(self))[chosen].tolist()
        tasks = [self.task(position) for position in positions]
        read = list(decode_all(tasks, lambda task: _decoded(task, self.view, self._held)))
        broken = [item for item in read if isinstance(item, InputError)]
        if broken:
            raise broken[0]
        return torch.stack(read) if read else torch.empty((0, *self.shape[1:]), dtype=torch.uint8)  # type: ignore[arg-type]

    def select(self, positions: Tensor) -> ImageFiles:
        """Return some of these images as a set of its own, with an identity of its own."""
        chosen = positions.numpy()
        digest = hashlib.sha256(self._own.encode())
        digest.update(np.ascontiguousarray(chosen).tobytes())
        places = self._places and (self._places[0][chosen], self._places[1][chosen])
        return ImageFiles(
            self._folders,
            self._folder_of[chosen],
            self._names[chosen],
            digest.hexdigest(),
            size=self.view.size,
            crop=self.view.crop,
            places=places,
            workers=self.workers,
            advice=self.advice,
        )

    def followed_by(self, pixels: Tensor) -> ImageFiles:
        """Return these images, and after them some that are in memory, such as exemplars."""
        return ImageFiles(
            self._folders,
            self._folder_of,
            self._names,
            f"{self._own} {content_identity(pixels)}",
            size=self.view.size,
            crop=self.view.crop,
            places=self._places,
            workers=self.workers,
            advice=self.advice,
            held=pixels,
        )

    def task(self, position: int, seed: int | None = None) -> Task:
        """Return what is needed to read one image."""
        if position >= len(self._names):
            return Task("", position - len(self._names), -1, seed)
        folder = self._folders[self._folder_of[position]]
        if self._places is not None:
            first, length = self._places
            return Task(folder, int(first[position]), int(length[position]), seed)
        return Task(f"{folder}/{os.fsdecode(self._names[position])}", 0, -1, seed)

    def name(self, position: int) -> str:
        """Return what an image is called in messages."""
        folder = Path(self._folders[self._folder_of[position]]).name
        return f"{folder}/{os.fsdecode(self._names[position])}"

    def readable(self, task: Task) -> bool:
        """Return True if an image can be read; what is wrong with it is an `InputError`."""
        _decoded(task, self.view, self._held)
        return True

    def nbytes(self, positions: Tensor) -> int:
        """Return the bytes of some of the files."""
        if self._places is not None:
            return int(self._places[1][positions.numpy()].sum())
        return sum(Path(self.task(position).path).stat().st_size for position in positions.tolist())

    def stream(
        self,
        batches: Iterable[Sequence[Task]],
        n_images: int,
        size: int | None = None,
        pin: bool = False,
    ) -> Iterator[Tensor]:
        """Read batches of images, in order, decoding ahead; ``n_images`` they have in all.

        Those with a seed are parts of side ``size``, those without are the middle. With ``pin`` batches
        are where a GPU can fetch them from. An image that cannot be read is an `InputError`.
        """
        reader = _Reader(self.view if size is None else self.view._replace(size=size), self._held)
        workers = self.workers if n_images > _FEW else 0
        if workers:
            # Workers begin with the memory of this process, also with what was freed and lies there, and
            # keep it when this process writes to it.
            _of_glibc("malloc_trim", 0)
        loader: DataLoader[Any] = DataLoader(
            reader,
            batch_sampler=batches,  # type: ignore[arg-type]
            num_workers=workers,
            collate_fn=_as_it_is,
            pin_memory=pin,
            prefetch_factor=AHEAD if workers else None,
            worker_init_fn=_stay_small,
            # Drawn by nobody; without it, each pass would draw a number from torch's global generator.
            generator=torch.Generator(),
        )
        for batch in loader:
            if isinstance(batch, str):
                raise InputError(batch + (f" All such images: {self.advice}" if self.advice else ""))
            yield batch


def _stay_small(worker: int) -> None:
    """Keep the memory of a worker process from growing with the number of images.

    The collector writes to all objects that it visits. What the process before left is copied then, and
    a worker that lives for long would come to hold all of it. And glibc keeps more and more of the large
    blocks that are freed, unless the size from which they go back to the system is fixed.
    """
    gc.freeze()
    _of_glibc("mallopt", _M_MMAP_THRESHOLD, _LARGE_BLOCK)


def _of_glibc(function: str, *numbers: int) -> None:
    """Call a function of the C library; another one may not have it."""
    with suppress(AttributeError, OSError):
        getattr(ctypes.CDLL(None), function)(*numbers)


class _Reader(Dataset[Tensor]):
    """What a worker process runs: tasks in, pixels out."""

    def __init__(self, view: View, held: Tensor | None) -> None:
        self._view, self._held = view, held

    def __getitems__(self, tasks: Sequence[Task]) -> Tensor | str:
        """Return a batch, uint8, of shape (n, 3, size, size); or what is wrong with an image of it."""
        batch = torch.empty(len(tasks), 3, self._view.size, self._view.size, dtype=torch.uint8)
        for place, task in enumerate(tasks):
            try:
                batch[place] = _decoded(task, self._view, self._held)
            except InputError as error:
                # As text: errors of workers come with their traceback.
                return str(error)
        return batch


def _as_it_is(batch: Any) -> Any:
    return batch


def _decoded(task: Task, view: View, held: Tensor | None) -> Tensor:
    source: Source = task.path if task.length < 0 else _bytes(task)
    if not task.path and held is not None:
        source = held[task.offset].permute(1, 2, 0).numpy()
    try:
        if task.seed is None:
            return decode(source, view.size, crop=view.crop)
        choose = random_part(random.Random(task.seed))
        return decode_box(source, view.size, choose)
    except InputError as error:
        if not isinstance(source, bytes):
            raise
        raise InputError(f"{error} It is at byte {task.offset} of {task.path}.") from None


def _bytes(task: Task) -> bytes:
    try:
        return os.pread(_opened(task.path, os.getpid()), task.length, task.offset)
    except OSError as error:
        raise InputError(f"Cannot read {task.path}: {error.strerror}.") from None


@lru_cache(maxsize=_OPEN)
def _opened(path: str, _process: int) -> int:
    return os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))


def random_part(draw: random.Random) -> Callable[[int, int], Box]:
    """Return what chooses a part of an image as torchvision's RandomResizedCrop does.

    The same as `acil.bench.training.augment.random_boxes`, for one image at a time.

    Examples
    --------
    >>> left, top, right, bottom = random_part(random.Random(0))(40, 30)
    >>> 0 <= left < right <= 40 and 0 <= top < bottom <= 30
    True
    """

    def choose(width: int, height: int) -> Box:
        low, high = (math.log(ratio) for ratio in ASPECT)
        for _ in range(ATTEMPTS):
            area = width * height * draw.uniform(*AREA)
            aspect = math.exp(draw.uniform(low, high))
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                left, top = draw.randint(0, width - w), draw.randint(0, height - h)
                return left, top, left + w, top + h
        w, h = min(width, round(height * ASPECT[1])), min(height, round(width / ASPECT[0]))
        left, top = (width - w) // 2, (height - h) // 2
        return left, top, left + w, top + h

    return choose
