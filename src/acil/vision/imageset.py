"""Images of one split, or the vectors that stand for them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from acil.errors import InputError

if TYPE_CHECKING:
    from acil.vision.extract import FeatureExtractor

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
#: Bytes that are hashed together, so that a memory-mapped file is never in memory as a whole.
_CHUNK_BYTES = 2**24


class ImageSet:
    """Images of one split, or the vectors that stand for them; subsets share memory with the whole.

    Parameters
    ----------
    pixels : Tensor of shape (n, channels, height, width), uint8, on the CPU, or None
        May be memory-mapped.
    vectors : Tensor of shape (n, features), float32, on the CPU, or None
        Features made elsewhere. At least one of the two is needed; vectors are taken as they are.
    identity : str
        Says which content this is (`content_identity`), for caches.

    Examples
    --------
    >>> import torch
    >>> pixels = torch.arange(12, dtype=torch.uint8).reshape(3, 1, 2, 2)
    >>> images = ImageSet(pixels, None, content_identity(pixels))
    >>> part = images.subset(torch.tensor([2, 0])).subset(torch.tensor([0]))
    >>> len(part), part.shape, part.pixels().flatten().tolist()
    (1, (1, 2, 2), [8, 9, 10, 11])
    """

    def __init__(self, pixels: Tensor | None, vectors: Tensor | None, identity: str) -> None:
        if pixels is None and vectors is None:
            raise InputError("An ImageSet needs pixels or vectors. Got neither.")
        if pixels is not None:
            _require(pixels, "pixels", torch.uint8, "(n, channels, height, width)", 4)
        if vectors is not None:
            _require(vectors, "vectors", torch.float32, "(n, features)", 2)
        if pixels is not None and vectors is not None and len(pixels) != len(vectors):
            raise InputError(
                f"There are {len(pixels)} images but {len(vectors)} vectors. Give one vector per image."
            )
        self.identity = identity
        self._pixels = pixels
        self._vectors = vectors
        self._indices: Tensor | None = None

    def __len__(self) -> int:
        return len(self._any) if self._indices is None else len(self._indices)

    def __repr__(self) -> str:
        kind = "vectors" if self._pixels is None else "images"
        return f"ImageSet({len(self)} of {len(self._any)} {kind} {self.shape}, {self.identity[:12]})"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image, (channels, height, width), or of one vector, (features,)."""
        return tuple(self._any.shape[1:])

    @property
    def has_pixels(self) -> bool:
        """Whether there are images, and not only vectors."""
        return self._pixels is not None

    @property
    def indices(self) -> Tensor | None:
        """Which images of the whole split these are; None for all of them."""
        return self._indices

    @property
    def whole(self) -> ImageSet:
        """The split that this is a part of."""
        return ImageSet(self._pixels, self._vectors, self.identity)

    def subset(self, indices: Tensor) -> ImageSet:
        """Return some of these images, in the given order; no pixel is copied.

        Parameters
        ----------
        indices : Tensor of shape (k,), integers from 0 to len(self) - 1
            May repeat.
        """
        chosen = self._checked(indices)
        part = self.whole
        part._indices = chosen.clone() if self._indices is None else self._indices[chosen]
        return part

    def pixels(self) -> Tensor:
        """Return the images, uint8 of shape (n, channels, height, width); of a subset, a copy."""
        return self.batch(0, len(self))

    def batch(self, start: int, stop: int) -> Tensor:
        """Return a run of the images; of a memory-mapped set, only these are read.

        Parameters
        ----------
        start, stop : int

        Returns
        -------
        Tensor of shape (stop - start, channels, height, width), uint8
        """
        if self._pixels is None:
            raise InputError(
                f"This set has only vectors of {self.shape[0]} features, no images. Use a data set with "
                "images, or a method that works on features."
            )
        if self._indices is None:
            return self._pixels[start:stop]
        return self._pixels[self._indices[start:stop]]

    def features(self, extractor: FeatureExtractor | None) -> Tensor:
        """Return the features of the images, or the vectors as they are.

        Parameters
        ----------
        extractor : FeatureExtractor or None
            Not used by a set of vectors.

        Returns
        -------
        Tensor of shape (n, features), float32, on the CPU
            Shared with the set or the cache: not to be changed in place.
        """
        if self._vectors is not None:
            return self._vectors if self._indices is None else self._vectors[self._indices]
        if extractor is None:
            raise InputError("Images need an extractor to become features. Give a backbone.")
        return extractor.features(self)

    @property
    def _any(self) -> Tensor:
        found = self._vectors if self._pixels is None else self._pixels
        if found is None:
            raise TypeError("an ImageSet has pixels or vectors")
        return found

    def _checked(self, indices: Any) -> Tensor:
        chosen = torch.as_tensor(indices)
        if chosen.numel() == 0:
            return torch.empty(0, dtype=torch.int64)
        if chosen.ndim != 1 or chosen.dtype not in _INTEGERS:
            raise InputError(
                "Indices of images must be a one-dimensional tensor of integers. "
                f"Got {chosen.dtype} of shape {tuple(chosen.shape)}."
            )
        chosen = chosen.to(device="cpu", dtype=torch.int64)
        low, high = int(chosen.min()), int(chosen.max())
        if low < 0 or high >= len(self):
            raise InputError(
                f"Indices must be from 0 to {len(self) - 1} in a set of {len(self)} images. "
                f"Got {low} to {high}."
            )
        return chosen


def content_identity(content: Tensor) -> str:
    """Return a hash of shape, type and values, reading a memory-mapped tensor piece by piece.

    Parameters
    ----------
    content : Tensor of pixels or vectors, on the CPU
    """
    digest = hashlib.sha256(f"{tuple(content.shape)} {content.dtype}".encode())
    rows = content.reshape(1) if content.ndim == 0 else content
    row_bytes = max(1, rows[:1].numel() * rows.element_size())
    step = max(1, _CHUNK_BYTES // row_bytes)
    for start in range(0, len(rows), step):
        # As bytes, because NumPy does not have every type of torch.
        piece = rows[start : start + step].contiguous().reshape(-1)
        digest.update(piece.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _require(tensor: Tensor, name: str, dtype: torch.dtype, shape: str, ndim: int) -> None:
    if tensor.dtype != dtype or tensor.ndim != ndim or tensor.device.type != "cpu":
        raise InputError(
            f"The {name} of an ImageSet must be {dtype} of shape {shape} on the CPU. "
            f"Got {tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}."
        )
