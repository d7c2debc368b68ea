"""The choice of γ from the sums alone, by generalized cross-validation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.linalg import lapack
from torch import Tensor

from acil.core.cholesky import Factor
from acil.core.linalg import one_scipy_thread, sized, solve_lower
from acil.core.sums import Sums
from acil.errors import SingularMatrixError

#: γ relative to trace(gram) / d: half decades from 1e-6 to 10. The last one is never taken: it is best
#: where nothing can be told, as with one sample of each class.
GRID = tuple(10 ** (exponent / 2) for exponent in range(-12, 3))
#: Criteria that differ by less, relatively, are the same: for one sample all are, and rounding must not
#: choose. The largest of such candidates is taken.
_SAME = 1e-6
#: A candidate is judged only if this share of the samples is left over by its degrees of freedom, and
#: this share of Σ‖y‖² is not explained: below that the criterion is a ratio of small differences.
_LEAST_LEFT, _LEAST_RESIDUAL = 0.01, 1e-8
#: Degrees of freedom of discriminants for each sample that counts; see `most_freedom`.
_BALANCED_FREEDOM = 1 / 4
#: Samples, as a share of the dimensions, that are few enough to go into a basis of them.
_FEW = 1 / 3
#: Widest sums that are made tridiagonal: half of that runs at the speed of memory, whatever the cores.
_TRIDIAGONAL_UP_TO = 2048
#: Criterion and degrees of freedom of a γ.
Judge = Callable[[float], tuple[float, float]]
#: What rounding may add to degrees of freedom, and tenths of decades by which γ is raised for them.
_SAME_FREEDOM, _RAISED = 1e-6, 80


def freedom_share(scores: str) -> float | None:
    """Return the share for `most_freedom` by the kind of scores; ridge scores have no limit."""
    return _BALANCED_FREEDOM if scores == "discriminant" else None


def most_freedom(weights: Tensor, share: float) -> float:
    """Return the most degrees of freedom for classes of these weights: of their numbers of samples.

    Two for each of the C − 1 directions in which C classes differ, and a ``share`` of the samples. Means
    of classes with n_c samples are as uncertain, on average, as those of C classes that share
    C² / Σ 1 / n_c samples equally. Two samples of a new class make this few, however many there are of
    others: more freedom fits what only the others have shown.
    """
    n = weights.numpy()  # which is sooner done for few numbers, and once for each sample of a stream
    n = n[n > 0]
    C = len(n)
    return max(C, 2 * (C - 1)) + share * C**2 / float((1 / n).sum()) if C else math.inf


def choose_gamma(sums: Sums, intercept: bool, least: float = 0.0, most: float = math.inf) -> float:
    """Return the candidate in ``GRID`` that is best by `criterion`; trace / d if none can be judged.

    It depends on the sums alone. At most eight candidates are judged, each by a factorization where sums
    are too wide for another way: every fourth, then the neighbours of the best. Candidates below
    ``least`` are left out. If the best has more than ``most`` degrees of freedom, it is raised by tenths
    of decades until it has not.
    """
    unit = float(sums.gram.diagonal().mean())
    if not math.isfinite(unit):
        raise SingularMatrixError(
            "No gamma can be chosen: the squares of the features add up to more than a number can hold. "
            "Scale the features and learn again."
        )
    judge = cache(_judge(sums, intercept))
    best = _best_of_all(unit, judge, least)
    if most >= min(len(sums.moment) + intercept, sums.n_samples):
        return best

    def few_enough(step: int) -> bool:
        return judge(best * 10 ** (step / 10))[1] <= most * (1 + _SAME_FREEDOM)

    if few_enough(0):
        return best
    too_low, enough = 0, _RAISED
    while enough - too_low > 1:
        step = (too_low + enough) // 2
        too_low, enough = (too_low, step) if few_enough(step) else (step, enough)
    return best * 10 ** (enough / 10)


def _best_of_all(unit: float, judge: Judge, least: float) -> float:
    seen = dict[int, float]()

    def try_candidate(index: int) -> None:
        if 0 <= index < len(GRID) and index not in seen:
            gamma = GRID[index] * unit
            seen[index] = judge(gamma)[0] if gamma >= least else math.inf

    for index in range(0, len(GRID), 4):
        try_candidate(index)
    for step in (2, 1):
        best = _best(seen)
        try_candidate(best - step)
        try_candidate(best + step)
    best = _best(seen)
    if math.isfinite(seen[best]) and best < len(GRID) - 1:
        return GRID[best] * unit
    return max(unit, least) or 1.0  # sums of zeros have no scale: any γ gives the weights 0


def _best(seen: dict[int, float]) -> int:
    """Return the candidate of the least criterion, the largest of those that share it."""
    least = min(seen.values())
    return max(index for index, value in seen.items() if value <= least * (1 + _SAME))


def criterion(sums: Sums, gamma: float, intercept: bool) -> float:
    r"""Return the squared error to expect on unseen samples; infinite where it cannot be told.

    Notes
    -----
    With R = (gram + γI)⁻¹, W = R · moment, the hat matrix H and n the total weight,

    .. math::

        \mathrm{GCV} = \frac{n \, \mathrm{RSS}}{(n - \mathrm{tr} H)^2}, \qquad
        \mathrm{tr} H = d - γ \, \mathrm{tr} R, \qquad
        \mathrm{RSS} = Σ‖y‖² - \mathrm{tr}(Wᵀ \mathrm{moment}) - γ‖W‖².
    """
    return _judged(sums, gamma, intercept)[0]


def _judge(sums: Sums, intercept: bool) -> Judge:
    """Return what gives `criterion` and tr H of any γ."""
    d, gram = len(sums.moment), sums.gram
    if gram.device.type == "cpu" and gram.dtype == torch.float64:
        if sums.n_samples < d * _FEW:
            return _Reduced.of(sums, intercept).judged
        if 1 < d <= _TRIDIAGONAL_UP_TO:
            return _Tridiagonal.of(sums, intercept).judged
    return lambda gamma: _judged(sums, gamma, intercept)


def _judged(sums: Sums, gamma: float, intercept: bool) -> tuple[float, float]:
    try:
        factor = Factor(sums, gamma, intercept, sums.moment.dtype)
    except SingularMatrixError:
        return math.inf, math.inf
    coef = factor.solve(right_hand_side(sums, intercept))
    rss = float(residual_squares(coef, sums, gamma, intercept).sum())
    freedom = degrees_of_freedom(factor, gamma, overwrite=True)
    return _expected(rss, freedom, sums.total_weight, float(sums.target_squares.sum())), freedom


def _expected(rss: float, freedom: float, n: float, squares: float) -> float:
    left = n - freedom
    if not (left >= _LEAST_LEFT * n and rss >= _LEAST_RESIDUAL * squares):
        return math.inf
    # Weights may be so large that their square overflows.
    return n / left * (rss / left)


@dataclass(frozen=True)
class _Centred:
    """What a basis of the sums leaves as it is; with an intercept, gram and moment are centred first."""

    least: float  # γ that is beyond rounding
    n: float
    squares_of_targets: float
    explained: float  # by the intercepts
    intercept: bool

    @classmethod
    def parts(cls, sums: Sums, intercept: bool) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Return gram, of which the lower triangle counts, moment, and the fields of this class."""
        gram, moment, n, explained = sums.gram.tril(), sums.moment, sums.total_weight, 0.0
        least = math.sqrt(len(gram)) * torch.finfo(gram.dtype).eps * float(gram.diagonal().max())
        if intercept:
            mean = sums.total / n
            gram.addr_(sums.total, mean, alpha=-1)
            moment = torch.addr(moment, mean, sums.target_total.to(moment), alpha=-1)
            explained = float(sums.target_total.square().sum()) / n
        facts = {"least": least, "n": n, "explained": explained, "intercept": intercept}
        return gram, moment, {**facts, "squares_of_targets": float(sums.target_squares.sum())}

    def judgement(self, fitted: float, shares: float) -> tuple[float, float]:
        """Return what `_judged` does, given MᵀW + γ ‖W‖² and Σ λ / (λ + γ)."""
        freedom = shares + self.intercept
        rss = self.squares_of_targets - self.explained - fitted
        return _expected(rss, freedom, self.n, self.squares_of_targets), freedom


