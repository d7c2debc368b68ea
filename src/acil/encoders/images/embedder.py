"""Image files to features: one interface for all networks; files are decoded in threads."""

from __future__ import annotations

import hashlib
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from acil.core.linalg import threads_for
from acil.encoders.images.architectures import Backbone
from acil.encoders.images.backbones import fingerprint
from acil.encoders.images.decode import Preprocessing, Source, decode
from acil.encoders.images.extract import FeatureExtractor
from acil.encoders.images.imageset import ImageSet
from acil.errors import InputError

T = TypeVar("T")
#: Called with the number of images done and the number of all.
ImageProgress = Callable[[int, int], None]
#: More threads than this only wait for memory.
MAX_THREADS = 32
#: Decoded images that may wait for the network, for each thread.
_AHEAD = 4
#: Images that cannot be used and are named in the message.
_TOLD = 5


def worker_threads() -> int:
    """Return the number of threads for images: one for each core that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    cores = len(allowed(0)) if allowed is not None else os.cpu_count() or 1
    return min(cores, MAX_THREADS)


@dataclass(eq=False)
class Embedder(ABC):
    """A network that turns images into features.

    Parameters
    ----------
    name : str
        Names the network, not a place on this machine.
    weights : str
        Hash of everything that decides the features, but the preprocessing.
    preprocessing : Preprocessing
        Applied by the embedder itself; images come as uint8.
    crop : float
        Part of the shorter side of an image that is kept; see `acil.encoders.images.decode`.
    engine : str
        What runs the network: features of different engines differ in the last digits.

    Notes
    -----
    Images run one at a time, or in batches that are always full: the features of an image do not depend
    on what runs beside it. Only so can it be forgotten exactly.
    """

    name: str
    weights: str
    preprocessing: Preprocessing
    crop: float
    engine: str
    #: Of an image.
    num_features: int = field(init=False)
    #: Images that should be given at once.
    batch_size = 1

    @property
    def identity(self) -> dict[str, Any]:
        """What a model file keeps of the network, and compares before it is used."""
        return {
            "name": self.name,
            "weights": self.weights,
            "preprocessing": {**self.preprocessing.to_dict(), "crop": self.crop},
            "engine": self.engine,
        }

    def predicts_for(self, learnt: Mapping[str, Any]) -> bool:
        """Say whether a model learnt with the network of this identity may predict with this one."""
        return self.identity == learnt

    def decode(self, source: Source) -> Tensor:
        """Return the pixels of an image as this network takes them; see `images.decode`."""
        mode: Literal["RGB", "L"] = "RGB" if len(self.preprocessing.mean) == 3 else "L"
        return decode(source, self.preprocessing.size, mode, self.crop)

    @abstractmethod
    def embed(self, pixels: Tensor) -> Tensor:
        """Return the features of images, float32 on the CPU; may be called from several threads."""

    @abstractmethod
    def to_onnx(self) -> bytes:
        """Return the network as an ONNX model: pixels, uint8, to features."""


class TorchEmbedder(Embedder):
    """A `Backbone` run by torch: one image at a time on the CPU, full batches on other devices.

    ``exported`` is the hash of the weights when onnxruntime runs the same network. Models learnt so may
    predict with this one: features differ in the last digits. To learn or to forget, they need
    onnxruntime.
    """

    def __init__(
        self,
        backbone: Backbone,
        crop: float = 1.0,
        device: str | torch.device = "cpu",
        exported: str | None = None,
    ) -> None:
        if len(backbone.preprocessing.mean) not in (1, 3):
            raise InputError(
                f"The backbone {backbone.name!r} takes images of {len(backbone.preprocessing.mean)} "
                "channels. Use one for colour (3) or greyscale (1)."
            )
        where = torch.device(device)
        engine = "torch" if where.type == "cpu" else f"torch-{where.type}"
        super().__init__(
            backbone.name, fingerprint(backbone), backbone.preprocessing, float(crop), engine
        )
        self._extractor = FeatureExtractor(
            backbone, device=where, batch_size=1 if where.type == "cpu" else None
        )
        self.backbone = backbone
        self.batch_size = self._extractor.batch_size
        self.num_features = self._extractor.num_features
        # A forward pass changes the mode of the network and global flags of torch for a while.
        self._lock = threading.Lock()
        self._exported = exported

    def predicts_for(self, learnt: Mapping[str, Any]) -> bool:
        """Accept a model that was learnt with the same network in onnxruntime, too."""
        by_onnx = {**self.identity, "weights": self._exported, "engine": "onnxruntime"}
        return learnt in (self.identity, by_onnx)

    def embed(self, pixels: Tensor) -> Tensor:
        """Return the features of images."""
        with self._lock:
            return self._extractor.features(ImageSet(pixels, None, ""))

    def to_onnx(self) -> bytes:
        """Return the network as an ONNX model."""
        from acil.encoders.images.onnx_models import exported_network

        with self._lock:
            return exported_network(self.backbone)


class UnreadableError(InputError):
    """Some images cannot be read, others can; nothing was changed."""

    def __init__(self, message: str, others: int) -> None:
        super().__init__(message)
        self.others = others


@dataclass(frozen=True)
class Embedded:
    """Features of images, in the order in which they were given."""

    features: Tensor  # of shape (n, features), float32
    digests: list[str]  # hash of the pixels of each, as the network saw them
    kept: list[int]  # which of the sources these are
    bad: dict[int, str]  # the other sources, and why each could not be read


def embed_files(
    sources: Sequence[Source],
    embedder: Embedder,
    skip_bad: bool = False,
    progress: ImageProgress | None = None,
) -> Embedded:
    """Return the features of images, which `Embedder.decode` reads.

    Those that cannot be read are an `UnreadableError` that names them, or with ``skip_bad`` left out, as
    long as any is left.
    """
    features, digests, readable, bad = [], [], [], {}
    waiting: list[Tensor] = []
    n = len(sources)
    if not skip_bad:
        # Told before the others are read, which can take long.
        paths = [source for source in sources if isinstance(source, str | os.PathLike)]
        missing = [path for path in paths if not os.path.lexists(path)]
        if missing:
            raise UnreadableError(
                f"{len(missing)} of {n} images are missing; nothing was changed. The first is "
                f"{os.fspath(missing[0])}. Check the paths.",
                n - len(missing),
            )
    for index, result in enumerate(decode_all(sources, embedder.decode, embedder.batch_size)):
        if isinstance(result, InputError):
            path = isinstance(sources[index], str | os.PathLike)
            bad[index] = str(result) if path else f"Image {index + 1}: {result}"
        else:
            readable.append(index)
            digests.append(digest_of(result))
            waiting.append(result)
        if waiting and (len(waiting) == embedder.batch_size or index + 1 == n):
            with threads_for(waiting[0].numel() * len(waiting)):
                batch = torch.stack(waiting)
            features.append(embedder.embed(batch))
            waiting.clear()
        if progress is not None:
            progress(index + 1, n)
    if bad and not (skip_bad and readable):
        told = [*bad.values()][:_TOLD]
        told += [f"And {len(bad) - _TOLD} more."] if len(bad) > _TOLD else []
        raise UnreadableError(
            f"{len(bad)} of {n} images cannot be used; nothing was changed. {' '.join(told)}",
            len(readable),
        )
    empty = torch.empty(0, embedder.num_features)
    return Embedded(torch.cat(features) if features else empty, digests, readable, bad)


def digest_of(pixels: Tensor) -> str:
    """Return the hash of an image, as the network sees it, by which it is told apart."""
    return hashlib.blake2b(pixels.numpy().tobytes(), digest_size=32).hexdigest()


def decode_all(
    sources: Iterable[Any], read: Callable[[Any], T], ahead: int = 0
) -> Iterator[T | InputError]:
    """Read images in threads; yield each or what is wrong with it, in order.

    At most ``ahead`` are read before they are asked for, or a few for each thread.
    """

    def attempt(source: Any) -> T | InputError:
        try:
            return read(source)
        except InputError as error:
            return error

    n_threads = worker_threads()
    pending: deque[Future[T | InputError]] = deque()
    with ThreadPoolExecutor(n_threads) as pool:
        try:
            for source in sources:
                pending.append(pool.submit(attempt, source))
                if len(pending) >= max(n_threads * _AHEAD, ahead):
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
