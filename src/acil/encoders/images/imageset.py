"""Images of one split, or the vectors that stand for them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from acil.errors import InputError

if TYPE_CHECKING:
    from acil.encoders.images.extract import FeatureExtractor
    from acil.encoders.images.imagefiles import ImageFiles

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
#: Bytes that are hashed together, so that a memory-mapped file is never in memory as a whole.
_CHUNK_BYTES = 2**24
#: Bytes of pixels up to which a part of a set is copied to be a set of its own.
_MOST_COPIED = 1 << 30


class ImageSet:
    """Images of one split, or the vectors that stand for them; subsets share memory with the whole.

    Parameters
    ----------
    pixels : Tensor of shape (n, channels, height, width), uint8, on the CPU, ImageFiles, or None
        May be memory-mapped; files are read when they are needed.
    vectors : Tensor of shape (n, features), float32, on the CPU, or None
        Features made elsewhere, in place of pixels; they are taken as they are.
    identity : str, optional
        Says which content this is, for caches; by default its `content_identity`.

    Attributes
    ----------
    has_pixels : bool
        Whether these are images, not vectors.
    files : ImageFiles or None
        The files that the images are read from, if they are not in memory.
    shape : tuple of int
        Of one image, (channels, height, width), or of one vector, (features,).
    indices : Tensor or None
        Which images of the whole split these are; None for all of them.

    Examples
    --------
    >>> import torch
    >>> pixels = torch.arange(12, dtype=torch.uint8).reshape(3, 1, 2, 2)
    >>> images = ImageSet(pixels)
    >>> part = images.subset(torch.tensor([2, 0])).subset(torch.tensor([0]))
    >>> len(part), part.shape, part.pixels().flatten().tolist()
    (1, (1, 2, 2), [8, 9, 10, 11])
    """

    def __init__(
        self,
        pixels: Tensor | ImageFiles | None,
        vectors: Tensor | None = None,
        identity: str | None = None,
    ) -> None:
        content = vectors if pixels is None else pixels
        self.has_pixels = pixels is not None
        dtype, ndim = (torch.uint8, 4) if self.has_pixels else (torch.float32, 2)
        if content is None or (pixels is not None and vectors is not None):
            raise InputError("An ImageSet needs either pixels or vectors.")
        if (content.dtype, content.ndim, content.device.type) != (dtype, ndim, "cpu"):
            raise InputError(
                "An ImageSet takes pixels, uint8 of shape (n, channels, height, width), or vectors, "
                f"float32 of shape (n, features), on the CPU. Got {content.dtype} of shape "
                f"{tuple(content.shape)} on {content.device}."
            )
        self.files = None if isinstance(content, Tensor) else content
        if identity is None:
            identity = content_identity(content) if isinstance(content, Tensor) else content.identity
        self.identity = identity
        self.shape = tuple(content.shape[1:])
        self.indices: Tensor | None = None
        self._content: Any = content

    def __len__(self) -> int:
        return len(self._content if self.indices is None else self.indices)

    @property
    def whole(self) -> ImageSet:
        """The split that this is a part of."""
        pixels, vectors = (self._content, None) if self.has_pixels else (None, self._content)
        return ImageSet(pixels, vectors, self.identity)

    def subset(self, indices: Tensor) -> ImageSet:
        """Return some of these images, in the given order; no pixel is copied. Indices may repeat."""
        chosen = torch.as_tensor(indices)
        if chosen.numel() == 0:
            chosen = torch.empty(0, dtype=torch.int64)
        whole_numbers = chosen.ndim == 1 and chosen.dtype in _INTEGERS
        if not whole_numbers or not bool(((chosen >= 0) & (chosen < len(self))).all()):
            raise InputError(
                f"Indices of images must be whole numbers from 0 to {len(self) - 1}, in a tensor of one "
                f"dimension. Got {chosen.dtype} of shape {tuple(chosen.shape)}: {chosen.tolist()[:5]} …"
            )
        chosen = chosen.to(device="cpu", dtype=torch.int64)
        part = self.whole
        part.indices = chosen.clone() if self.indices is None else self.indices[chosen]
        return part

    def pixels(self) -> Tensor:
        """Return the images, uint8 of shape (n, channels, height, width); of a subset, a copy."""
        return self.batch(0, len(self))

    def batch(self, start: int, stop: int) -> Tensor:
        """Return the images from start to stop, uint8; of files or a memory-mapped set, only these."""
        if not self.has_pixels:
            raise InputError(
                f"This set has only vectors of {self.shape[0]} features, no images. Use a data set with "
                "images, or a method that works on features."
            )
        rows: Tensor = self._content[
            slice(start, stop) if self.indices is None else self.indices[start:stop]
        ]
        return rows

    def batches(self, size: int) -> Iterator[Tensor]:
        """Yield all images, ``size`` at a time; of files, the next ones are decoded meanwhile."""
        starts = range(0, len(self), size)
        if self.files is None:
            yield from (self.batch(start, min(start + size, len(self))) for start in starts)
            return
        places = torch.arange(len(self)) if self.indices is None else self.indices
        tasks = (list(map(self.files.task, part.tolist())) for part in torch.split(places, size))
        yield from self.files.stream(tasks if len(self) else (), len(self))

    def to_train(self) -> Tensor | ImageSet:
        """Return what a training takes: the pixels, or the set itself if they are in files."""
        return self.pixels() if self.files is None else self

    def to_train_with(self, pixels: Tensor) -> Tensor | ImageSet:
        """Return the same of these images and, after them, of some that are in memory."""
        if len(pixels) == 0:
            return self.to_train()
        if self.files is None:
            return torch.cat([self.pixels(), pixels])
        n = len(self.files)
        places = torch.arange(n) if self.indices is None else self.indices
        both = ImageSet(self.files.followed_by(pixels))
        return both.subset(torch.cat([places, n + torch.arange(len(pixels))]))

    def alone(self) -> ImageSet:
        """Return these images as a whole set, where that is cheap: they are not copied if too many.

        Features are extracted for whole sets; so nothing is extracted for images that take no part.
        """
        if self.indices is None or not self.has_pixels:
            return self
        if self.files is not None:
            return ImageSet(self.files.select(self.indices))
        return ImageSet(self.pixels()) if len(self) * math.prod(self.shape) <= _MOST_COPIED else self

    def features(self, extractor: FeatureExtractor | None) -> Tensor:
        """Return the features of the images, or the vectors as they are; not to be changed in place."""
        return self._vectors() if not self.has_pixels else _required(extractor).features(self)

    def training_rows(self, extractor: FeatureExtractor | None) -> list[Tensor]:
        """Return what a head learns of the images, see `FeatureExtractor.training_rows`."""
        return [self._vectors()] if not self.has_pixels else _required(extractor).training_rows(self)

    def _vectors(self) -> Tensor:
        vectors: Tensor = self._content if self.indices is None else self._content[self.indices]
        return vectors


def _required(extractor: FeatureExtractor | None) -> FeatureExtractor:
    if extractor is None:
        raise InputError("Images need an extractor to become features. Give a backbone.")
    return extractor


def content_identity(content: Tensor) -> str:
    """Return a hash of shape, type and values, reading a memory-mapped tensor piece by piece."""
    digest = hashlib.sha256(f"{tuple(content.shape)} {content.dtype}".encode())
    rows = content.reshape(1) if content.ndim == 0 else content
    step = max(1, _CHUNK_BYTES // max(1, rows[:1].numel() * rows.element_size()))
    for start in range(0, len(rows), step):
        # As bytes, because NumPy does not have every type of torch.
        piece = rows[start : start + step].contiguous().reshape(-1)
        digest.update(piece.view(torch.uint8).numpy().data)
    return digest.hexdigest()
