"""Synthetic features that benchmarks learn: one Gaussian cloud a class, rectified like a network's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: γ that keeps the condition number low enough for every precision.
GAMMA = 1e5

#: Features and labels of one phase.
Phase = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Problem:
    """A base of half of the classes, then phases with the others, in equal parts.

    Attributes
    ----------
    rows : int
        Of all phases together.
    classes : int
    phases : int
        K, without the base.
    features : int
    device : str
    """

    rows: int
    classes: int = 100
    phases: int = 25
    features: int = 64
    device: str = "cpu"

    def make(self) -> list[Phase]:
        """Return features and labels of the base and of each phase."""
        generator = torch.Generator(self.device).manual_seed(0)
        centres = torch.randn(self.classes, self.features, generator=generator, device=self.device)
        groups = torch.arange(self.classes).tensor_split((self.classes // 2,))
        later = groups[1].tensor_split(self.phases) if self.phases else ()
        found = []
        for classes in (groups[0], *later):
            # With more phases than classes, some phases bring only classes that are known.
            known = classes if len(classes) else groups[1]
            share = len(classes) / self.classes if len(classes) else 0.5 / self.phases
            count = max(1, round(self.rows * share))
            labels = known[torch.arange(count) % len(known)].to(self.device)
            noise = torch.randn(count, self.features, generator=generator, device=self.device)
            found.append((torch.relu(centres[labels] + noise), labels))
        return found
