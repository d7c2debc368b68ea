"""What the sums give beside the weights of the regression: scores, probabilities and novelty."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from acil.analytic import AnalyticModel, Frozen
from acil.analytic.model import Mixer
from acil.errors import SingularMatrixError

#: Least share of the spread of class means that counts as real, and of samples that is left over by
#: the degrees of freedom: both keep degenerate data away from a division by zero.
_LEAST_SPREAD, _LEAST_LEFT = 1e-3, 1e-6
#: What rounding may move discriminants by; how near means are the same, in ε times their squared length.
_MOST_ROUNDING, _SAME_MEANS = 0.1, 100.0
#: Temperatures that are tried: steps of √2 from 1/256 to 256.
_TEMPERATURES = 2.0 ** (torch.arange(-16, 17, dtype=torch.float64) / 2)
#: Bins of the logarithm of novelty: 160 from −5 to 5, what is beyond counts in the outermost.
_FIRST, _WIDTH, _BINS = -5.0, 1 / 16, 160
#: For degenerate fits: bounds of the temperature, and the least share of samples that is left over.
_COLDEST, _HOTTEST, _LEFT_OVER = 1e-3, 1e3, 1e-8
#: Samples of the learnt classes that may be called unknown.
FALSE_ALARMS = 0.05
#: Power of (classes known when samples were counted) / (classes known now) by which they count, and of
#: the share of the samples that is left when others are forgotten.
_AGEING = 3
#: Temperature and log-novelty of a typical data set, which count as this many samples.
_TYPICAL_TEMPERATURE, _TYPICAL_NOVELTY, _TYPICAL_SAMPLES = 1 / 12, 0.5, 10.0


def balancing(weights: Tensor, intercept: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors that balance classes of these weights, and intercepts.

    Each class that has samples is scaled by (mean class weight) / (its weight): as if targets had that
    height, W being linear in them.
    """
    present = weights > 0
    factors = torch.ones_like(weights)
    factors[present] = weights[present].mean() / weights[present]
    return factors, intercept * factors.to(intercept)


def balanced(model: AnalyticModel) -> tuple[Tensor, Tensor]:
    """Return the factors from the weights of the regression to balanced ones, and intercepts."""
    return balancing(model.learner.weights, model.head.coefficients()[1])


def discriminant(model: AnalyticModel) -> tuple[Tensor, Tensor]:
    """Return the map from the weights of the regression to discriminant scores, and intercepts."""
    return Discriminant.of(model).weights(len(model.head.counts))


def released(model: AnalyticModel) -> tuple[Tensor, Tensor]:
    """Return the same for a private release, whose means have been drawn together already."""
    return Discriminant.of(model, draw=False).weights(len(model.head.counts))


#: How scores follow from the weights of the regression; None takes them as they are.
MIXERS: dict[str, Mixer] = {
    "ridge": None,
    "balanced": balanced,
    "discriminant": discriminant,
    "released": released,
}


