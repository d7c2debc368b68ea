"""The training loop: batches, epochs, schedule, progress, checkpoints."""

from __future__ import annotations

import copy
import hashlib
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from acil.bench.training.augment import Augmentation
from acil.bench.training.checkpoint import Checkpoint, Position, training_identity
from acil.bench.training.network import FeatureNetwork
from acil.bench.training.objectives import Assisted, AssistedLoss, CrossEntropy, MeanScores, Objective
from acil.bench.training.settings import Training
from acil.bench.training.step import Step
from acil.core.linalg import threads_for
from acil.encoders.images.backbones import Preprocessing, normalise
from acil.encoders.images.decode import centre
from acil.encoders.images.extract import full_float32, multiplications
from acil.encoders.images.imagefiles import Task
from acil.encoders.images.imageset import ImageSet
from acil.errors import ACILError, InputError

#: Seconds between two reports: reading the loss makes a GPU wait.
REPORT_SECONDS = 0.2
#: Bytes of pixels that are augmented together: enough to keep a GPU busy with few launches.
_CHUNK_BYTES = 2**24
#: Share of a GPU's free memory that the images may take.
_RESIDENT_SHARE = 0.5


@dataclass(frozen=True)
class Progress:
    """How far a training is.

    Loss and accuracy are means over the images of this epoch so far, as augmented.
    """

    epoch: int  # the present one, counted from 1
    epochs: int
    loss: float
    accuracy: float | None  # in percent; None if the objective does not return scores
    images_per_second: float
    seconds_left: float


class DivergedError(ACILError, ArithmeticError):
    """The loss became infinite or not a number."""


