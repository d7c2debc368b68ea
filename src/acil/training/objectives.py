"""Objectives: what a training minimises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

#: The loss, and the scores, from which the training accuracy is counted.
Scored = tuple[Tensor, Tensor]


class Objective:
    """(network, inputs, labels, positions in the data set) → loss, or (loss, scores).

    Parameters
    ----------
    function : callable
        Does it; a subclass overrides ``__call__`` instead.

    Attributes
    ----------
    capturable : bool
        Whether a step may be a CUDA graph: no shape and no branch depends on values, and nothing but the
        network keeps state.
    views, draws : int
        See :class:`acil.training.batches.Batches`; draws come as a fifth argument.
    gradient_limit : float or None
        Each entry of a gradient is clamped to ± this number.
    teacher : nn.Module or None
        Runs as fast as the network, if the objective is a dataclass.
    """

    capturable: bool = False
    views: int = 1
    draws: int = 0
    gradient_limit: float | None = None
    teacher: nn.Module | None = None

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *batch: Any) -> Any:
        return self.function(*batch)

    @property
    def identity(self) -> str:
        """A text that a checkpoint remembers."""
        return str(getattr(self.function, "__qualname__", type(self.function).__qualname__))


class Capturable(Objective):
    """An objective whose step can be a CUDA graph; a dataclass, whose fields a checkpoint remembers.

    Networks and tensors are fields with ``repr=False``: they follow from the network at the start.
    """

    capturable = True

    @property
    def identity(self) -> str:
        """What distinguishes this objective from others."""
        return repr(self)


@dataclass(frozen=True)
class CrossEntropy(Capturable):
    """Mean cross entropy of the network's scores, the default objective."""

    label_smoothing: float = 0.0
    identity = "cross entropy"

    def __call__(self, network: nn.Module, x: Tensor, y: Tensor, indices: Tensor) -> Scored:
        scores = network(x).float()
        return functional.cross_entropy(scores, y, label_smoothing=self.label_smoothing), scores


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return −Σ_c softmax(teacher/T)_c · log softmax(student/T)_c, mean over the rows, not times T².

    Scores have shape (n, classes). The gradient is zero where both have the same softmax.
    """
    return functional.cross_entropy(student / temperature, (teacher / temperature).softmax(1))


@dataclass(frozen=True, eq=False)
class Distilling(Capturable):
    """Cross entropy and softmax distillation, weighted: a · CE + b · KD."""

    teacher: nn.Module = field(repr=False)  # in evaluation mode, with scores of the old classes
    n_old: int
    temperature: float
    cross_entropy: float = 1.0
    distillation: float = 1.0
    new_only: bool = False  # cross entropy over the new classes' scores; then all labels must be new

    def __call__(self, network: nn.Module, x: Tensor, y: Tensor, indices: Tensor) -> Scored:
        scores = network(x).float()
        with torch.no_grad():
            old = self.teacher(x).float()
        first = self.n_old if self.new_only else 0
        ce = functional.cross_entropy(scores[:, first:], y - first)
        kd = distillation(scores[:, : self.n_old], old, self.temperature)
        return self.cross_entropy * ce + self.distillation * kd, scores
