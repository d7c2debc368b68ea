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
from acil.encoders.images.imagefiles import Task
from acil.encoders.images.imageset import ImageSet

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

    Images in files are decoded by worker processes while the network trains: those of a batch by
    generators that start from (seed, epoch, batch, position). Of each, ``"resizedcrop"`` takes a part of
    the whole image; without it, the middle.
    """

    def __init__(
        self,
        images: Tensor | ImageSet,
        labels: Tensor,
        settings: Training,
        preprocessing: Preprocessing | None,
        seed: int,
        device: torch.device,
        views: int = 1,
        draws: int = 0,
    ) -> None:
        self._files = images if isinstance(images, ImageSet) else None
        self._images = torch.empty(0) if isinstance(images, ImageSet) else _placed(images, device)
        self._labels = labels.to(device)
        self._preprocessing = preprocessing
        size = settings.crop_size or (preprocessing.size if preprocessing else None)
        self._own_crop = self._files is not None and "resizedcrop" in settings.augment
        names = [name for name in settings.augment if not (self._own_crop and name == "resizedcrop")]
        self._augment = Augmentation(names, size)
        self._side = size if self._own_crop else None
        self._seed, self._device = seed, device
        self._views, self._draws = views, draws
        n = len(images)
        self._size = min(settings.batch_size, n)
        self.steps = settings.steps_per_epoch(n)
        #: Images that an epoch goes through.
        self.images_per_epoch = min(n, self.steps * self._size)
        self._n, self._chunk_steps = n, 1
        if self._files is None:
            bytes_per_batch = self._size * self._images[0].numel()
            self._chunk_steps = max(1, _CHUNK_BYTES // max(1, bytes_per_batch))

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[tuple[Tensor, ...]]:
        """Yield inputs, labels, positions in the data set and draws of each batch, from a step on."""
        order = torch.randperm(self._n, generator=self._generator("cpu", epoch, "order"))
        order = order[: self.images_per_epoch]
        read = self._read(order, epoch, first_step)
        for chunk in range(first_step // self._chunk_steps, -(-self.steps // self._chunk_steps)):
            start = chunk * self._chunk_steps
            end = min(start + self._chunk_steps, self.steps)
            members = order[start * self._size : end * self._size]
            indices = members.to(self._device)
            generator = self._generator(self._device, epoch, chunk)
            if read is None:
                chosen = self._chosen(members.repeat(self._views), indices.repeat(self._views))
            else:
                chosen = next(read).to(self._device, non_blocking=True)
            inputs = torch.split(self._inputs(chosen, generator), len(members))
            parts = [self._labels[indices], indices]
            if self._draws:
                shape = (len(members), self._draws)
                parts.append(torch.rand(shape, generator=generator, device=self._device))
            for step in range(max(start, first_step), end):
                batch = slice((step - start) * self._size, (step - start + 1) * self._size)
                x = torch.cat([view[batch] for view in inputs]) if self._views > 1 else inputs[0][batch]
                yield x, *(part[batch] for part in parts)

    def _read(self, order: Tensor, epoch: int, first_step: int) -> Iterator[Tensor] | None:
        """Yield the pixels of each batch of images in files, from a step on."""
        if self._files is None or self._files.files is None:
            return None
        files, places = self._files.files, self._files.indices

        def tasks() -> Iterator[list[Task]]:
            for step in range(first_step, self.steps):
                members = order[step * self._size : (step + 1) * self._size].repeat(self._views)
                members = members if places is None else places[members]
                seed = derived_seed("acil training", self._seed, epoch, step, "parts")
                seeds = (seed + k if self._own_crop else None for k in range(len(members)))
                yield list(map(files.task, members.tolist(), seeds))

        left = self._views * (self.images_per_epoch - first_step * self._size)
        return files.stream(tasks(), left, self._side, pin=self._device.type == "cuda")

    def _chosen(self, members: Tensor, indices: Tensor) -> Tensor:
        resident = self._images.device == self._device
        return self._images[indices] if resident else self._images[members].to(self._device)

    def _inputs(self, chosen: Tensor, generator: torch.Generator) -> Tensor:
        """Return the network's input for one chunk."""
        if chosen.dtype != torch.uint8 or self._preprocessing is None:
            return chosen
        augmented = self._augment(chosen, generator)
        if not self._own_crop:
            augmented = centre(augmented, self._preprocessing.size)
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


def _placed(images: Tensor, device: torch.device) -> Tensor:
    """Return images on the device, or where they are if there is no room for them."""
    return images.to(device) if _fits(images, device) else images


def _fits(images: Tensor, device: torch.device) -> bool:
    """Say whether images may live on the device; those that may not are sent chunk by chunk."""
    if device.type != "cuda" or images.device == device:
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return images.numel() * images.element_size() <= _RESIDENT_SHARE * free
