"""Measurements of single steps for the cost model: learning, solving, memory, saving, travelling."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from acil import ACILClassifier, save
from acil.core.classifier import learnt_of
from acil.encoders.images import FeatureExtractor, ImageSet, build, content_identity
from benchmarks.costmodel import Size, sum_bytes
from benchmarks.head import extra_memory
from benchmarks.network import reduction_seconds
from benchmarks.problem import GAMMA, Problem
from benchmarks.timing import fastest, seconds

#: Classes of the sums that travel, see `benchmarks.network`.
_TRAVELLING = 100


class Steps:
    """Times steps of a head on one device, once each.

    Parameters
    ----------
    device : str
    """

    def __init__(self, device: str) -> None:
        self.device = device

    def learn_and_solve(self, size: Size) -> tuple[float, float, float]:
        """Return the seconds of adding n rows, of solving, and of both in a new model."""
        X, y = self._rows(size)
        clf = self._new(size)
        first = seconds(lambda: self._weights(clf.partial_fit(X, y)), self.device)
        # Without a factor: a correction of low rank is another way, which few rows would go.
        clf.compact(memory=False)
        # Few rows would wait for others before they are added.
        learn = seconds(lambda: learnt_of(clf.partial_fit(X, y)).model.ridge.flush(), self.device)
        solve = seconds(learnt_of(clf).model.ridge.solve, self.device)
        return learn, solve, first

    def run(self, rows: int, classes: int, phases: int, f: int, d: int) -> float:
        """Return the seconds of learning a whole problem, weights after each phase."""
        problem = Problem(rows, classes, phases, f, self.device).make()
        clf = self._new(Size(d=d))
        return sum(
            seconds(lambda p=phase: self._weights(clf.partial_fit(*p)), self.device) for phase in problem
        )

    def memory(self, d: int) -> float:
        """Return the peak bytes of learning and solving."""
        if self.device == "cpu":
            return (1 + extra_memory(d, "float64")) * 8 * d * d
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        self.run(4 * d, 100, 2, 64, d)
        return float(torch.cuda.max_memory_allocated() - before)

    def saving(self, size: Size) -> tuple[float, float]:
        """Return the bytes of a model file, and the seconds of writing it."""
        clf = self._new(size).partial_fit(*self._rows(size))
        self._weights(clf)
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "model.acil"
            taken = seconds(lambda: save(clf, target), self.device)
            return float(target.stat().st_size), taken

    def images_per_second(self, name: str, number: int) -> float:
        """Return how fast features of images are extracted."""
        generator = torch.Generator().manual_seed(0)
        network = build(name, generator).eval()
        side = network.preprocessing.size
        images = torch.randint(0, 256, (number, 3, side, side), dtype=torch.uint8, generator=generator)
        extractor = FeatureExtractor(network, device=self.device, batch_size=min(number, 256))
        given = ImageSet(images, None, content_identity(images))
        extractor.features(given)
        return number / fastest(lambda: extractor.features(given), 2, self.device)

    def _new(self, size: Size) -> ACILClassifier:
        return ACILClassifier(
            scores="ridge", expansion_size=int(size.d), gamma=GAMMA, random_state=0, device=self.device
        )

    def _rows(self, size: Size) -> tuple[torch.Tensor, torch.Tensor]:
        ((X, y),) = Problem(2 * int(size.n), 2 * int(size.c), 0, int(size.f), self.device).make()
        return X, y

    @staticmethod
    def _weights(clf: ACILClassifier) -> None:
        learnt_of(clf).model.head.coefficients()


def travelling(processes: int, widths: tuple[int, ...]) -> list[tuple[Size, float]]:
    """Return bytes and seconds of one reduction of sums for each width, between processes by gloo."""
    taken = reduction_seconds(processes, widths)
    return [(Size(bytes=sum_bytes(d, _TRAVELLING)), t) for d, t in zip(widths, taken, strict=True)]
