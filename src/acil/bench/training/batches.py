"""The batches of a training: order, augmentation and normalisation, the same whenever asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from acil.bench.training.augment import Augmentation
from acil.bench.training.settings import Training
from acil.encoders.images.backbones import Preprocessing, normalise
from acil.encoders.images.decode import centre

#: Bytes of pixels that are augmented together: enough to keep a GPU busy with few launches.
_CHUNK_BYTES = 2**24
#: Share of a GPU's free memory that the images may take.
_RESIDENT_SHARE = 0.5


class Batches:
    """Batches of augmented, normalised images in a new order each epoch.

    Several batches are augmented together, as one chunk. The order of an epoch is drawn from a
    generator that starts from (seed, epoch), the augmentation of a chunk from one that starts from
    (seed, epoch, chunk): any batch can be made again without those before it.

    Images (n, c, h, w), uint8, or floats (n, …), which are used as they are and need no preprocessing,
    move to the device if there is room for them. A batch has each image ``views`` times, augmented anew:
    all images once, then all once more. With ``draws`` it has a fourth part, (n, draws), uniform in
    [0, 1).
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        settings: Training,
        preprocessing: Preprocessing | None,
        seed: int,
        device: torch.device,
        views: int = 1,
        draws: int = 0,
    ) -> None:
        self._images = images.to(device) if _fits(images, device) else images
        self._labels = labels.to(device)
        self._preprocessing = preprocessing
        self._augment = Augmentation(settings.augment, preprocessing.size if preprocessing else None)
        self._seed, self._device = seed, device
        self._views, self._draws = views, draws
        n = len(images)
        self._size = min(settings.batch_size, n)
        self.steps = settings.steps_per_epoch(n)
        #: Images that an epoch goes through.
        self.images_per_epoch = min(n, self.steps * self._size)
        bytes_per_batch = self._size * images[0].numel()
        self._chunk_steps = max(1, _CHUNK_BYTES // max(1, bytes_per_batch))

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[tuple[Tensor, ...]]:
        """Yield inputs, labels, positions in the data set and draws of each batch, from a step on."""
        order = torch.randperm(len(self._images), generator=self._generator("cpu", epoch, "order"))
        order = order[: self.images_per_epoch]
        for chunk in range(first_step // self._chunk_steps, -(-self.steps // self._chunk_steps)):
            start = chunk * self._chunk_steps
            end = min(start + self._chunk_steps, self.steps)
            members = order[start * self._size : end * self._size]
            indices = members.to(self._device)
            generator = self._generator(self._device, epoch, chunk)
            repeated = members.repeat(self._views), indices.repeat(self._views)
            inputs = torch.split(self._inputs(*repeated, generator), len(members))
            parts = [self._labels[indices], indices]
            if self._draws:
                shape = (len(members), self._draws)
                parts.append(torch.rand(shape, generator=generator, device=self._device))
            for step in range(max(start, first_step), end):
                batch = slice((step - start) * self._size, (step - start + 1) * self._size)
                x = torch.cat([view[batch] for view in inputs]) if self._views > 1 else inputs[0][batch]
                yield x, *(part[batch] for part in parts)

    def _inputs(self, members: Tensor, indices: Tensor, generator: torch.Generator) -> Tensor:
        """Return the network's input for one chunk."""
        resident = self._images.device == self._device
        chosen = self._images[indices] if resident else self._images[members].to(self._device)
        if chosen.dtype != torch.uint8 or self._preprocessing is None:
            return chosen
        augmented = centre(self._augment(chosen, generator), self._preprocessing.size)
        inputs = normalise(augmented, self._preprocessing)
        return inputs.contiguous(memory_format=torch.channels_last)

    def _generator(self, device: torch.device | str, epoch: int, part: object) -> torch.Generator:
        seed = derived_seed("acil training", self._seed, epoch, part)
        return torch.Generator(device).manual_seed(seed)


def derived_seed(*parts: object) -> int:
    """Return a seed that depends on all of these parts; 63 bits, which every generator takes.

    Examples
    --------
    >>> derived_seed("acil method", 0, "classifier") == derived_seed("acil method", 0, "phase")
    False
    """
    text = " ".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def _fits(images: Tensor, device: torch.device) -> bool:
    """Say whether images may live on the device; those that may not are sent chunk by chunk."""
    if device.type != "cuda" or images.device == device:
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return images.numel() * images.element_size() <= _RESIDENT_SHARE * free
