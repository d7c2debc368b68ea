"""Image files to features: files are decoded in threads while the network runs."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from acil.errors import InputError
from acil.vision.decode import decode
from acil.vision.embedder import Embedder
from acil.vision.threads import worker_threads

#: Path of an image file, or its content.
Source = str | os.PathLike[str] | bytes
#: Called with the number of images done and the number of all.
Progress = Callable[[int, int], None]

#: Decoded images that may wait for the network, for each thread.
_AHEAD = 4
#: Images that cannot be used and are named in the message.
_TOLD = 5


class UnreadableError(InputError):
    """Some images cannot be read; nothing was changed.

    Attributes
    ----------
    others : int
        How many of the images given with them can be read.
    """

    def __init__(self, message: str, others: int) -> None:
        super().__init__(message)
        self.others = others


@dataclass(frozen=True)
class Embedded:
    """Features of images, in the order in which they were given.

    Attributes
    ----------
    features : Tensor of shape (n, features), float32
    digests : list of str
        Hash of the pixels of each, as the network saw them.
    kept : list of int
        Which of the sources these are.
    bad : dict of int to str
        The other sources, and why each could not be read.
    """

    features: Tensor
    digests: list[str]
    kept: list[int]
    bad: dict[int, str]


def embed_files(
    sources: Sequence[Source],
    embedder: Embedder,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> Embedded:
    """Return the features of image files.

    Parameters
    ----------
    sources : sequence of str, path-like or bytes
    embedder : Embedder
    skip_bad : bool, default=False
        Leave out files that cannot be read; otherwise they are an error that names them.
    progress : callable, optional

    Raises
    ------
    UnreadableError
        If files cannot be read, or if all of them cannot.
    """
    found = embed_readable(sources, embedder, progress)
    require_readable(list(found.bad.values()), len(sources), skip_bad)
    return found


def embed_readable(
    sources: Sequence[Source], embedder: Embedder, progress: Progress | None = None
) -> Embedded:
    """Return the features of those image files that can be read, which may be none.

    Parameters
    ----------
    sources : sequence of str, path-like or bytes
    embedder : Embedder
    progress : callable, optional
    """
    features, digests, kept, bad = [], [], [], {}
    waiting: list[Tensor] = []
    for index, result in enumerate(_decoded(sources, embedder)):
        if isinstance(result, InputError):
            bad[index] = _named(sources[index], index, result)
        else:
            kept.append(index)
            digests.append(hashlib.blake2b(result.numpy().tobytes(), digest_size=32).hexdigest())
            waiting.append(result)
        if waiting and (len(waiting) == embedder.batch_size or index + 1 == len(sources)):
            features.append(embedder.embed(torch.stack(waiting)))
            waiting.clear()
        if progress is not None:
            progress(index + 1, len(sources))
    empty = torch.empty(0, embedder.num_features)
    return Embedded(torch.cat(features) if features else empty, digests, kept, bad)


def _named(source: Source, index: int, error: InputError) -> str:
    """Return what is wrong with an image; one that has no path goes by its number."""
    return f"Image {index + 1}: {error}" if isinstance(source, bytes) else str(error)


def require_readable(bad: Sequence[str], n: int, skip_bad: bool) -> None:
    """Raise if images cannot be used, unless they may be left out and others are there.

    Parameters
    ----------
    bad : sequence of str
        What is wrong with each image that cannot be used.
    n : int
        Number of all images.
    skip_bad : bool
    """
    if bad and (not skip_bad or len(bad) == n):
        told = " ".join(bad[:_TOLD]) + (f" And {len(bad) - _TOLD} more." if len(bad) > _TOLD else "")
        raise UnreadableError(
            f"{len(bad)} of {n} images cannot be used; nothing was changed. {told}", n - len(bad)
        )


def _decoded(sources: Sequence[Source], embedder: Embedder) -> Iterator[Tensor | InputError]:
    """Yield each image or what is wrong with it, in order, with a bounded number decoded ahead."""
    n_threads = worker_threads()
    n_ahead = max(n_threads * _AHEAD, embedder.batch_size)
    pending: deque[Future[Tensor | InputError]] = deque()

    def read(source: Source) -> Tensor | InputError:
        try:
            return decode(source, embedder.preprocessing.size, embedder.mode, embedder.crop)
        except InputError as error:
            return error

    with ThreadPoolExecutor(n_threads) as pool:
        try:
            for source in sources:
                pending.append(pool.submit(read, source))
                if len(pending) >= n_ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
