"""Hashes that tell one training from another."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import torch
from torch import Tensor, nn

from acil.training.auxiliary import Auxiliary
from acil.training.settings import Training
from acil.vision.backbones import Preprocessing


def training_identity(
    network: nn.Module,
    images: Tensor,
    labels: Tensor,
    settings: Training,
    preprocessing: Preprocessing | None,
    seed: int,
    objective: Any,
) -> dict[str, Any]:
    """Return what a checkpoint must have in common with the training that goes on from it; JSON-able."""
    name = getattr(objective, "__qualname__", type(objective).__qualname__)
    told = dataclasses.asdict(settings)
    if settings.auxiliary == Auxiliary():
        del told["auxiliary"]  # so that checkpoints of earlier versions are known again
    state = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    return {
        **{f"training.{key}": value for key, value in told.items()},
        "seed": seed,
        "preprocessing": None if preprocessing is None else preprocessing.to_dict(),
        "objective": getattr(objective, "identity", name),
        "images": digest({"": images}),
        "labels": digest({"": labels}),
        "network at the start": digest(state),
    }


def digest(tensors: dict[str, Tensor], text: str = "") -> str:
    """Return a hash of names, types, shapes and contents of tensors, and of a text."""
    hasher = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        hasher.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().flatten()
        if flat.numel():
            content: Any = flat.view(torch.uint8).numpy()
            hasher.update(content)
    return hasher.hexdigest()
