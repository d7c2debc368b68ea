"""Fisher information of weights, and a penalty that holds weights by it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from acil.training.objectives import Capturable
from acil.vision.backbones import Preprocessing, normalise
from acil.vision.exact import exact_inference


@dataclass(frozen=True, eq=False)
class Anchored(Capturable):
    """Cross entropy over the classes from ``n_old`` on, and the quadratic penalty.

    Attributes
    ----------
    fisher, anchors : list of Tensor
        F and θ*, in the order of the network's parameters. The class weights may have grown since: the
        first rows are meant.
    n_old : int
    penalty : float
    """

    fisher: list[Tensor] = field(repr=False)
    anchors: list[Tensor] = field(repr=False)
    n_old: int
    penalty: float

    def __call__(
        self, network: nn.Module, x: Tensor, y: Tensor, indices: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the scores."""
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
) -> list[Tensor]:
    """Return the mean over batches of the squared gradient of the cross entropy, at most ``clip``.

    Parameters
    ----------
    network : nn.Module
        On the device; neither weights nor running statistics change.
    pixels : Tensor of shape (n, channels, height, width), uint8
    labels : Tensor of shape (n,), int64
    preprocessing : Preprocessing
    batch_size : int
    clip : float
    device : torch.device
    """
    parameters = list(network.parameters())
    sums = [torch.zeros_like(parameter) for parameter in parameters]
    starts = range(0, len(pixels), batch_size)
    with exact_inference(network, device), torch.enable_grad():
        for start in starts:
            part = slice(start, start + batch_size)
            x = normalise(pixels[part].to(device), preprocessing)
            loss = functional.cross_entropy(network(x), labels[part].to(device))
            for total, gradient in zip(sums, torch.autograd.grad(loss, parameters), strict=True):
                total += gradient.square()
    return [(total / len(starts)).clamp(max=clip) for total in sums]


def merged(old: list[Tensor], new: list[Tensor], share: float) -> list[Tensor]:
    """Return α · old + (1 − α) · new, α the share; rows that the old one lacks are the new one's."""
    result = [fisher.clone() for fisher in new]
    for mixed, before in zip(result, old, strict=True):
        mixed[: len(before)] = share * before + (1 - share) * mixed[: len(before)]
    return result
