"""Rotated EWC: the penalty of ``ewc`` in coordinates in which the Fisher information is nearly diagonal.

Paper: Liu, Masana, Herranz, van de Weijer, López and Bagdanov, *Rotate your Networks: Better Weight
Consolidation and Less Catastrophic Forgetting*, ICPR 2018.

A layer y = W x is y = U₂ W′ U₁ x with W′ = U₂ᵀ W U₁ᵀ, for rotations U₁ and U₂: the function is the same.
The rows of U₁ are the eigenvectors of E[x xᵀ] of the layer's inputs, the columns of U₂ those of E[δ δᵀ]
of the gradients at its outputs. Of a convolution, x and δ are the channels at all positions, and each
place of the kernel is rotated alike. F is taken, and weights are held, in W′:

    L = CE(z[n:], y) + (λ/2) Σ_i F′_i (W′_i − W′*_i)².

After each phase rotations are found again from its images.

Settings are those of ``ewc``, with its defaults and schedule.

Differences from the original, beside those of ``ewc``:

1. The network itself is not rotated. Steps of SGD on W′ are those on W, as rotations are orthogonal:
   only the penalty differs, and it turns W − W* before it weighs it.
2. F of earlier phases is turned into the new coordinates, of which the diagonal is kept exactly, and
   merged as in ``ewc``. Without rotations the method is ``ewc``.
3. Outputs of the classifier, which grow with every phase, are not rotated; nor are biases and the
   weights of normalisation, which are diagonal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from acil.bench.methods.base import MemoryUse, Phase
from acil.bench.methods.ewc import EWC, Anchored
from acil.encoders.images.backbones import Preprocessing, normalise
from acil.encoders.images.decode import centre
from acil.encoders.images.extract import exact_inference


class Rotation(NamedTuple):
    """What turns weights W of one layer: ``left`` W ``right`` is U₂ᵀ W U₁ᵀ."""

    left: Tensor
    right: Tensor

    def __call__(self, weights: Tensor) -> Tensor:
        """Return W′ for weights (outputs, inputs) or (outputs, inputs, height, width)."""
        with torch.autocast(weights.device.type, enabled=False):
            return torch.einsum("ab,bc...,cd->ad...", self.left, weights, self.right)

    def back(self, weights: Tensor) -> Tensor:
        """Return W for weights W′."""
        return Rotation(self.left.mT, self.right.mT)(weights)

    def diagonal_from(self, other: Rotation, diagonal: Tensor) -> Tensor:
        """Return the diagonal, in these coordinates, of a matrix that is diagonal in others."""
        left, right = self.left @ other.left.mT, other.right.mT @ self.right
        return Rotation(left.square(), right.square())(diagonal)


#: One for each parameter of a network; None where it is not rotated.
Rotations = list[Rotation | None]


def turned(rotations: Rotations, parts: Iterable[Tensor]) -> list[Tensor]:
    """Return weights or gradients of all parameters in the coordinates of their rotations."""
    return [part if r is None else r(part) for r, part in zip(rotations, parts, strict=True)]


@dataclass(frozen=True, eq=False)
class RotatedAnchored(Anchored):
    """Cross entropy, and the quadratic penalty in rotated coordinates."""

    rotations: Rotations = field(repr=False)

    def penalty_of(self, network: nn.Module) -> Tensor:
        """Return (λ/2) Σ_i F′_i (W′_i − W′*_i)²."""
        moved = [
            parameter[: len(anchor)] - anchor
            for parameter, anchor in zip(network.parameters(), self.anchors, strict=True)
        ]
        parts = [
            (fisher * difference.square()).sum()
            for fisher, difference in zip(self.fisher, turned(self.rotations, moved), strict=True)
        ]
        return self.penalty / 2 * torch.stack(parts).sum()


def rotations_of(
    network: nn.Module,
    pixels: Tensor,
    labels: Tensor,
    preprocessing: Preprocessing,
    batch_size: int,
    device: torch.device,
) -> Rotations:
    """Return the rotations of a network's layers that images ask for; the network does not change.

    Layers are convolutions without groups, and linear ones. Outputs of ``network.classifier`` stay.
    """
    layers = {
        module.weight: module
        for module in network.modules()
        if isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1)
    }
    inputs = {weight: _square(weight, 1) for weight in layers}
    outputs = {weight: _square(weight, 0) for weight in layers}

    def watch(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        weight: Any = module.weight
        _add(inputs[weight], arguments[0].detach())
        output.register_hook(partial(_add, outputs[weight]))  # type: ignore[no-untyped-call]

    hooks = [module.register_forward_hook(watch) for module in layers.values()]
    parameters = list(network.parameters())
    try:
        with exact_inference(network, device), torch.enable_grad():
            for start in range(0, len(pixels), batch_size):
                part = slice(start, start + batch_size)
                x = normalise(centre(pixels[part].to(device), preprocessing.size), preprocessing)
                loss = functional.cross_entropy(network(x), labels[part].to(device))
                torch.autograd.grad(loss, parameters)
    finally:
        for hook in hooks:
            hook.remove()
    classifier_weight = getattr(getattr(network, "classifier", None), "weight", None)
    rotations: Rotations = []
    for parameter in parameters:
        if parameter not in layers:
            rotations.append(None)
            continue
        U1 = torch.linalg.eigh(inputs[parameter])[1].to(parameter).mT
        U2 = torch.eye(len(parameter)).to(parameter)
        if parameter is not classifier_weight:
            U2 = torch.linalg.eigh(outputs[parameter])[1].to(parameter)
        rotations.append(Rotation(U2.mT.contiguous(), U1.mT.contiguous()))
    return rotations


def _square(weight: Tensor, side: int) -> Tensor:
    size = weight.shape[side]
    return torch.zeros(size, size, dtype=torch.float64, device=weight.device)


def _add(total: Tensor, values: Tensor) -> None:
    """Add Σ v vᵀ of the channels at all positions, or of the rows of a linear layer."""
    rows = values.movedim(1, -1).reshape(-1, values.shape[1]).double()
    total += rows.mT @ rows


class RotatedEWC(EWC):
    """Hold weights by their Fisher information in rotated coordinates; keep no image."""

    name = "rotated-ewc"

    rotations: Rotations

    def measured(self, phase: Phase, **options: Any) -> list[Tensor]:
        """Return F′ on the images of a phase, in rotations that these images ask for."""
        rotations = rotations_of(
            self.network,
            phase.images.pixels(),
            phase.labels,
            self.network.backbone.preprocessing,
            self.training.batch_size,
            self.context.device,
        )
        measured = super().measured(phase, turned=partial(turned, rotations), **options)
        if self.n_seen > len(phase.classes):
            self.fisher = [
                fisher if new is None or old is None else _grown(old, fisher, new)
                for fisher, old, new in zip(self.fisher, self.rotations, rotations, strict=True)
            ]
        self.rotations = rotations
        return measured

    def objective(self) -> Anchored:
        held = super().objective()
        return RotatedAnchored(held.fisher, held.anchors, held.n_old, held.penalty, self.rotations)

    def memory(self) -> MemoryUse:
        """Count the network, F and the rotations."""
        use = super().memory()
        turning = sum(part.nbytes for rotation in self.rotations if rotation for part in rotation)
        return MemoryUse(use.samples, use.statistics + turning, use.weights)

    def state_dict(self) -> dict[str, Any]:
        rotations = {
            f"rotation.{index}.{name}": part.cpu()
            for index, rotation in enumerate(self.rotations)
            if rotation
            for name, part in rotation._asdict().items()
        }
        return {**super().state_dict(), **rotations}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        device = self.context.device
        self.rotations = [
            Rotation(*(state[f"rotation.{index}.{name}"].to(device) for name in Rotation._fields))
            if f"rotation.{index}.left" in state
            else None
            for index in range(len(self.fisher))
        ]


def _grown(old: Rotation, fisher: Tensor, new: Rotation) -> Tensor:
    """Return F′ in new coordinates; the classifier, which may have more rows by now, keeps its own."""
    n = len(fisher)
    return Rotation(new.left[:n, :n], new.right).diagonal_from(old, fisher)
