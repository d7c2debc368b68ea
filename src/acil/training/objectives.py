"""Objectives of methods that learn from an older copy of the network, and their losses."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional


class Capturable:
    """An objective whose step can be a CUDA graph; a dataclass, whose fields a checkpoint remembers.

    No shape and no branch may depend on values, and nothing but the trained network may keep state.
    Networks and tensors are fields with ``repr=False``: they follow from the network at the start.
    """

    capturable = True

    @property
    def identity(self) -> str:
        """What distinguishes this objective from others."""
        return repr(self)


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return −Σ_c softmax(teacher/T)_c · log softmax(student/T)_c, mean over the rows.

    Parameters
    ----------
    student, teacher : Tensor of shape (n, classes), float32
        Scores. The gradient is zero where both have the same softmax.
    temperature : float
        T. The loss is not multiplied by T².
    """
    return functional.cross_entropy(student / temperature, (teacher / temperature).softmax(1))


@dataclass(frozen=True, eq=False)
class Distilling(Capturable):
    """Cross entropy and softmax distillation, weighted: a · CE + b · KD.

    Attributes
    ----------
    teacher : nn.Module
        The network of the phase before, in evaluation mode; its scores are those of the old classes.
    n_old : int
        Number of old classes.
    temperature : float
        T of the distillation.
    cross_entropy, distillation : float
        Weights a and b.
    new_only : bool
        Whether the cross entropy is over the new classes' scores only; then all labels must be new.
    """

    teacher: nn.Module = field(repr=False)
    n_old: int
    temperature: float
    cross_entropy: float = 1.0
    distillation: float = 1.0
    new_only: bool = False

    def __call__(
        self, network: nn.Module, x: Tensor, y: Tensor, indices: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the scores."""
        scores = network(x).float()
        with torch.no_grad():
            old = self.teacher(x).float()
        first = self.n_old if self.new_only else 0
        ce = functional.cross_entropy(scores[:, first:], y - first)
        kd = distillation(scores[:, : self.n_old], old, self.temperature)
        return self.cross_entropy * ce + self.distillation * kd, scores
