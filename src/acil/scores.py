"""From the weights of the regression to those that score: class balance, and discriminants."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from acil.analytic import AnalyticModel
from acil.analytic.model import Mixer

#: Least share of the spread of class means that counts as real, and of samples that is left over by
#: the degrees of freedom: both keep degenerate data away from a division by zero.
_LEAST_SPREAD, _LEAST_LEFT = 1e-3, 1e-6


def balance_factors(weights: Tensor) -> Tensor:
    """Return (mean class weight) / (class weight) of each class that has samples, else 1."""
    present = weights > 0
    factors = torch.ones_like(weights)
    factors[present] = weights[present].mean() / weights[present]
    return factors


def balanced(model: AnalyticModel) -> tuple[Tensor, Tensor]:
    """Scale classes by their balance factors: as if targets had that height, W being linear in them.

    Returns the map from the weights of the regression to those that score, and intercepts.
    """
    factors = balance_factors(model.learner.weights)
    intercept = model.head.coefficients()[1]
    return factors.diag(), intercept * factors.to(intercept)


def discriminant(model: AnalyticModel) -> tuple[Tensor, Tensor]:
    """Return the map from the weights of the regression to discriminant scores, and intercepts."""
    return Discriminant.of(model).weights(len(model.head.counts))


#: How scores follow from the weights of the regression; None takes them as they are.
MIXERS: dict[str, Mixer] = {"ridge": None, "balanced": balanced, "discriminant": discriminant}


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
    def of(cls, model: AnalyticModel) -> Discriminant:
        """Return the discriminants of a model with sums; takes as long as a factorization."""
        ridge = model.ridge
        weights = ridge.weights
        present = torch.nonzero(weights > 0).flatten()
        n, sums, W = weights[present], ridge.sums, ridge.coefficients()[0]
        columns = present.to(W.device)
        r = n.sqrt()
        moment, U = (part[:, columns].double() / r.to(part.device) for part in (sums.moment, W))
        K, squares = (moment.T @ U).cpu(), (U.T @ U).cpu()
        inverse = torch.linalg.inv(torch.eye(len(n), dtype=torch.float64) - (K + K.T) / 2)
        products = K @ inverse / torch.outer(r, r)
        free = float(n.sum()) - len(n)
        # t = d − γ tr S⁻¹, and tr S⁻¹ = tr A⁻¹ + tr (I − K)⁻¹ UᵀU
        t = max(model.degrees_of_freedom() - model.gamma() * float((inverse * squares).sum()), 0.0)
        noise = t / max(free - t, _LEAST_LEFT * free, 1e-300) / n
        share = n / n.sum()
        gaps = products.diagonal() - 2 * products @ share + share @ products @ share
        total, q = float(share @ gaps), share * (1 - share)
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
        self, ridge_scores: Tensor, leverages: Tensor, columns: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores and leverages of samples learnt if each were left out, in closed form.

        The third tensor says which samples count: others were the only ones of their class, or the model
        fits them exactly. ``ridge_scores``, of shape (n, n_classes), are by the ridge weights;
        ``leverages`` are xᵀA⁻¹x of each row. Means are drawn as far as with all samples.
        """
        u = ridge_scores[:, self.present].double() / self.n.sqrt()
        # A sample of weight 2 is two samples, of which one is left out.
        heavy = leverages.new_ones(len(u)) if weights is None else weights.clamp(max=1)
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
