"""BiC's correction: a balanced split is held out, and two numbers are fitted on its scores."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from acil.errors import InputError
from acil.methods.base import Context
from acil.methods.lwf import check_distillation
from acil.methods.memory import MemoryRule
from acil.methods.schedule import derived_seed
from acil.training.loop import train
from acil.training.objectives import Capturable
from acil.training.settings import Training

#: Batch size that `BiCSettings.correction_rate` is given for.
_RATE_BATCH = 256


@dataclass(frozen=True)
class BiCSettings:
    """Settings of BiC.

    Attributes
    ----------
    memory_rule : str
        "N per class" or "N in total".
    temperature : float
        T of the distillation.
    held_out : float
        Share of the exemplars that the correction is learnt on.
    beta_decay : float
        Weight of β² in the loss of the correction.
    correction_epochs : int
    correction_rate : float
        Learning rate for batches of 256; in proportion for others.
    correction_milestones : tuple of int
        Epochs at which the rate is divided by 10.
    """

    memory_rule: str = "20 per class"
    temperature: float = 2.0
    held_out: float = 0.1
    beta_decay: float = 0.05
    correction_epochs: int = 200
    correction_rate: float = 0.1
    correction_milestones: tuple[int, ...] = (60, 120, 160, 180)

    def __post_init__(self) -> None:
        MemoryRule.parse(self.memory_rule)
        check_distillation(self.beta_decay, self.temperature)
        if not 0 < self.held_out < 1:
            raise InputError(f"held_out must be between 0 and 1. Got {self.held_out}.")


class BiasCorrection(nn.Module):
    """Scores of the classes from ``n_old`` on become α z + β; the others stay.

    Parameters
    ----------
    n_old : int
    alpha, beta : float

    Examples
    --------
    >>> import torch
    >>> BiasCorrection(1, alpha=0.5, beta=-1.0)(torch.tensor([[3.0, 4.0]])).tolist()
    [[3.0, 1.0]]
    """

    def __init__(self, n_old: int, alpha: float = 1.0, beta: float = 0.0) -> None:
        super().__init__()
        self.n_old = n_old
        self.alpha = nn.Parameter(torch.tensor(alpha))
        self.beta = nn.Parameter(torch.tensor(beta))

    def forward(self, scores: Tensor) -> Tensor:
        """Return corrected scores, of the same shape."""
        old, new = scores[:, : self.n_old], scores[:, self.n_old :]
        return torch.cat([old, self.alpha * new + self.beta], dim=1)


@dataclass(frozen=True, eq=False)
class CorrectionLoss(Capturable):
    """Cross entropy of corrected scores, and decay · β²."""

    decay: float

    def __call__(
        self, network: nn.Module, x: Tensor, y: Tensor, indices: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the corrected scores."""
        scores: Tensor = network(x)
        beta: Tensor = network.beta  # type: ignore[assignment]
        return functional.cross_entropy(scores, y) + self.decay * beta.square(), scores


def hold_out(labels: Tensor, n_old: int, wanted: int, generator: torch.Generator) -> Tensor:
    """Choose as many samples of every class: of old classes the first ones, of new ones at random.

    Parameters
    ----------
    labels : Tensor of shape (n,), int64
        Of new images and exemplars, those in the order of their rank.
    n_old : int
        Classes below it are old.
    wanted : int
        Samples of each class.
    generator : torch.Generator

    Returns
    -------
    Tensor of shape (n,), bool
        True for what is held out: never all samples of a class.
    """
    counts = torch.bincount(labels)
    if int(counts[counts > 0].min()) <= wanted:
        raise InputError(
            f"BiC holds out {wanted} sample(s) of each class and trains on the others, but a class has "
            f"{int(counts[counts > 0].min())}. Keep at least two exemplars of each class (memory_rule), "
            "or lower held_out."
        )
    held = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(len(counts)):
        members = torch.nonzero(labels == label).flatten()
        if label >= n_old:
            members = members[torch.randperm(len(members), generator=generator)]
        held[members[:wanted]] = True
    return held


def fit_correction(
    scores: Tensor,
    labels: Tensor,
    n_old: int,
    settings: BiCSettings,
    training: Training,
    context: Context,
) -> BiasCorrection:
    """Return the correction that is best on held-out scores.

    Parameters
    ----------
    scores : Tensor of shape (n, classes), float32
    labels : Tensor of shape (n,), int64
    n_old : int
    settings : BiCSettings
    training : Training
        Of stage 1; batch size and momentum are the same.
    context : Context
    """
    correction = BiasCorrection(n_old)
    plan = dataclasses.replace(
        training,
        epochs=settings.correction_epochs,
        learning_rate=settings.correction_rate * training.batch_size / _RATE_BATCH,
        schedule="step",
        milestones=settings.correction_milestones,
        decay=0.1,
        warmup=0,
        weight_decay=0.0,
        augment=(),
        precision="float32",
        compile=False,
    )
    train(
        correction,
        scores,
        labels,
        plan,
        preprocessing=None,
        seed=derived_seed(context.seed, "bias correction", n_old),
        device=context.device,
        objective=CorrectionLoss(settings.beta_decay),
    )
    return correction
