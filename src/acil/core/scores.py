"""What the sums give beside the weights of the regression: scores, probabilities and novelty."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from acil.core.expansion import AnalyticModel, Frozen, Mixer
from acil.core.ridge import Ridge
from acil.errors import SingularMatrixError

#: Least share of the spread of class means that counts as real, and of samples that is left over by
#: the degrees of freedom: both keep degenerate data away from a division by zero.
_LEAST_SPREAD, _LEAST_LEFT = 1e-3, 1e-6
#: What rounding may move discriminants by; how near means are the same, in ε times their squared length
#: by S⁻¹, and in ε times their length.
_MOST_ROUNDING, _SAME_MEANS, _OF_MEANS = 0.1, 100.0, 10.0
#: Power of (n − 1) / n by which the loss of a sample counts that was left out of n of its class.
_OF_FEW = 3
#: What a class of one sample adds to the temperature for each unit of loss, as a share; the most loss of
#: a sample that an edited file is believed.
_OF_ONE, _MOST_LOSS = 0.3, 20.0
#: Highest score that counts as known, the lower bound of 1 + 2 · score, and the longest rows, in mean
#: squares of the length of those learnt: all for novelty.
_KNOWN, _LEAST_KNOWN, _LONG = 1.0, 0.01, 1.5
#: Temperatures that are tried: steps of √2 from 2^−12 to 2^8, and the place of 1.
_TEMPERATURES, _ONE = 2.0 ** (torch.arange(-24, 17, dtype=torch.float64) / 2), 24
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
_TYPICAL_TEMPERATURE, _TYPICAL_NOVELTY, _TYPICAL_SAMPLES = 1 / 14, 0.8, 10.0


def heights(model: AnalyticModel) -> tuple[Tensor, Tensor]:
    """Return the map that files of format 5 call class_balance: targets of the height 1 / weight."""
    return of_heights(model.learner.class_weights, model.head.coefficients()[1])


def of_heights(weights: Tensor, intercept: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same for classes of these weights, and these intercepts."""
    present = weights > 0
    factors = torch.ones_like(weights)
    factors[present] = weights[present].mean() / weights[present]
    return factors.diag(), intercept * factors.to(intercept)


@dataclass(frozen=True)
class Pooled:
    r"""Map from the weights of the regression to those of balanced classes, and intercepts.

    Notes
    -----
    A class of weight n_c counts w_c = n_c^{-a} times, with the scatter of all classes pooled: G is
    replaced by c (G − Σ n_c μ_c μ_cᵀ) + Σ w_c n_c μ_c μ_cᵀ, where c = Σ w_c n_c / Σ n_c, the moment by
    M diag(w), and γ by c γ. With A = G + γI, W = A⁻¹ M, E = diag((w − c) / n) and K = Mᵀ W, that gives

    .. math::

        (c A + M E Mᵀ)^{-1} M \, \mathrm{diag}(w) = W (c I + E K)^{-1} \mathrm{diag}(w).

    With an intercept b, K = Mᵀ W + n bᵀ, and b is mapped like W. Equal class weights change nothing.
    It is what weighing the samples of class c by w_c gives, where classes share one covariance.
    """

    exponent: float  # a, from 0 to 1

    def __call__(self, model: AnalyticModel) -> tuple[Tensor, Tensor]:
        """Return the square map and the intercepts."""
        ridge = model.ridge
        intercept = ridge.coefficients()[1]  # first, because it may solve anew
        weights = ridge.class_weights
        n_classes, present = len(weights), torch.nonzero(weights > 0).flatten()
        n = weights[present]
        w = (n / n.max()) ** -self.exponent
        w = w * n.sum() / (w @ n)  # in units of c
        K = explained(ridge)[present][:, present]
        E_K = ((w - 1) / n).unsqueeze(1) * K
        mixing = torch.zeros(n_classes, n_classes, dtype=torch.float64)
        identity = torch.eye(len(n), dtype=torch.float64)
        solved, singular = torch.linalg.solve_ex(identity + E_K, w.diag())
        if singular:
            raise SingularMatrixError(
                f"The classes cannot be balanced: γ = {model.gamma():.3g} is too small for these sums, "
                "or they are no sums of samples. Use a larger gamma."
            )
        mixing[present.unsqueeze(1), present] = solved
        return mixing, intercept.cpu().double() @ mixing


