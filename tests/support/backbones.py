"""Backbones and inputs for them that tests share."""

import torch
from torch import nn


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def input_of(backbone, n: int = 2) -> torch.Tensor:
    needed = backbone.preprocessing
    return torch.randn(n, len(needed.mean), needed.size, needed.size, generator=seeded(5))


def with_statistics(backbone):
    """Give the batch norms numbers as after a training, so that leaving one out shows."""
    generator = seeded(3)
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.2, generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
            nn.init.uniform_(module.weight, 0.5, 1.5, generator=generator)
            nn.init.normal_(module.bias, 0, 0.2, generator=generator)
    return backbone.eval()
