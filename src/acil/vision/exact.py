"""Run a network in plain float32, so that the same input gives the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def exact_inference(network: nn.Module, device: torch.device) -> Iterator[None]:
    """Run a network in evaluation mode, without gradients, autocast and reduced precision.

    Everything is put back afterwards, also after an error: the mode of each submodule by itself, since
    some may have been frozen, and the flags of torch.

    Parameters
    ----------
    network : nn.Module
    device : torch.device
        Where it runs.
    """
    modes = [(module, module.training) for module in network.modules()]
    try:
        network.eval()
        with torch.no_grad(), torch.autocast(device.type, enabled=False), full_float32():
            yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def full_float32() -> Iterator[None]:
    """Switch off TF32, bfloat16 products of float32 and kernels chosen by timing; put all back after."""
    cudnn: Any = torch.backends.cudnn
    changes = [(cudnn, "benchmark", False), (cudnn, "deterministic", True), *_precision_flags()]
    before = [getattr(owner, name) for owner, name, _ in changes]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        yield
    finally:
        for (owner, name, _), value in zip(changes, before, strict=True):
            setattr(owner, name, value)


def _precision_flags() -> list[tuple[Any, str, Any]]:
    """Return (owner, name, value) of what makes products of float32 exact.

    From torch 2.9 on, each kind of operation has its own setting, and reading an old flag fails once a
    user has set a new one.
    """
    backends: Any = torch.backends
    if hasattr(backends.cudnn, "conv"):
        owners = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
        owners += [backends.mkldnn.matmul, backends.mkldnn.conv]
        return [(owner, "fp32_precision", "ieee") for owner in owners]
    return [(backends.cuda.matmul, "allow_tf32", False), (backends.cudnn, "allow_tf32", False)]