@dataclass(frozen=True)
class _Reduced(_Centred):
    """Sums of far fewer samples than dimensions, in a basis of what these samples span.

    Notes
    -----
    With gram = L Lᵀ, L of as many columns as the rank, and moment = L T, all that the criterion needs of
    (gram + γI)⁻¹ moment = L (LᵀL + γI)⁻¹ T follows from the eigenvalues λ of LᵀL and T in their basis.
    """

    eigenvalues: Tensor
    squares: Tensor  # of T, added up over the targets

    @classmethod
    @sized(lambda cls, sums, intercept: len(sums.moment) * sums.n_samples**2)
    def of(cls, sums: Sums, intercept: bool) -> _Reduced:
        """Return the sums in such a basis, by a Cholesky factorization that finds the rank."""
        gram, moment, facts = cls.parts(sums, intercept)
        with one_scipy_thread():
            lower, places, rank, _ = lapack.dpstrf(gram.numpy(), lower=1)
        L = torch.from_numpy(lower[:, :rank]).tril()
        T = solve_lower(L[:rank], moment[torch.from_numpy(places[:rank] - 1).long()])
        eigenvalues, basis = torch.linalg.eigh(L.mT @ L)
        squares = (basis.mT @ T).square().sum(dim=1)
        return cls(eigenvalues=eigenvalues.clamp(min=0), squares=squares, **facts)

    def judged(self, gamma: float) -> tuple[float, float]:
        """Return what `_judged` does."""
        if gamma <= self.least:
            return math.inf, math.inf
        shares = self.eigenvalues / (self.eigenvalues + gamma)
        # MᵀW + γ ‖W‖² with M = L T
        fitted = float((shares * (1 + gamma / (self.eigenvalues + gamma))) @ self.squares)
        return self.judgement(fitted, float(shares.sum()))


