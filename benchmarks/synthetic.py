"""Features of classes that nobody has photographed: Gaussian clouds, rectified like a network's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Stream:
    """A base phase and the phases after it, made anew each time they are asked for.

    Attributes
    ----------
    features : int
        Width of a feature vector, before expansion.
    base_classes, phases, classes_each : int
        Classes of the base phase, number of later phases, classes of each of them.
    rows_each : int
        Rows of a class.
    device : str
        Where rows are made.
    """

    features: int
    base_classes: int
    phases: int
    classes_each: int
    rows_each: int
    device: str = "cpu"

    @property
    def n_classes(self) -> int:
        """Number of classes of all phases."""
        return self.base_classes + self.phases * self.classes_each

    @property
    def sizes(self) -> list[int]:
        """Rows of each phase."""
        return [self.rows_each * (stop - start) for start, stop in self._ranges()]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield features of shape (n, features) in float32, and labels on the CPU."""
        for phase, (start, stop) in enumerate(self._ranges()):
            yield self._samples(start, stop, self.rows_each, seed=1 + phase)

    def held_out(self, rows_each: int = 5) -> Tensor:
        """Return features of all classes that no phase contains."""
        return self._samples(0, self.n_classes, rows_each, seed=10_000)[0]

    def _ranges(self) -> list[tuple[int, int]]:
        later = range(self.base_classes, self.n_classes, self.classes_each)
        return [(0, self.base_classes), *((first, first + self.classes_each) for first in later)]

    def _samples(self, start: int, stop: int, rows: int, seed: int) -> tuple[Tensor, Tensor]:
        centres = torch.randn(
            self.n_classes,
            self.features,
            device=self.device,
            generator=torch.Generator(self.device).manual_seed(0),
        )
        generator = torch.Generator(self.device).manual_seed(seed)
        labels = torch.arange(start, stop).repeat(rows)
        noise = torch.randn(len(labels), self.features, device=self.device, generator=generator)
        return torch.relu_(noise.add_(centres[labels.to(self.device)])), labels
