"""`acil bench choose` with one more kind of copy beside those that are turned or recoloured: noisy ones.

    python noise.py --splits 0 --out DIR

Runs with `choose.sh`'s settings. The product has no noisy copies: this is what decided that.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from acil.bench.training import objectives
from acil.bench.training.settings import Auxiliary
from acil.cli import main

#: Standard deviation of the noise, in units of that of the images.
SIZE = 0.5
kinds_of, transformed = Auxiliary.transformations.fget, objectives.transformed


def with_noise(images: Tensor, kinds: Tensor, tasks: Auxiliary) -> Tensor:
    """Return copies of each kind, of which the last is noisy."""
    noisy = (kinds == kinds_of(tasks))[:, None, None, None]
    others = transformed(images, kinds.clamp(max=kinds_of(tasks) - 1), tasks)
    return torch.where(noisy, images + SIZE * torch.randn_like(images), others)


Auxiliary.transformations = property(lambda tasks: kinds_of(tasks) + 1)  # type: ignore[assignment]
objectives.transformed = with_noise
copy = "training.auxiliary.copies=1"
own = ["--recipe", "strong", "--order", "natural", "--base", "50", "--set", "expansion_size=8192"]
gammas = ["--gammas", "0.003,0.01,0.03,0.1,0.3"]
tried = [
    "--try",
    f"rotation, noise {copy}",
    "--try",
    f"rotation, colours, noise {copy} training.auxiliary.colours=3",
]
sys.argv[1:] = ["bench", "choose", "--dataset", "cifar100", *own, *gammas, *tried, *sys.argv[1:]]
main()