@dataclass(frozen=True)
class _Tridiagonal(_Centred):
    """Sums in a basis in which gram is tridiagonal, where each γ is judged at once.

    Notes
    -----
    With gram = Q T Qᵀ, all that the criterion needs of (gram + γI)⁻¹ moment = Q (T + γI)⁻¹ Qᵀ moment
    follows from T, its eigenvalues and Qᵀ moment.
    """

    diagonal: npt.NDArray[np.float64]
    beside: npt.NDArray[np.float64]
    eigenvalues: npt.NDArray[np.float64]
    moment: npt.NDArray[np.float64]

    @classmethod
    def of(cls, sums: Sums, intercept: bool) -> _Tridiagonal:
        """Return the sums in such a basis, which takes as long as three factorizations."""
        gram, moment, facts = cls.parts(sums, intercept)
        d, k = moment.shape
        size = int(lapack.dsytrd_lwork(d, lower=1)[0])
        lower = np.asfortranarray(gram.numpy())
        first, rest = moment[:1].numpy(), moment[1:].numpy()
        with one_scipy_thread():
            lower, diagonal, beside, factors, _ = lapack.dsytrd(
                lower, lower=1, lwork=size, overwrite_a=1
            )
            rest = lapack.dormqr("L", "T", lower[1:, :-1], factors, rest, lwork=64 * k)[0]
        eigenvalues = lapack.dsterf(diagonal, beside)[0].clip(min=0)
        moments = np.concatenate([first, rest])
        return cls(diagonal=diagonal, beside=beside, eigenvalues=eigenvalues, moment=moments, **facts)

    def judged(self, gamma: float) -> tuple[float, float]:
        """Return what `_judged` does."""
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is not judged
            *factor, failed = lapack.dpttrf(self.diagonal + gamma, self.beside)
            if failed or gamma <= self.least:
                return math.inf, math.inf
            W = lapack.dpttrs(*factor, self.moment)[0]
            fitted = float((W * (self.moment + gamma * W)).sum())
            shares = float((self.eigenvalues / (self.eigenvalues + gamma)).sum())
        return self.judgement(fitted, shares)


def degrees_of_freedom(factor: Factor, gamma: float, overwrite: bool = False) -> float:
    """Return tr H = d − γ tr R, and 1 for the intercept; the factor is lost if it may be overwritten."""
    d = len(factor.L) - factor.first
    return d - gamma * factor.trace_of_inverse(overwrite) + factor.first


def right_hand_side(sums: Sums, intercept: bool) -> Tensor:
    """Return the right-hand side of the normal equations, of shape (d, k) or (d + 1, k)."""
    if not intercept:
        return sums.moment
    return torch.cat([sums.target_total.to(sums.moment).unsqueeze(0), sums.moment])


def residual_squares(coef: Tensor, sums: Sums, gamma: float, intercept: bool) -> Tensor:
    """Return Σ w (y_c − x w_c)² of each class: Σ y_c² − w_cᵀ right_c − γ ‖w_c‖²."""
    W, right = coef[int(intercept) :], right_hand_side(sums, intercept)
    return sums.target_squares.to(W) - (coef * right).sum(dim=0) - gamma * W.square().sum(dim=0)