def train(
    network: nn.Module,
    images: Tensor | ImageSet,
    labels: Tensor,
    settings: Training,
    *,
    preprocessing: Preprocessing | None,
    seed: int,
    device: torch.device | str,
    objective: Objective | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> None:
    """Train a network in place; it ends on the device, in evaluation mode.

    The network takes normalised images, and its trainable parameters are trained. Images are uint8, (n,
    c, h, w), on any device, or a set of image files, which are read while it trains. float32 tensors of
    any shape (n, …), such as features, are used as they are: without augmentation, and preprocessing may
    be None. Labels are int64, (n,). The seed draws orders and augmentation; the network's first weights
    are the caller's. The objective is by default the cross entropy of ``network(x)`` and the auxiliary
    tasks of the settings.

    If the checkpoint holds a state of this very training, that is where it goes on: same network as
    first built, same data, settings, seed. The last checkpoint stays; the caller removes it.
    ``progress`` is called at most five times a second, and once at the end. What it raises ends the
    training.

    Raises
    ------
    DivergedError
        If the loss is not finite, looked at when an epoch ends and before anything is reported or
        written; the last checkpoint is from before.
    InputError
        If arguments do not fit together, or the checkpoint belongs to another training.

    Notes
    -----
    On the CPU a training gives the same bits each time, interrupted or not, with the same number of
    threads. On a GPU the batches are the same and the last bits are not. A network that draws random
    numbers itself (dropout) uses torch's global generator, which no checkpoint holds.
    """
    _check(network, images, labels, settings, preprocessing)
    device = torch.device(device)
    if settings.epochs == 0:
        network.to(device).eval()
        return
    trained, views, draws = network, 1, 0
    if objective is None and settings.auxiliary.active:
        teacher = None
        if settings.auxiliary.distillation:
            options = {"preprocessing": preprocessing, "device": device, "progress": progress}
            teacher = _teacher(network, images, labels, settings, seed, checkpoint, **options)
        own_seed = derived_seed("acil training", seed, "auxiliary layers")
        generator = torch.Generator().manual_seed(own_seed)
        # The layers of auxiliary tasks live here alone: what is trained in place is the network.
        trained = Assisted(network, settings.auxiliary, generator)
        views, draws = settings.auxiliary.views, settings.auxiliary.draws
        objective = AssistedLoss(settings.auxiliary, settings.label_smoothing, teacher)
    objective = objective or CrossEntropy(settings.label_smoothing)
    identity: dict[str, Any] = {}
    if checkpoint is not None:
        identity = training_identity(trained, images, labels, settings, preprocessing, seed, objective)
    work = views * _multiplications(network, images, settings, preprocessing, device)
    # Channels last is the faster layout on CPUs too (ResNet-32 on two cores: by a quarter).
    trained.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    trained.train()
    with _numerics(device, settings), _own_stream(device), threads_for(work):
        batches = Batches(images, labels, settings, preprocessing, seed, device, views, draws)
        step = Step(trained, objective, settings, device)
        try:
            _run(step, batches, settings, checkpoint, identity, progress)
        finally:
            step.close()
            network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    network.eval()


def _teacher(
    network: nn.Module,
    images: Tensor | ImageSet,
    labels: Tensor,
    settings: Training,
    seed: int,
    checkpoint: Checkpoint | None,
    **options: Any,
) -> MeanScores:
    """Train the networks that a training with distillation follows.

    They start from the same weights and see other batches. Their last checkpoints stay until the whole
    training is over: a killed one finds its teachers again.
    """
    alone = replace(settings, auxiliary=replace(settings.auxiliary, distillation=0.0))
    teachers = [copy.deepcopy(network) for _ in range(settings.auxiliary.teachers)]
    for number, teacher in enumerate(teachers):
        part = None if checkpoint is None else checkpoint.part(f"teacher-{number}")
        own_seed = derived_seed("acil training", seed, "teacher", number)
        train(teacher, images, labels, alone, seed=own_seed, checkpoint=part, **options)
    return MeanScores(teachers).eval()


def _run(
    step: Step,
    batches: Batches,
    settings: Training,
    checkpoint: Checkpoint | None,
    identity: dict[str, Any],
    progress: Callable[[Progress], None] | None,
) -> None:
    position = Position(epoch=0, step=0, seen=0)
    saved = None if checkpoint is None else checkpoint.load(identity, step.tensors())
    if saved is not None:
        position, tensors = saved
        step.load(tensors)
    # Images to come, and those of this call, which tell how fast it goes
    remaining, done = (settings.epochs - position.epoch) * batches.images_per_epoch - position.seen, 0
    started = reported = time.monotonic()
    loss, accuracy = math.nan, None

    def report(epoch: int) -> None:
        if progress is not None:
            pace = done / max(time.monotonic() - started, 1e-9)
            seconds = remaining / pace if pace else 0.0
            progress(Progress(epoch, settings.epochs, loss, accuracy, pace, seconds))

    for epoch in range(position.epoch, settings.epochs):
        if position.epoch < epoch or position.step == 0:
            position = Position(epoch, step=0, seen=0)
            step.reset_totals()
        rate = settings.learning_rate_at(epoch)
        step.set_rate(rate)
        for batch in batches.epoch(epoch, position.step):
            step(*batch)
            size = len(batch[1])
            remaining, done = remaining - size, done + size
            position = Position(epoch, position.step + 1, position.seen + size)
            if checkpoint is not None and checkpoint.due():
                _measure(step, position, settings, rate)
                checkpoint.save(identity, position, step.tensors())
            if progress is not None and time.monotonic() - reported >= REPORT_SECONDS:
                loss, accuracy = _measure(step, position, settings, rate)
                report(epoch + 1)
                reported = time.monotonic()
        loss, accuracy = _measure(step, position, settings, rate)
    if checkpoint is not None and done:
        checkpoint.save(identity, position, step.tensors())
    report(settings.epochs)


def _measure(
    step: Step, position: Position, settings: Training, rate: float
) -> tuple[float, float | None]:
    """Return loss and accuracy of the epoch so far; raise if the loss is not finite."""
    loss, accuracy = step.mean_loss_and_accuracy(position.seen)
    if not math.isfinite(loss):
        raise DivergedError(
            f"Training diverged: the loss is {loss} in epoch {position.epoch + 1} of {settings.epochs}, "
            f"at learning rate {rate:g} and precision {settings.precision}. Lower the learning rate, "
            "raise the warm-up, or check the objective."
        )
    return loss, accuracy


def _check(
    network: nn.Module,
    images: Tensor | ImageSet,
    labels: Tensor,
    settings: Training,
    preprocessing: Preprocessing | None,
) -> None:
    if isinstance(images, ImageSet):
        if images.files is None or preprocessing is None:
            raise InputError("A training takes a set of image files and their preprocessing, or pixels.")
        _check_labels(network, (len(images),), labels)
        return
    pixels = images.dtype == torch.uint8
    if pixels and (images.ndim != 4 or preprocessing is None):
        raise InputError(
            f"Images must have shape (n, c, h, w) and come with their preprocessing. Got "
            f"{tuple(images.shape)} and preprocessing {preprocessing}."
        )
    if not pixels and (images.dtype != torch.float32 or images.ndim < 2 or settings.augment):
        raise InputError(
            f"Training takes uint8 images, or float32 features without augmentation. Got {images.dtype} "
            f"of shape {tuple(images.shape)} with augmentation {settings.augment}."
        )
    _check_labels(network, tuple(images.shape[:1]), labels)


def _check_labels(network: nn.Module, shape: tuple[int, ...], labels: Tensor) -> None:
    if labels.dtype != torch.int64 or tuple(labels.shape) != shape or len(labels) == 0:
        raise InputError(
            f"Labels must be one int64 for each of at least one image. Got {labels.dtype} of shape "
            f"{tuple(labels.shape)} for {shape[0]} images."
        )
    outputs = network.n_classes if isinstance(network, FeatureNetwork) else None
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or (outputs is not None and high >= outputs):
        raise InputError(
            f"Labels run from {low} to {high}, but the network has {outputs or 'no negative'} outputs, "
            "numbered from 0. Number the classes from 0, or grow the network."
        )


def _multiplications(
    network: nn.Module,
    images: Tensor | ImageSet,
    settings: Training,
    preprocessing: Preprocessing | None,
    device: torch.device,
) -> float:
    """Return those of a forward pass of one batch."""
    if device.type != "cpu":
        return math.inf
    if isinstance(images, ImageSet):
        x = torch.zeros(1, *images.shape, dtype=torch.uint8, device=device)
    else:
        x = images[:1].to(device)
    if preprocessing is not None and x.dtype == torch.uint8:
        x = normalise(centre(x, preprocessing.size), preprocessing)
    try:
        return min(settings.batch_size, len(images)) * multiplications(network.to(device), x)
    except TypeError:  # such as a generator, which takes labels as well
        return math.inf


@contextmanager
def _numerics(device: torch.device, settings: Training) -> Iterator[None]:
    """Compute float32 as float32 unless the settings allow TF32; let cuDNN choose by timing."""
    backends: Any = torch.backends
    with full_float32():
        if device.type == "cuda":
            backends.cudnn.benchmark, backends.cudnn.deterministic = True, False
            if settings.precision == "tf32" and hasattr(backends.cudnn, "conv"):  # from torch 2.9 on
                backends.cuda.matmul.fp32_precision = backends.cudnn.conv.fp32_precision = "tf32"
            elif settings.precision == "tf32":
                backends.cuda.matmul.allow_tf32 = backends.cudnn.allow_tf32 = True
        yield


@contextmanager
def _own_stream(device: torch.device) -> Iterator[None]:
    """Send all work to one stream of its own: graphs cannot be recorded on the default one."""
    if device.type != "cuda":
        yield
        return
    outer, stream = torch.cuda.current_stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(outer)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        outer.wait_stream(stream)


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

        n_images = self._views * (self.images_per_epoch - first_step * self._size)
        return files.stream(tasks(), n_images, self._side, pin=self._device.type == "cuda")

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
