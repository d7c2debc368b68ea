"""The choice of γ from the sums alone, by generalized cross-validation."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from acil.analytic.linalg import add_gram_
from acil.analytic.statistics import Statistics
from acil.errors import InputError

#: γ relative to trace(gram) / d: half decades from 1e-6 to 1e4.
RELATIVE_GRID = torch.logspace(-6, 4, 21, dtype=torch.float64)
#: A candidate is judged only if this share of the degrees of freedom and of Σ‖y‖² is left over:
#: below it the criterion is a ratio of two rounding errors.
LEFT_OVER = 1e-8


@dataclass(frozen=True)
class GammaCurve:
    """What generalized cross-validation says of each candidate.

    Attributes
    ----------
    gammas : Tensor of shape (k,)
    criterion : Tensor of shape (k,)
        n · RSS / (n − tr H)², the mean squared error that is expected on unseen samples; infinite
        where the candidate was excluded.
    usable : Tensor of shape (k,), bool
    """

    gammas: Tensor
    criterion: Tensor
    usable: Tensor

    @property
    def best(self) -> float:
        """The candidate with the smallest criterion."""
        return float(self.gammas[self.criterion.argmin()])


def generalized_cross_validation(
    statistics: Statistics, gammas: Tensor | None = None, centred: bool = False
) -> GammaCurve:
    r"""Judge candidates for γ without any data.

    Parameters
    ----------
    statistics : Statistics
    gammas : Tensor of shape (k,), optional
        Candidates; by default ``RELATIVE_GRID`` times trace(gram) / d.
    centred : bool
        Judge the regression with an intercept.

    Notes
    -----
    With gram = V Λ Vᵀ, Z = Vᵀ moment, H the hat matrix and q_i = ‖Z_i‖² of row i,

    .. math::

        \mathrm{tr} H = \sum_i \frac{λ_i}{λ_i + γ}, \qquad
        \mathrm{RSS} = Σ‖y‖² - \sum_i q_i \frac{λ_i + 2γ}{(λ_i + γ)²}.

    n is the total weight, so that a weight of 2 counts like two samples.
    """
    eigenvalues, energy, n, target_square, scale = _spectrum(statistics, centred)
    if gammas is None:
        gammas = RELATIVE_GRID * scale
    gammas = gammas.to(torch.float64)
    # One row for each candidate
    shifted = eigenvalues + gammas.unsqueeze(1)
    freedom = torch.where(shifted > 0, eigenvalues / shifted, 0.0).sum(dim=1) + float(centred)
    explained = (energy * (shifted + gammas.unsqueeze(1)) / shifted.square()).nan_to_num(0.0)
    rss = target_square - explained.sum(dim=1)
    usable = (n - freedom >= LEFT_OVER * n) & (rss >= LEFT_OVER * target_square)
    if not usable.any():
        raise InputError(
            "No candidate for gamma can be judged from these sums: there are too few samples "
            f"({statistics.n_samples}) for the width {statistics.size}. Set gamma to a number, "
            "offer larger candidates, or learn more samples first."
        )
    if not usable.all():
        warnings.warn(
            f"{int((~usable).sum())} of {len(gammas)} candidates for gamma were left out: the model "
            "would fit its samples exactly, which leaves nothing to judge it by (fewer samples than "
            "dimensions).",
            UserWarning,
            stacklevel=3,
        )
    criterion = torch.where(usable, n * rss / (n - freedom).square(), torch.inf)
    return GammaCurve(gammas, criterion, usable)


def _spectrum(statistics: Statistics, centred: bool) -> tuple[Tensor, Tensor, float, float, float]:
    """Return λ, q, n, Σ‖y‖² and trace / d of the (centred) sums, all in float64 on the CPU."""
    gram = statistics.gram.to(torch.float64, copy=True)
    moment = statistics.moment.to(torch.float64)
    n, target_square = statistics.total_weight, statistics.target_square
    if centred:
        mean, weights = statistics.mean.to(moment), statistics.weights.to(moment)
        add_gram_(gram, (n**0.5 * mean).unsqueeze(0), sign=-1)
        moment = moment - torch.outer(mean, weights)
        target_square -= float(statistics.weights.square().sum()) / n
    scale = float(gram.diagonal().mean())
    eigenvalues, vectors = torch.linalg.eigh(gram)
    energy = (vectors.mT @ moment).square().sum(dim=1)
    # n samples span at most n dimensions: what is found beyond them is rounding.
    empty = max(0, statistics.size - statistics.n_samples)
    eigenvalues[:empty], energy[:empty] = 0.0, 0.0
    # Sums of squares have no negative eigenvalues; what is below zero is rounding.
    return eigenvalues.clamp(min=0.0).cpu(), energy.cpu(), n, target_square, scale
