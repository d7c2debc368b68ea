"""Probabilities and novelty: estimated from the sums, or measured on samples that are left out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from acil.analytic import AnalyticModel, Frozen

#: Temperatures that are tried: steps of √2 from 1/256 to 256.
_TEMPERATURES = 2.0 ** (torch.arange(-16, 17, dtype=torch.float64) / 2)
#: Bins of the logarithm of novelty: 160 from −5 to 5, what is beyond counts in the outermost.
_FIRST, _WIDTH, _BINS = -5.0, 1 / 16, 160
#: For degenerate fits: bounds of the temperature, and the least share of samples that is left over.
_COLDEST, _HOTTEST, _LEFT_OVER = 1e-3, 1e3, 1e-8
#: Samples of the learnt classes that may be called unknown.
FALSE_ALARMS = 0.05
#: Temperature and log-novelty of a typical data set, which count as this many samples.
_TYPICAL_TEMPERATURE, _TYPICAL_NOVELTY, _TYPICAL_SAMPLES = 1 / 12, 0.5, 10.0


@dataclass(frozen=True)
class Calibration:
    """Sums over samples learnt, each scored as if it had been left out; merged by addition."""

    samples: float  # their weight
    losses: Tensor  # Σ −log(probability of the true class), at each of the temperatures
    novelties: Tensor  # histogram of the logarithm of the novelty
    approximate: bool = False  # some samples were forgotten, or learnt without being counted here

    @classmethod
    def empty(cls) -> Calibration:
        """Return the calibration of no samples."""
        return cls.of_numbers(torch.zeros(1 + len(_TEMPERATURES) + _BINS, dtype=torch.float64))

    def plus(self, scores: Tensor, columns: Tensor, novelties: Tensor, weights: Tensor) -> Calibration:
        """Return the calibration with more samples, of true classes in ``columns``.

        ``scores`` has shape (n, n_classes), the others (n,); novelties are given as logarithms.
        """
        own = scores.gather(1, columns.unsqueeze(1)).squeeze(1)
        losses = [(torch.logsumexp(scores / T, 1) - own / T) @ weights for T in _TEMPERATURES.tolist()]
        places = ((novelties - _FIRST) / _WIDTH).long().clamp(0, _BINS - 1)
        added = torch.bincount(places, weights, minlength=_BINS)
        return self.merged(Calibration(float(weights.sum()), torch.stack(losses), added))

    def merged(self, other: Calibration) -> Calibration:
        """Return the calibration of the samples of both."""
        return Calibration(
            self.samples + other.samples,
            self.losses + other.losses,
            self.novelties + other.novelties,
            self.approximate or other.approximate,
        )

    def marked(self) -> Calibration:
        """Return the calibration as an approximate one."""
        return replace(self, approximate=True)

    def numbers(self) -> Tensor:
        """Return what adds up under merging, in one tensor; see `of_numbers`."""
        return torch.cat([self.losses.new_tensor([self.samples]), self.losses, self.novelties])

    @classmethod
    def of_numbers(cls, numbers: Tensor) -> Calibration:
        """Return the calibration that has these numbers."""
        end = 1 + len(_TEMPERATURES)
        return cls(float(numbers[0]), numbers[1:end], numbers[end:])

    def to_dict(self, summary: bool) -> dict[str, Any]:
        """Return the values as JSON has them; a summary leaves out the lists."""
        losses, novelties = ([], []) if summary else (self.losses.tolist(), self.novelties.tolist())
        facts = {"samples": self.samples, "approximate": self.approximate}
        return {**facts, "losses": losses, "novelties": novelties}

    @classmethod
    def from_dict(cls, stored: dict[str, Any], summary: bool) -> Calibration | None:
        """Return the calibration that was stored, or None if it has not as many numbers as it needs."""
        losses, novelties = (
            torch.tensor(stored[name], dtype=torch.float64) for name in ("losses", "novelties")
        )
        complete = len(losses) == len(_TEMPERATURES) and len(novelties) == _BINS
        sound = complete and abs(float(novelties.sum()) - stored["samples"]) <= 1e-6 * stored["samples"]
        if not (sound or summary):
            return None
        return cls(float(stored["samples"]), losses, novelties, stored["approximate"])

    def temperature(self) -> float:
        """Return the temperature of the least loss; few samples hardly move the typical one."""
        best = int(self.losses.argmin())
        place = float(best)
        if 0 < best < len(_TEMPERATURES) - 1:
            before, here, after = self.losses[best - 1 : best + 2].tolist()
            # The vertex of the parabola through three points
            place += (before - after) / 2 / max(before - 2 * here + after, 1e-300)
        found = (place - len(_TEMPERATURES) // 2) / 2
        typical = math.log2(_TYPICAL_TEMPERATURE)
        return float(2 ** self._weighed(found, typical))

    def largest_known(self) -> float:
        """Return the log-novelty that a share of `FALSE_ALARMS` of the learnt classes exceeds."""
        if not self.samples:
            return _TYPICAL_NOVELTY
        above = self.novelties.flip(0).cumsum(0).flip(0)
        allowed = FALSE_ALARMS * self.samples
        place = int((above > allowed).sum()) - 1
        # Within the bin in which the limit is crossed
        part = (float(above[place]) - allowed) / float(self.novelties[place])
        return self._weighed(_FIRST + _WIDTH * (place + part), _TYPICAL_NOVELTY)

    def _weighed(self, found: float, typical: float) -> float:
        return (found * self.samples + typical * _TYPICAL_SAMPLES) / (self.samples + _TYPICAL_SAMPLES)


def estimated_temperature(model: AnalyticModel) -> float:
    """Return the temperature at which a softmax of the scores estimates class probabilities.

    Notes
    -----
    If each score is the true one plus independent Gumbel noise of standard deviation σ, the probability
    that a class has the highest true score is a softmax of temperature T = √6 σ / π. σ² is the squared
    error that generalized cross-validation expects. Chosen on held-out digits.
    """
    if isinstance(model.head, Frozen):
        return model.head.temperature
    if model.known_temperature is None:
        weights, squares = model.head.weights, model.head.residual_squares()
        mixed = model.mixing()
        if mixed is not None:
            squares = squares * mixed[0].diagonal().to(squares).square()
        n, present = float(weights.sum()), (weights > 0).to(squares.device)
        left = max(1 - model.degrees_of_freedom() / n, _LEFT_OVER)
        error = max(float(squares[present].mean()) / n / left**2, 0.0)
        model.known_temperature = min(max(math.sqrt(6 * error) / math.pi, _COLDEST), _HOTTEST)
    return model.known_temperature


def expected_leverage(model: AnalyticModel) -> float:
    """Return the leverage to expect of a new sample that is like those learnt; from the sums alone.

    A sample of leverage h has h / (1 − h) in the model that never learnt it, and the mean of h over all
    samples is tr H / n. Infinite where γ = 0 and there are no more samples than dimensions.
    """
    mean = model.degrees_of_freedom() / float(model.learner.weights.sum())
    return mean / (1 - mean) if mean < 1 else math.inf


def relative_leverage(model: AnalyticModel, rows: Tensor, leverages: Tensor) -> Tensor:
    """Return how novel the direction of expanded rows is: about 1 for rows like those learnt.

    Rows are scaled to the mean square of those learnt, and leverages divided by the one to expect.
    """
    sums, square = model.ridge.sums, rows.square().sum(dim=1)
    scale = float(sums.gram.diagonal().sum()) / sums.total_weight / expected_leverage(model)
    # A row of zeros has no direction: it counts as orthogonal to everything learnt.
    return scale * torch.where(square > 0, leverages / square, 1 / max(model.gamma(), 1e-300))
