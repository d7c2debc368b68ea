"""EWC: weights that mattered to old classes are held near their old values.

Paper: Kirkpatrick et al., *Overcoming catastrophic forgetting in neural networks*, PNAS 2017; in its
class-incremental, online form.

With n old and m new classes, weights θ, their values θ* before the phase and the Fisher information F:

    L = CE(z[n:], y) + (λ/2) Σ_i F_i (θ_i − θ*_i)²     on new images alone
    F_new = mean over batches of (gradient of the batch's CE over all classes)², at most a limit
    F ← α F + (1 − α) F_new with α = n / (n + m); entries of new class weights are F_new

Differences from the original:

1. F from the gradients of batches (of the training's size, in the order of the data), not of single
   images, and from true labels, as PyCIL has it. FACIL: single images, predicted labels, α = 0.5,
   λ = 5000, no penalty on class weights.
2. F is taken without augmentation and in evaluation mode, so that no running statistic moves.
3. The base network is the shared one, trained by the recipe.
4. With one new class in a phase, CE over one score is zero: see ``lwf``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from acil.bench.methods.base import MemoryUse, Phase
from acil.bench.methods.incremental import IncrementalNetwork, Schedules
from acil.bench.training.objectives import Capturable, Scored
from acil.bench.training.settings import Settings
from acil.encoders.images.backbones import Preprocessing, normalise
from acil.encoders.images.decode import centre
from acil.encoders.images.extract import exact_inference


@dataclass(frozen=True)
class EWCSettings(Settings):
    """What ``ewc_NAME`` sets; PyCIL's values."""

    penalty: Annotated[float, "at least 0"] = 1000.0  # λ
    clip: Annotated[float, "positive"] = 1e-4  # the largest entry of F
    new_only: bool = True  # False takes CE over the scores of all classes


@dataclass(frozen=True, eq=False)
class Anchored(Capturable):
    """Cross entropy over the classes from ``n_old`` on, and the quadratic penalty.

    F and θ* are in the order of the network's parameters. The class weights may have grown since: their
    first rows are meant.
    """

    fisher: list[Tensor] = field(repr=False)
    anchors: list[Tensor] = field(repr=False)
    n_old: int
    penalty: float

    def __call__(self, network: nn.Module, x: Tensor, y: Tensor, indices: Tensor) -> Scored:
        scores = network(x).float()
        ce = functional.cross_entropy(scores[:, self.n_old :], y - self.n_old)
        return ce + self.penalty_of(network), scores

    def penalty_of(self, network: nn.Module) -> Tensor:
        """Return (λ/2) Σ_i F_i (θ_i − θ*_i)²."""
        parts = [
            (fisher * (parameter[: len(fisher)] - anchor).square()).sum()
            for fisher, anchor, parameter in zip(
                self.fisher, self.anchors, network.parameters(), strict=True
            )
        ]
        return self.penalty / 2 * torch.stack(parts).sum()


def fisher_information(
    network: nn.Module,
    pixels: Tensor,
    labels: Tensor,
    preprocessing: Preprocessing,
    batch_size: int,
    clip: float,
    device: torch.device,
    turned: Callable[[list[Tensor]], list[Tensor]] = list,
) -> list[Tensor]:
    """Return the mean over batches of the squared gradient of the cross entropy, at most ``clip``.

    The network is on the device; neither its weights nor its running statistics change. Gradients are
    squared in the coordinates that ``turned`` brings them to.
    """
    parameters = list(network.parameters())
    sums = [torch.zeros_like(parameter) for parameter in parameters]
    starts = range(0, len(pixels), batch_size)
    with exact_inference(network, device), torch.enable_grad():
        for start in starts:
            part = slice(start, start + batch_size)
            x = normalise(centre(pixels[part].to(device), preprocessing.size), preprocessing)
            loss = functional.cross_entropy(network(x), labels[part].to(device))
            gradients = turned(list(torch.autograd.grad(loss, parameters)))
            for total, gradient in zip(sums, gradients, strict=True):
                total += gradient.square()
    return [(total / len(starts)).clamp(max=clip) for total in sums]


def merged(old: list[Tensor], new: list[Tensor], share: float) -> list[Tensor]:
    """Return α · old + (1 − α) · new, α the share; rows that the old one lacks are the new one's."""
    result = [fisher.clone() for fisher in new]
    for mixed, before in zip(result, old, strict=True):
        mixed[: len(before)] = share * before + (1 - share) * mixed[: len(before)]
    return result


class EWC(IncrementalNetwork):
    """Hold weights by their Fisher information; keep no image."""

    name = "ewc"
    holds_phases = True
    settings_type = EWCSettings
    #: PyCIL's, for CIFAR.
    schedules: ClassVar[Schedules] = {
        "paper": {"epochs": 180, "milestones": (70, 120, 150), "weight_decay": 2e-4},
    }

    fisher: list[Tensor]

    def learn(self, phase: Phase) -> None:
        """Learn one phase, then measure what mattered to it."""
        n_old = self.n_seen
        super().learn(phase)
        fisher = self.measured(phase)
        self.fisher = merged(self.fisher, fisher, n_old / phase.n_seen) if n_old else fisher

    def measured(self, phase: Phase, **options: Any) -> list[Tensor]:
        """Return the Fisher information of the network on the images of a phase."""
        return fisher_information(
            self.network,
            phase.images.pixels(),
            phase.labels,
            self.network.backbone.preprocessing,
            self.training.batch_size,
            self.settings.clip,
            self.context.device,
            **options,
        )

    def increment(self, phase: Phase) -> Any:
        return self.fit(self.grown_student(phase), self.data(phase), phase, self.objective())

    def objective(self) -> Anchored:
        """Return what holds the weights of the network before the phase."""
        anchors = [parameter.detach() for parameter in self.network.parameters()]
        first = self.n_seen if self.settings.new_only else 0
        return Anchored(self.fisher, anchors, first, self.settings.penalty)

    def memory(self) -> MemoryUse:
        """Count the network and F; θ* is the network itself."""
        return replace(super().memory(), statistics=sum(fisher.nbytes for fisher in self.fisher))

    def state_dict(self) -> dict[str, Any]:
        fisher = {f"fisher.{index}": entry.cpu() for index, entry in enumerate(self.fisher)}
        return {**super().state_dict(), **fisher}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        count = len(list(self.network.parameters()))
        self.fisher = [state[f"fisher.{index}"].to(self.context.device) for index in range(count)]