@dataclass(frozen=True)
class Discriminant:
    r"""Linear discriminants of the present classes, as a linear map of the ridge weights.

    Notes
    -----
    For class c let n_c be its weight and μ_c its mean; A = gram + γI, W = A⁻¹ moment the ridge weights,
    and S = A − Σ n_c μ_c μ_cᵀ the scatter within classes, plus γI. Everything follows from W and the
    sums. With r_c = √n_c, U = W / r and K = (moment / r)ᵀ U,

    .. math::

        S^{-1} μ_c = U (I - K)^{-1} e_c / r_c, \qquad
        xᵀS^{-1}x = xᵀA^{-1}x + uᵀ(I - K)^{-1}u, \quad u = Uᵀx.

    The mean of few samples lies too far out: its squared distance to the true mean, measured by S⁻¹, is
    v / n_c on average, where v = t / (n − C − t) and t = d − γ tr S⁻¹. So each mean is drawn towards the
    mean of all classes, by the factor s_c = b / (b + v / n_c), where b is the squared distance of true
    means from their centre. This is the best estimate if true means are normally distributed (James and
    Stein), and leaves the means of large classes as they are.

    The score of class c is μ̃_cᵀS⁻¹x − μ̃_cᵀS⁻¹μ̃_c / 2 with the drawn means μ̃, less the same for the
    centre of all classes, divided by b. So 0 means: no nearer to this class than to the centre.
    """

    #: Positions of the classes with samples, and their weights.
    present: Tensor
    n: Tensor
    #: (I − K)⁻¹ and μ_iᵀS⁻¹μ_j.
    inverse: Tensor
    products: Tensor
    #: Row c: the means that μ̃_c is made of, and the last row those of the centre.
    means: Tensor
    spread: float

    @classmethod
    def of(cls, model: AnalyticModel, draw: bool = True) -> Discriminant:
        """Return the discriminants of a model with sums; takes as long as a factorization.

        ``draw`` says whether to draw means together.
        """
        # First, because it may solve anew
        ridge, freedom = model.ridge, model.degrees_of_freedom()
        weights = ridge.weights
        present = torch.nonzero(weights > 0).flatten()
        n, sums, W = weights[present], ridge.sums, ridge.coefficients()[0]
        columns = present.to(W.device)
        r = n.sqrt()
        moment, U = (part[:, columns].double() / r.to(part.device) for part in (sums.moment, W))
        K, squares = (moment.T @ U).cpu(), (U.T @ U).cpu()
        inverse, singular = torch.linalg.inv_ex(torch.eye(len(n), dtype=torch.float64) - (K + K.T) / 2)
        if singular or float(inverse.norm()) * torch.finfo(W.dtype).eps > _MOST_ROUNDING:
            raise SingularMatrixError(
                f"Samples hardly differ within their classes, and γ = {model.gamma():.3g} is too small "
                f"for that in {str(W.dtype).removeprefix('torch.')}. Use a larger gamma."
            )
        products = K @ inverse / torch.outer(r, r)
        free = float(n.sum()) - len(n)
        # t = d − γ tr S⁻¹, and tr S⁻¹ = tr A⁻¹ + tr (I − K)⁻¹ UᵀU
        t = max(freedom - model.gamma() * float((inverse * squares).sum()), 0.0)
        # The rank of the scatter: of one sample of each class, t would be rounding, divided by 0.
        t = min(t, int(ridge.counts.sum()) - len(n))
        noise = draw * t / max(free - t, _LEAST_LEFT * float(n.sum())) / n
        share = n / n.sum()
        gaps = products.diagonal() - 2 * products @ share + share @ products @ share
        total, q = float(share @ gaps), share * (1 - share)
        if total <= _SAME_MEANS * torch.finfo(torch.float64).eps * float(share @ products.diagonal()):
            total = 0.0
        # E Σ p_c ‖μ̂_c − μ̄‖² = Σ p_c (1 − p_c) (b + v / n_c)
        spread = max(total - float(q @ noise), _LEAST_SPREAD * total) / max(float(q.sum()), 1e-300)
        spread = spread or 1.0  # one class, or means that are all the same
        drawn = spread / (spread + noise)
        centre = drawn / drawn.sum()
        means = torch.cat([torch.outer(1 - drawn, centre) + drawn.diag(), centre.unsqueeze(0)])
        return cls(present, n, inverse, (products + products.T) / 2, means, spread)

    def weights(self, n_classes: int) -> tuple[Tensor, Tensor]:
        """Return the square map from ridge weights to those that score, and intercepts."""
        r, relative = self.n.sqrt(), self.means[:-1] - self.means[-1]
        halves = torch.einsum("cj,jk,ck->c", self.means, self.products, self.means) / 2
        mixing = torch.zeros(n_classes, n_classes, dtype=torch.float64)
        intercept = torch.zeros(n_classes, dtype=torch.float64)
        # Column c: W / r · (I − K)⁻¹ / r · (μ̃_c − centre)
        columns = self.inverse / torch.outer(r, r) @ relative.T / self.spread
        mixing[self.present.unsqueeze(1), self.present] = columns
        intercept[self.present] = (halves[-1] - halves[:-1]) / self.spread
        return mixing, intercept

    def left_out(
        self, ridge_scores: Tensor, leverages: Tensor, columns: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores and leverages of samples learnt if each were left out, in closed form.

        The third tensor says which samples count: others were the only ones of their class, or the model
        fits them exactly. ``ridge_scores``, of shape (n, n_classes), are by the ridge weights;
        ``leverages`` are xᵀA⁻¹x of each row. Means are drawn as far as with all samples.
        """
        u = ridge_scores[:, self.present].double() / self.n.sqrt()
        # A sample of weight 2 is two samples, of which one is left out.
        heavy = weights.clamp(max=1)
        local, rows = torch.searchsorted(self.present, columns), torch.arange(len(u))
        inner = u @ self.inverse / self.n.sqrt()  # xᵀS⁻¹μ_j
        square = leverages + ((u @ self.inverse) * u).sum(dim=1)  # xᵀS⁻¹x
        others = self.n[local] - heavy
        # Without x of class c, μ_c moves by −e D and S loses α D Dᵀ, with D = x − μ_c
        e, alpha = heavy / others, heavy * self.n[local] / others
        D_mean = inner - self.products[local]
        D_x = square - inner[rows, local]
        D_D = D_x - D_mean[rows, local]
        left = 1 - alpha * D_D
        gain = (alpha / left).unsqueeze(1)
        grown = 1 + gain * D_D.unsqueeze(1)
        moved = e.unsqueeze(1) * self.means[:, local].T
        along = D_mean @ self.means.T
        linear = (inner + gain * D_x.unsqueeze(1) * D_mean) @ self.means.T
        linear -= moved * D_x.unsqueeze(1) * grown
        halves = torch.einsum("cj,jk,ck->c", self.means, self.products, self.means) + gain * along**2
        halves += moved * grown * (moved * D_D.unsqueeze(1) - 2 * along)
        found = linear - halves / 2
        scores = torch.full(ridge_scores.shape, -torch.inf, dtype=torch.float64)
        scores[:, self.present] = (found[:, :-1] - found[:, -1:]) / self.spread
        rest = 1 - heavy * leverages
        sound = (others > 0) & (left > _LEAST_LEFT) & (rest > _LEAST_LEFT)
        return scores, leverages / rest, sound


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
        return cls(0.0, torch.zeros_like(_TEMPERATURES), torch.zeros(_BINS, dtype=torch.float64))

    def plus(self, scores: Tensor, columns: Tensor, novelties: Tensor, weights: Tensor) -> Calibration:
        """Return the calibration with more samples, of true classes in ``columns``.

        ``scores`` has shape (n, n_classes), the others (n,); novelties are given as logarithms.
        """
        own = scores.gather(1, columns.unsqueeze(1)).squeeze(1)
        losses = [(torch.logsumexp(scores / T, 1) - own / T) @ weights for T in _TEMPERATURES.tolist()]
        places = ((novelties - _FIRST) / _WIDTH).long().clamp(0, _BINS - 1)
        added = torch.bincount(places, weights, minlength=_BINS)
        return self.merged(Calibration(float(weights.sum()), torch.stack(losses), added))

    def merged(self, other: Calibration | None) -> Calibration:
        """Return the calibration of the samples of both; approximate if others were not counted."""
        if other is None:
            return replace(self, approximate=True)
        return Calibration(
            self.samples + other.samples,
            self.losses + other.losses,
            self.novelties + other.novelties,
            self.approximate or other.approximate,
        )

    def less(self, other: Calibration) -> Calibration:
        """Return it without samples as they score now, which is about how they were counted.

        How the others scored beside many samples says little about scores beside few.
        """
        losses, novelties = self.losses - other.losses, (self.novelties - other.novelties).clamp(min=0)
        # Sums of losses are convex in 1 / T: what is not is the rest of too large a difference.
        slopes = losses.diff() / (1 / _TEMPERATURES).diff()
        if float(losses.min()) < 0 or bool((slopes.diff() > 1e-9 * self.losses.max()).any()):
            return Calibration.empty().merged(None)
        left = float(novelties.sum())
        share = (left / max(self.samples, 1e-300)) ** _AGEING
        return Calibration(share * left, share * losses, share * novelties, approximate=True)

    def among(self, before: Tensor, now: Tensor) -> Calibration:
        """Return it for a model that knows more classes than when samples were counted.

        How samples score among few classes says little about scores among many, so they count less.
        Given are the numbers of samples of each class, before and now.
        """
        share = min(1.0, int((before > 0).sum()) / max(int((now > 0).sum()), 1)) ** _AGEING
        counted = share * self.samples, share * self.losses, share * self.novelties
        return Calibration(*counted, self.approximate)

    def to_dict(self, summary: bool) -> dict[str, Any]:
        """Return the values as JSON has them; a summary leaves out the lists."""
        losses, novelties = ([], []) if summary else (self.losses.tolist(), self.novelties.tolist())
        facts = {"samples": self.samples, "approximate": self.approximate}
        return {**facts, "losses": losses, "novelties": novelties}

    @classmethod
    def from_dict(cls, stored: dict[str, Any], summary: bool) -> Calibration | None:
        """Return the calibration that was stored, or None if it has not as many numbers as it needs."""
        names = ("samples", "losses", "novelties")
        samples, losses, novelties = (torch.tensor(stored[n], dtype=torch.float64) for n in names)
        complete = len(losses) == len(_TEMPERATURES) and len(novelties) == _BINS
        sound = complete and abs(float(novelties.sum() - samples)) <= 1e-6 * float(samples)
        found = cls(float(samples), losses, novelties, stored["approximate"])
        return found if sound or summary else None

    def temperature(self) -> float:
        """Return the temperature of the least loss; few samples hardly move the typical one."""
        best = int(self.losses.argmin())
        place = float(best)
        if self.losses[best] == self.losses.max():
            # Nothing was counted, or one class, which has no loss at any temperature.
            return _TYPICAL_TEMPERATURE
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
        freedom = model.degrees_of_freedom()  # first, because it may solve anew
        weights, squares = model.head.weights, model.head.residual_squares()
        mixed = model.mixing()
        if mixed is not None:
            factors = mixed[0] if mixed[0].ndim == 1 else mixed[0].diagonal()
            squares = squares * factors.to(squares).square()
        n, present = float(weights.sum()), (weights > 0).to(squares.device)
        left = max(1 - freedom / n, _LEFT_OVER)
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


def mean_square(model: AnalyticModel) -> float:
    """Return the mean square of the length of expanded rows learnt."""
    sums = model.ridge.sums
    return float(sums.gram.diagonal().sum()) / sums.total_weight


def relative_leverage(model: AnalyticModel, rows: Tensor, leverages: Tensor) -> Tensor:
    """Return how novel the direction of expanded rows is: about 1 for rows like those learnt.

    Rows are scaled to the mean square of those learnt, and leverages divided by the one to expect.
    """
    square = rows.square().sum(dim=1)
    # Nothing is expected of samples that are all zero, or where γ leaves nothing of them.
    scale = mean_square(model) / (expected_leverage(model) or 1.0)
    # A row of zeros has no direction: it counts as orthogonal to everything learnt.
    return scale * torch.where(square > 0, leverages / square, 1 / max(model.gamma(), 1e-30))
