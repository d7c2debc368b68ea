"""Copies of networks whose convolutions and products run in half precision."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

#: Layers whose weights are kept in half precision; all others share the network's own tensors.
_HALVED = (nn.Conv2d, nn.Linear)


def halved(network: nn.Module) -> tuple[nn.Module, list[tuple[nn.Parameter, nn.Parameter]]]:
    """Return a copy to be run under autocast, and each float32 weight with its half.

    Whatever is not the weight or bias of a convolution or a linear layer is shared with the copy.
    """
    shared = [*network.parameters(), *network.buffers()]
    made = copy.deepcopy(network, memo={id(tensor): tensor for tensor in shared})
    pairs = []
    for module in made.modules():
        if isinstance(module, _HALVED):
            for name, weight in list(module.named_parameters(recurse=False)):
                half = nn.Parameter(weight.detach().half(), requires_grad=weight.requires_grad)
                setattr(module, name, half)
                pairs.append((weight, half))
    return made, pairs


class HalfPrecisionCopy:
    """Run a network with float16 weights, and train its float32 weights with the gradients.

    Autocast alone casts every weight and every gradient in a kernel of its own, some hundred a step for
    ResNet-32. Here one call casts all weights after a step, and one call all gradients before it.

    ``network`` is the copy, to be run under autocast.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network, pairs = halved(network)
        self._weights: list[Tensor] = [weight for weight, _ in pairs]
        self._halves: list[Tensor] = [half for _, half in pairs]
        self._counters: list[Tensor] = []
        for module in self.network.modules():
            if isinstance(module, nn.BatchNorm2d) and module.num_batches_tracked is not None:
                # Counted together, instead of by one kernel for each layer.
                self._counters.append(module.num_batches_tracked)
                module.num_batches_tracked = None
        self._pairs = [(weight, half) for weight, half in pairs if weight.requires_grad]
        for weight, _ in self._pairs:
            weight.grad = torch.zeros_like(weight)

    def clear(self) -> None:
        """Forget the gradients of the last step."""
        for parameter in self.network.parameters():
            parameter.grad = None

    def collect(self) -> None:
        """Hand the gradients of the copy to the float32 weights."""
        own = [weight.grad for weight, half in self._pairs if half.grad is not None]
        new = [half.grad for _, half in self._pairs if half.grad is not None]
        if new:
            torch._foreach_copy_(own, new)  # type: ignore[arg-type]

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the float32 weights."""
        if self._halves:
            torch._foreach_copy_(self._halves, self._weights)

    @torch.no_grad()
    def count(self) -> None:
        """Count the batch in the layers that normalise."""
        if self._counters:
            torch._foreach_add_(self._counters, 1)
