"""What a training is told: length, optimiser, schedule, augmentation, precision."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from acil.errors import InputError
from acil.training.auxiliary import Auxiliary
from acil.vision.augment import check_names

Schedule = Literal["step", "cosine"]
TrainingPrecision = Literal["float32", "tf32", "bf16", "fp16"]

#: Where the cosine ends, so that the last epoch still moves.
COSINE_END = 1e-6


@dataclass(frozen=True)
class Training:
    """Settings of one training by stochastic gradient descent.

    Attributes
    ----------
    epochs : int
        0 leaves the network as it is.
    batch_size : int
        Images in a step; a data set with fewer makes one step an epoch.
    learning_rate : float
        At its peak.
    schedule : {"step", "cosine"}
        "step" multiplies by ``decay`` at each milestone; "cosine" falls to 1e-6 over the epochs that
        follow the warm-up. The rate is constant within an epoch.
    milestones : tuple of int
        Epochs, counted from 0, from which the smaller rate holds; only for "step".
    decay : float
    warmup : int
        Epochs over which the rate grows linearly to its peak, which the last of them reaches.
    momentum : float
    weight_decay : float
    decay_all : bool
        Whether the weight decay acts on normalisation and biases, too, as the papers have it; False
        leaves them (parameters of one dimension) alone.
    nesterov : bool
    label_smoothing : float
        Only in the default objective.
    augment : tuple of str
        Steps of :class:`acil.vision.augment.Augmentation`.
    precision : {"float32", "tf32", "bf16", "fp16"}
        "float32" keeps TF32 off, which PyTorch by default allows in convolutions. "tf32" allows it
        in convolutions and products. "bf16" and "fp16" run the network under autocast; weights, loss
        and optimiser stay in float32. "fp16" has as many digits as TF32, and scales the loss; on a
        CPU, which has no fast arithmetic for it, it is float32.
    keep_last_batch : bool
        Whether an epoch ends with the smaller batch that remains, or leaves those images out.
    compile : bool
        Whether, on a GPU, the blocks of the network go through ``torch.compile`` first: it pays only
        for long trainings. With "fp16", kernels of our own then compute the 3 x 3 convolutions.
    auxiliary : Auxiliary
        Tasks beside classification, by default none; only in the default objective.
    """

    epochs: int
    batch_size: int = 128
    learning_rate: float = 0.1
    schedule: Schedule = "step"
    milestones: tuple[int, ...] = ()
    decay: float = 0.1
    warmup: int = 0
    momentum: float = 0.9
    weight_decay: float = 5e-4
    decay_all: bool = True
    nesterov: bool = False
    label_smoothing: float = 0.0
    augment: tuple[str, ...] = ()
    precision: TrainingPrecision = "float32"
    keep_last_batch: bool = True
    compile: bool = False
    # Not in the text that checkpoints of earlier versions are found by.
    auxiliary: Auxiliary = field(default=Auxiliary(), repr=False)

    def __post_init__(self) -> None:
        _require("epochs", self.epochs, self.epochs >= 0, "at least 0")
        _require("batch_size", self.batch_size, self.batch_size >= 1, "at least 1")
        for name in ("learning_rate", "decay"):
            value = getattr(self, name)
            _require(name, value, 0 < value < math.inf, "positive")
        _require("warmup", self.warmup, self.warmup >= 0, "at least 0")
        for name in ("momentum", "label_smoothing"):
            value = getattr(self, name)
            _require(name, value, 0 <= value < 1, "at least 0 and below 1")
        _require("weight_decay", self.weight_decay, 0 <= self.weight_decay < math.inf, "at least 0")
        _require("schedule", self.schedule, self.schedule in get_args(Schedule), "step or cosine")
        known = get_args(TrainingPrecision)
        _require("precision", self.precision, self.precision in known, f"one of {', '.join(known)}")
        rising = all(a < b for a, b in zip(self.milestones, self.milestones[1:], strict=False))
        _require("milestones", self.milestones, rising, "in rising order")
        _require("nesterov", self.nesterov, not self.nesterov or self.momentum > 0, "used with momentum")
        check_names(self.augment)

    def learning_rate_at(self, epoch: int) -> float:
        """Return the learning rate of one epoch, counted from 0."""
        if epoch < self.warmup:
            return self.learning_rate * (epoch + 1) / self.warmup
        if self.schedule == "step":
            return self.learning_rate * self.decay ** sum(epoch >= m for m in self.milestones)
        fraction = (epoch - self.warmup) / max(1, self.epochs - self.warmup)
        # η_e = η_end + (η - η_end) (1 + cos(π fraction)) / 2
        return COSINE_END + (self.learning_rate - COSINE_END) * (1 + math.cos(math.pi * fraction)) / 2

    def steps_per_epoch(self, n_images: int) -> int:
        """Return how many batches an epoch over so many images has."""
        if n_images <= self.batch_size:
            return 1
        whole, rest = divmod(n_images, self.batch_size)
        return whole + bool(rest and self.keep_last_batch)


def _require(name: str, value: Any, holds: bool, what: str) -> None:
    if not holds:
        raise InputError(f"Training setting {name} must be {what}. Got {value!r} instead.")
