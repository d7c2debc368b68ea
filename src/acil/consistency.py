"""Whether sums can be those of any samples: what forgetting and verifying rely on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from acil.analytic import Ridge
from acil.analytic.cholesky import cholesky_
from acil.analytic.linalg import add_gram_, solve_lower
from acil.analytic.sums import Block, weighted
from acil.errors import InputError, SingularMatrixError


def require_forgettable(ridge: Ridge, blocks: Callable[[], Iterator[Block]]) -> None:
    """Raise if some samples cannot have been learnt; ``blocks`` yields them each time it is called."""
    ridge.release()
    gone = sum(len(columns) for _, columns, _ in blocks())
    fault = impossible(ridge, blocks()) if gone < ridge.sums.n_samples else ""
    if fault:
        raise InputError(
            f"These samples cannot be forgotten: without them, {fault}. Not all were learnt, or not "
            "under these classes, or not with these weights."
        )


def impossible(ridge: Ridge, gone: Iterable[Block] = ()) -> str:
    """Say why no samples can have the sums, less those of some samples; "" if some can.

    Notes
    -----
    With z = (x, y), sums over samples make up Σ w z zᵀ = [G, M; Mᵀ, N], where N is the diagonal matrix
    of the class weights. So no eigenvalue is negative: not of G, and not of N − Mᵀ (G + νI)⁻¹ M. As ν
    bounds the rounding in G, only that in M can make one negative, by ``slack`` at most.
    """
    sums, d, eps = ridge.sums, len(ridge.sums.gram), torch.finfo(ridge.precision.products).eps
    noise = 100 * d**0.5 * eps * float(sums.gram.diagonal().max())
    slack = 20 * (d**0.5 * eps) ** 0.5 * float(sums.weights.max())
    rest = sums.matrix.scratch(d, sums.gram.dtype).copy_(sums.gram)
    moment, weights = sums.moment.clone(), sums.weights.clone()
    for rows, columns, given in gone:
        X, Y, heavy = weighted(rows, columns, given, len(weights))
        add_gram_(rest, X, -1)
        moment -= (X.mT @ Y).to(moment)
        weights.index_add_(0, columns, -heavy)
    rest.diagonal().add_(0.0 if ridge.gamma == 0 else noise)
    try:
        cholesky_(rest, noise)
    except SingularMatrixError:
        return "gram is not positive definite"
    if ridge.gamma != 0 and least_left(rest, moment, weights) < -slack:
        return "moment and the weights of the classes do not belong to gram"
    return ""


def least_left(lower: Tensor, moment: Tensor, weights: Tensor) -> float:
    """Return the least eigenvalue of N − Mᵀ (L Lᵀ)⁻¹ M: what a regression leaves of the targets.

    ``lower`` is L, ``moment`` M of shape (d, n_classes) and ``weights`` the diagonal of N. Of more
    classes than d, where the matrix would be larger than the sums, the least diagonal entry.
    """
    whitened = solve_lower(lower, moment)
    heavy = weights.to(moment)
    if len(weights) > len(lower):
        return float((heavy - whitened.square().sum(dim=0)).min())
    return float(torch.linalg.eigvalsh(torch.diag(heavy) - whitened.mT @ whitened)[0])