def explained(ridge: Ridge) -> Tensor:
    """Return K = Σ w y f(x)ᵀ of targets y and their estimates f(x), of shape (n_classes, n_classes)."""
    weights = ridge.class_weights
    K = ridge.products()[0]
    return K + torch.outer(weights, weights) / weights.sum() if ridge.intercept else K


@dataclass(frozen=True)
class Discriminants:
    """Map from the weights of the regression to discriminant scores, and intercepts."""

    #: Whether to draw means together: those of a private release have been.
    draw: bool = True
    #: How much farther off means of few samples are than the scatter tells, which has hardly seen their
    #: classes: a share, in squares, and one more that is divided by the number of classes which the
    #: scatter is of. Files from before these were known have 0, and score as they did.
    unseen: float = 0.09
    unseen_by_one: float = 1.0

    def __call__(self, model: AnalyticModel) -> tuple[Tensor, Tensor]:
        """Return the square map and the intercepts."""
        return Discriminant.of(model, self.draw).mixing(model.head.coefficients()[1])


def condition(model: AnalyticModel) -> float:
    """Return the condition number of gram + γI, or what stands for it with discriminants."""
    if isinstance(model.mixer, Discriminants):
        return model.ask(lambda head: Discriminant.of(model).condition(model.ridge))
    return model.ask(lambda head: head.condition())


def mixer_of(scores: str, class_balance: float) -> Mixer:
    """Return how scores follow from the weights of the regression; None takes them as they are."""
    if scores == "discriminant":
        return Discriminants()
    return Pooled(float(class_balance)) if class_balance else None


def rebalanced(mixer: Mixer, class_balance: float) -> Mixer:
    """Return the mixer of a model with another class balance; discriminants have none."""
    if isinstance(mixer, Discriminants) or (mixer is heights and class_balance is True):
        return mixer  # True is what files of format 5 say of heights
    return mixer_of("ridge", class_balance)


