"""Pooled maps from inside a network, collected while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from acil.errors import InputError


@contextmanager
def tapped(modules: Mapping[str, nn.Module], grid: int) -> Iterator[dict[str, Tensor]]:
    """Collect the maps of some modules, each averaged over grid x grid fields and flattened.

    Parameters
    ----------
    modules : mapping of str to nn.Module
        Their outputs are maps of shape (n, channels, height, width).
    grid : int

    Yields
    ------
    dict of str to Tensor of shape (n, channels * grid * grid), float32
        Filled by each forward pass. When the context ends, however it ends, the network has no hooks.

    Examples
    --------
    >>> import torch
    >>> network = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Flatten())
    >>> with tapped({"relu": network[0]}, grid=2) as pooled:
    ...     _ = network(torch.arange(16.0).reshape(1, 1, 4, 4))
    >>> pooled["relu"]
    tensor([[ 2.5000,  4.5000, 10.5000, 12.5000]])
    """
    pooled: dict[str, Tensor] = {}

    def hold(name: str, module: nn.Module, inputs: object, output: object) -> None:
        # Pooled at once: the next layer may change the map in place.
        pooled[name] = _pool(output, name, grid)

    hooks = []
    try:
        for name, module in modules.items():
            hooks.append(module.register_forward_hook(partial(hold, name)))
        yield pooled
    finally:
        for hook in hooks:
            hook.remove()


def _pool(output: object, name: str, grid: int) -> Tensor:
    if not isinstance(output, Tensor) or output.ndim != 4:
        found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise InputError(
            f"The tap {name!r} must give a map of shape (n, channels, height, width). Got {found}. "
            "Choose another tap."
        )
    if min(output.shape[2:]) < grid:
        raise InputError(
            f"The map of the tap {name!r} has {output.shape[2]} x {output.shape[3]} places, fewer than "
            f"grid={grid}. Use a smaller grid, or an earlier tap."
        )
    return functional.adaptive_avg_pool2d(output.to(torch.float32), grid).flatten(1)