@dataclass(frozen=True)
class Discriminant:
    r"""Linear discriminants of the present classes, as a linear map of the ridge weights.

    Notes
    -----
    For class c let n_c be its weight and μ_c its mean; A = gram + γI, W = A⁻¹ moment the ridge weights,
    and S = A − Σ n_c μ_c μ_cᵀ the scatter within classes, plus γI. Everything follows from W and the
    sums. With the diagonal matrix N of the n_c and K = momentᵀ W,

    .. math::

        S^{-1} μ_c = W (N - K)^{-1} e_c, \qquad
        xᵀS^{-1}x = xᵀA^{-1}x + uᵀ(N - K)^{-1}u, \quad u = Wᵀx.

    The mean of few samples lies too far out: its squared distance to the true mean, measured by S⁻¹, is
    v / n_c on average, where v = t / (n − C − t) and t = d − γ tr S⁻¹. So each mean is drawn towards the
    mean of all classes, by the factor s_c = b / (b + v / n_c), where b is the squared distance of true
    means from their centre. This is the best estimate if true means are normally distributed (James and
    Stein), and leaves the means of large classes as they are. It makes up for what chance adds to
    ‖μ_c‖², v / n_c, which would keep samples from classes of few. But S has hardly seen such a class, in
    which chance adds more, the more so the fewer classes S is of, because it fits these: so ‖μ_c‖² is
    taken to be shorter by a share of v / n_c, see `Discriminants`.

    All of it is the same for rows and means that are shifted together. So if the regression has an
    intercept, x and μ_c are taken from the mean of all samples, where W and A are centred: xᵀW is then
    the score of the regression less n_c / n, and xᵀA⁻¹x the leverage less 1 / n.

    The score of class c is μ̃_cᵀS⁻¹x − μ̃_cᵀS⁻¹μ̃_c / 2 with the drawn means μ̃, less the same for the
    centre of all classes, divided by b. So 0 means: no nearer to this class than to the centre.
    """

    #: Positions of the classes with samples, and their weights.
    present: Tensor
    n: Tensor
    #: What to take from scores of the regression, of shape (n_present,), and from leverages.
    shares: Tensor
    base: float
    #: (N − K)⁻¹ and μ_iᵀS⁻¹μ_j.
    inverse: Tensor
    products: Tensor
    #: s_c, and what the centre is made of: μ̃_c is s_c μ_c and 1 − s_c of the centre.
    drawn: Tensor
    centre: Tensor
    #: μ̃_cᵀS⁻¹μ̃_c, of the centre in the last place.
    squares: Tensor
    spread: float
    #: Squared distance, by S⁻¹, from the mean of its class to be expected of a sample not learnt.
    expected: float
    #: What rounding in S⁻¹ is multiplied by in b and s_c, which are quotients of differences.
    sensitivity: float

    @classmethod
    def of(cls, model: AnalyticModel, draw: bool = True) -> Discriminant:
        """Return the discriminants of a model with sums; takes as long as a factorization.

        ``draw`` says whether to draw means together.
        """
        if draw and model.known_discriminant is not None:
            return cast(Discriminant, model.known_discriminant)
        found = cls._made(model, draw)
        if draw:
            model.known_discriminant = found
        return found

    @classmethod
    def _made(cls, model: AnalyticModel, draw: bool) -> Discriminant:
        # First, because it may solve anew
        ridge, freedom = model.ridge, model.degrees_of_freedom()
        weights, kind, d = ridge.class_weights, model.precision.sums, model.expansion.size
        present = torch.nonzero(weights > 0).flatten()
        n = weights[present]
        C = len(n)
        total_weight = float(n.sum())
        share = n / total_weight
        K, squares = (part if len(part) == C else part[present][:, present] for part in ridge.products())
        factor, singular = torch.linalg.cholesky_ex(n.diag() - K)
        inverse = torch.cholesky_inverse(factor)
        # N⁻¹ K (N − K)⁻¹ = (N − K)⁻¹ − N⁻¹, where a difference would not do: on the diagonal
        products, squared = inverse.clone(), (K * inverse).sum(dim=1) / n
        products.diagonal().copy_(squared)
        length, most = float(share @ squared), _MOST_ROUNDING / torch.finfo(kind).eps
        # In units of the weights, the trace of the inverse is known, and no less than its norm.
        large = C + total_weight * length > most
        if singular or (large and float(n @ inverse.square() @ n) > most**2):
            raise SingularMatrixError(
                f"Samples hardly differ within their classes, and γ = {model.gamma():.3g} is too small "
                f"for that in {str(kind).removeprefix('torch.')}. Use a larger gamma."
            )
        free = total_weight - C
        # t = d − γ tr S⁻¹, and tr S⁻¹ = tr A⁻¹ + tr (N − K)⁻¹ WᵀW
        t = max(freedom - ridge.intercept - model.gamma() * float((inverse * squares).sum()), 0.0)
        # The rank of the scatter: of one sample of each class, t would be rounding, divided by 0.
        t = min(t, int(ridge.counts.sum()) - C)
        v = t / max(free - t, _LEAST_LEFT * total_weight)
        total, among = float(share @ (squared - products @ share)), float(share @ (1 - share))
        # Rounding in means is a share of the length of rows, by S⁻¹ at most 1 / γ of its square.
        rounding = _OF_MEANS * torch.finfo(model.precision.products).eps
        moved = rounding**2 * mean_square(model) / model.gamma() if model.gamma() else 0.0
        if total <= moved + _SAME_MEANS * torch.finfo(torch.float64).eps * length:
            total = 0.0
        # E Σ p_c ‖μ̂_c − μ̄‖² = Σ p_c (1 − p_c) (b + v / n_c), which is C − 1 of v / n
        noise = draw * v
        real = max(total - noise * (C - 1) / total_weight, _LEAST_SPREAD * total)
        spread = real / max(among, 1e-300) or 1.0  # one class, or means that are all the same
        drawn = n / (n + noise / spread)
        size = d * (1 / t + 1 / max(free - t, 1e-300)) if t > 0 else 0.0
        observed = max(1.0, total / (spread * max(among, 1e-300)))
        sensitivity = observed * (1 + size * (1 - float(drawn.min())))
        centre = drawn / drawn.sum()
        inner = products @ centre
        square = centre @ inner
        if isinstance(model.mixer, Discriminants):
            # 1 / Σ p_c² classes make up the scatter: as many as there are, if they have as many samples.
            unseen = model.mixer.unseen + model.mixer.unseen_by_one * float(share @ share)
            squared -= unseen * noise / n
        # s² μ_cᵀS⁻¹μ_c + 2 s (1 − s) …, of means that are s_c from the centre to μ_c
        squares = square.lerp(inner, drawn).lerp(inner.lerp(squared, drawn), drawn)
        squares = torch.cat([squares, square.unsqueeze(0)])
        if not t:
            # No scatter is known, only γ: rows at right angles to those learnt are to be unlike
            v = mean_square(model) / (model.gamma() or 1.0) / 6
        shares, base = (share, 1 / total_weight) if ridge.intercept else (torch.zeros_like(n), 0.0)
        v = v or 1.0
        parts = present, n, shares, base, inverse, products, drawn, centre, squares
        return cls(*parts, spread, v, sensitivity)

    @cached_property
    def means(self) -> Tensor:
        """Row c: the means that μ̃_c is made of; the last row: those of the centre."""
        drawn, centre = self.drawn, self.centre
        return torch.cat([torch.outer(1 - drawn, centre) + drawn.diag(), centre.unsqueeze(0)])

    def condition(self, ridge: Ridge) -> float:
        """Return what rounding in the sums is multiplied by in the scores, at most."""
        W = ridge.coefficients()[0][:, self.present.to(ridge.sums.moment.device)]
        # S⁻¹ = A⁻¹ + W (N − K)⁻¹ Wᵀ
        inner = self.inverse.to(W)
        found = self.sensitivity * ridge.condition(
            lambda block: (W @ (inner @ (W.T @ block.to(W)))).to(block)
        )
        return math.inf if math.isnan(found) else found  # of sums of an edited file

    def mixing(self, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the square map from ridge weights to those that score, and intercepts.

        ``offsets``, of shape (n_classes,), are the intercepts of the regression.
        """
        # Column c: W (N − K)⁻¹ (μ̃_c − centre), and μ̃_c − centre is s_c (μ_c − centre)
        columns = self.inverse - (self.inverse @ self.centre).unsqueeze(1)
        columns *= self.drawn / self.spread
        shift = offsets.cpu().double()[self.present] - self.shares
        constants = (self.squares[-1] - self.squares[:-1]) / (2 * self.spread) + shift @ columns
        if len(columns) == len(offsets):
            return columns, constants
        mixing = torch.zeros(len(offsets), len(offsets), dtype=torch.float64)
        intercept = torch.zeros(len(offsets), dtype=torch.float64)
        mixing[self.present.unsqueeze(1), self.present] = columns
        intercept[self.present] = constants
        return mixing, intercept

    @property
    def farther(self) -> float:
        """How much farther samples are from the means of classes than from the true ones.

        The true mean is off μ̃_c by s_c / n_c of the scatter, if true means are normally distributed, so
        a sample is 1 + s_c / n_c times as far, in squares. This is the mean over the classes.
        """
        return 1 + float((self.drawn / self.n.clamp(min=1)).mean())

    @property
    def single(self) -> float:
        """The share of classes that have one sample."""
        return float((2 - self.n).clamp(0, 1).mean())

    def _whitened(self, ridge_scores: Tensor, leverages: Tensor) -> tuple[Tensor, Tensor]:
        """Return xᵀS⁻¹μ_j and xᵀS⁻¹x of rows with these scores of the regression and leverages."""
        u = ridge_scores[:, self.present].double() - self.shares
        whitened = u @ self.inverse
        return whitened, leverages.double() - self.base + (whitened * u).sum(dim=1)

    def nearest(self, ridge_scores: Tensor, leverages: Tensor) -> tuple[Tensor, Tensor]:
        """Return the highest score of each row and its squared distance to that class's mean, by S⁻¹.

        The mean of n samples is off by 1 / n of the scatter, so distances are divided by 1 + 1 / n.
        ``ridge_scores``, of shape (n, n_classes), are by the ridge weights; ``leverages`` are xᵀA⁻¹x.
        """
        inner, square = self._whitened(ridge_scores, leverages)
        # μ̃_cᵀS⁻¹x − μ̃_cᵀS⁻¹μ̃_c / 2, and xᵀS⁻¹x less twice the largest
        linear = inner @ self.means.T - self.squares / 2
        best, nearest = linear[:, :-1].max(dim=1)
        distances = (square - 2 * best) / (1 + 1 / self.n[nearest])
        return (best - linear[:, -1]) / self.spread, distances

    def left_out(
        self, ridge_scores: Tensor, leverages: Tensor, columns: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return scores of samples learnt if each were left out, distances, and what they count.

        Distances are those of `nearest`. Every class counts the same, less what few samples tell: a
        sample counts as 1 / n, relative to the largest class, and by (n − 1) / n to a power; as 0 if it
        was the only one of its class, or if the model fits it exactly. The last is `farther` of that
        class alone. Arguments are those of `nearest`, and true classes and weights. Means are drawn as
        far as with all samples.
        """
        inner, square = self._whitened(ridge_scores, leverages)
        # A sample of weight 2 is two samples, of which one is left out.
        heavy = weights.clamp(max=1)
        local, rows = torch.searchsorted(self.present, columns), torch.arange(len(inner))
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
        squares = self.squares + gain * along**2
        squares += moved * grown * (moved * D_D.unsqueeze(1) - 2 * along)
        linear -= squares / 2
        scores = torch.full(ridge_scores.shape, -torch.inf, dtype=torch.float64)
        scores[:, self.present] = (linear[:, :-1] - linear[:, -1:]) / self.spread
        best, nearest = linear[:, :-1].max(dim=1)
        n = torch.where(nearest == local, others, self.n[nearest])
        distances = (square + gain.squeeze(1) * D_x**2 - 2 * best) / (1 + 1 / n)
        sound = (others > 0) & (left > _LEAST_LEFT) & (1 - heavy * leverages > _LEAST_LEFT)
        counts = sound * (others / self.n[local]) ** _OF_FEW * (self.n.max() / self.n[local])
        return scores, distances, counts, 1 + self.drawn[local] / others


@dataclass(frozen=True)
class Calibration:
    """Sums over samples learnt, each scored as if it had been left out; merged by addition."""

    samples: float  # their weight in the losses
    losses: Tensor  # Σ −log(probability of the true class), at each of the temperatures
    novelties: Tensor  # histogram of the logarithm of the novelty
    approximate: bool = False  # some samples were forgotten, or learnt without being counted here
    #: See `heat`. Files from before it was known have 0, and keep it.
    hotter: float = 1.0

    @classmethod
    def empty(cls, hotter: float = 1.0) -> Calibration:
        """Return the calibration of no samples."""
        novelties = torch.zeros(_BINS, dtype=torch.float64)
        return cls(0.0, torch.zeros_like(_TEMPERATURES), novelties, hotter=hotter)

    def plus(
        self, scores: Tensor, columns: Tensor, novelties: Tensor, weights: Tensor, counts: Tensor
    ) -> Calibration:
        """Return the calibration with more samples, of true classes in ``columns``.

        ``scores`` has shape (n, n_classes), the others (n,); novelties are given as logarithms. Scores
        are those of `Discriminant.left_out`, divided by their `heat` and by how much farther samples
        were, which makes samples of small and large classes alike; counts are what it says that they
        count. A score far beyond those of known classes would decide alone: it counts like the highest
        of them.
        """
        scores = scores / (scores.amax(dim=1, keepdim=True).abs() / _KNOWN).clamp(min=1.0)
        own, counted = scores.gather(1, columns.unsqueeze(1)).squeeze(1), weights * counts
        losses = [(torch.logsumexp(scores / T, 1) - own / T) @ counted for T in _TEMPERATURES.tolist()]
        places = ((novelties - _FIRST) / _WIDTH).long().clamp(0, _BINS - 1)
        added = torch.bincount(places, weights, minlength=_BINS)
        return self.merged(
            Calibration(float(counted.sum()), torch.stack(losses), added, hotter=self.hotter)
        )

    def merged(self, other: Calibration | None) -> Calibration:
        """Return the calibration of the samples of both; approximate if others were not counted.

        What was measured with another ``hotter`` does not count.
        """
        if other is None:
            return replace(self, approximate=True)
        kinds = {c.hotter for c in (self, other) if c.samples or c.novelties.any()} or {self.hotter}
        if len(kinds) > 1:
            return replace(self, approximate=True)
        return replace(
            self,
            hotter=kinds.pop(),
            samples=self.samples + other.samples,
            losses=self.losses + other.losses,
            novelties=self.novelties + other.novelties,
            approximate=self.approximate or other.approximate,
        )

    def less(self, other: Calibration) -> Calibration:
        """Return it without samples as they score now, which is about how they were counted.

        How the others scored beside many samples says little about scores beside few.
        """
        losses, novelties = self.losses - other.losses, (self.novelties - other.novelties).clamp(min=0)
        # Sums of losses are convex in 1 / T: what is not is the rest of too large a difference.
        slopes = losses.diff() / (1 / _TEMPERATURES).diff()
        if float(losses.min()) < 0 or bool((slopes.diff() > 1e-9 * self.losses.max()).any()):
            return Calibration.empty(self.hotter).merged(None)
        left = max(self.samples - other.samples, 0.0)
        share = (left / max(self.samples, 1e-300)) ** _AGEING
        return Calibration(share * left, share * losses, share * novelties, True, self.hotter)

    def among(self, before: Tensor, now: Tensor) -> Calibration:
        """Return it for a model that knows more classes than when samples were counted.

        How samples score among few classes says little about scores among many, so they count less.
        Given are the numbers of samples of each class, before and now.
        """
        share = min(1.0, int(before.count_nonzero()) / max(int(now.count_nonzero()), 1)) ** _AGEING
        if share == 1:
            return self
        counted = share * self.samples, share * self.losses, share * self.novelties
        return Calibration(*counted, self.approximate, self.hotter)

    def to_dict(self, summary: bool) -> dict[str, Any]:
        """Return the values as JSON has them; a summary leaves out the lists."""
        losses, novelties = ([], []) if summary else (self.losses.tolist(), self.novelties.tolist())
        facts = {"samples": self.samples, "approximate": self.approximate, "hotter": self.hotter}
        return {**facts, "losses": losses, "novelties": novelties}

    @classmethod
    def from_dict(cls, stored: dict[str, Any], summary: bool) -> Calibration | None:
        """Return the calibration that was stored, or None if it has not as many numbers as it needs."""
        names = ("samples", "losses", "novelties")
        samples, losses, novelties = (torch.tensor(stored[n], dtype=torch.float64) for n in names)
        complete = len(losses) == len(_TEMPERATURES) and len(novelties) == _BINS
        hotter = float(stored.get("hotter", 0.0))
        complete &= 0 <= hotter <= 10
        found = cls(float(samples), losses, novelties, stored["approximate"], hotter)
        return found if complete or summary else None

    def temperature(self, farther: float, single: float = 0.0) -> float:
        """Return the temperature of the least loss; few samples hardly move the typical one.

        Given are `Discriminant.farther` and `Discriminant.single` of the classes as they are. A class of
        one sample is not in the losses, and tells less of itself than the others, the more so the less
        these tell.
        """
        best = int(self.losses.argmin())
        place = float(best)
        if self.losses[best] == self.losses.max():
            # Nothing was counted, or one class, which has no loss at any temperature.
            return _TYPICAL_TEMPERATURE
        if 0 < best < len(_TEMPERATURES) - 1:
            before, here, after = self.losses[best - 1 : best + 2].tolist()
            # The vertex of the parabola through three points
            place += (before - after) / 2 / max(before - 2 * here + after, 1e-300)
        loss = min(float(self.losses[best]) / max(self.samples, 1e-300), _MOST_LOSS)
        found = (place - _ONE) / 2 + math.log2(farther * (1 + _OF_ONE * single * loss))
        typical = math.log2(_TYPICAL_TEMPERATURE)
        return float(2 ** self._weighed(found, typical, self.samples))

    def largest_known(self) -> float:
        """Return the log-novelty that a share of `FALSE_ALARMS` of the learnt classes exceeds."""
        samples = float(self.novelties.sum())
        if not samples:
            return _TYPICAL_NOVELTY
        above = self.novelties.flip(0).cumsum(0).flip(0)
        allowed = FALSE_ALARMS * samples
        place = int((above > allowed).sum()) - 1
        # Within the bin in which the limit is crossed
        part = (float(above[place]) - allowed) / float(self.novelties[place])
        found = _FIRST + _WIDTH * (place + part)
        return self._weighed(found, _TYPICAL_NOVELTY, samples)

    @staticmethod
    def _weighed(found: float, typical: float, samples: float) -> float:
        return (found * samples + typical * _TYPICAL_SAMPLES) / (samples + _TYPICAL_SAMPLES)


def heat(scores: Tensor, hotter: float) -> Tensor:
    """Return what to multiply the temperature of each row by: 1 + ``hotter`` where the top score is 1.

    Rows that are longer have higher scores, and errors that are larger in proportion, so one temperature
    for all would make high scores too sure, and low ones not sure enough.
    """
    return 1 + hotter * scores.amax(dim=1, keepdim=True).clamp(min=0)


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
        weights, squares = model.head.class_weights, model.head.residual_squares()
        mixed = model.mixing()
        if mixed is not None and isinstance(model.head, Ridge):
            # Σ w (y − Qᵀf)² with Σ w f fᵀ = K − γ WᵀW, of scores f that Q maps
            mixing, ridge = mixed[0].double().cpu(), model.ridge
            K = explained(ridge)
            spans = K - model.gamma() * ridge.products()[1]
            squares = weights - 2 * (K * mixing).sum(dim=0) + ((spans @ mixing) * mixing).sum(dim=0)
        elif mixed is not None:
            squares = squares * mixed[0].diagonal().to(squares).square()
        n, present = float(weights.sum()), (weights > 0).to(squares.device)
        left = max(1 - freedom / n, _LEFT_OVER)
        error = max(float(squares[present].mean()) / n / left**2, 0.0)
        model.known_temperature = min(max(math.sqrt(6 * error) / math.pi, _COLDEST), _HOTTEST)
    return model.known_temperature


def log_novelty(
    found: Discriminant, model: AnalyticModel, rows: Tensor, best: Tensor, distances: Tensor
) -> Tensor:
    """Return the logarithm of how unlike everything learnt expanded rows are.

    The squared distance to the nearest class, in units of what is to be expected of a sample not learnt,
    relative to the length of the row and to how much nearer it is than the centre of all classes. Both
    are bounded, so that along every ray that leaves the classes novelty grows.
    """
    length = rows.square().sum(dim=1).cpu().double() / (mean_square(model) or 1.0)
    if len(found.n) == 1:
        # There is no other class to be nearer to: as near as is usual
        best = torch.full_like(best, 0.5)
    known = (1 + 2 * best.clamp(max=_KNOWN)).clamp(min=_LEAST_KNOWN)
    relative = distances.clamp(min=0) / max(found.expected, 1e-300)
    return (relative / length.clamp(1e-300, _LONG) / known).clamp(min=1e-300).log()


def mean_square(model: AnalyticModel) -> float:
    """Return the mean square of the length of expanded rows learnt."""
    sums = model.ridge.sums
    return float(sums.gram.diagonal().sum()) / sums.total_weight
