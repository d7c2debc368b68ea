"""The rows by which new samples change a regression that is weighted, centred or both."""

from __future__ import annotations

import torch
from torch import Tensor

from acil.analytic.statistics import Statistics


def regression_rows(
    sums: Statistics, rows: Tensor, targets: Tensor, weights: Tensor | None, centred: bool
) -> tuple[Tensor, Tensor]:
    """Return rows X and targets Y such that the new samples add XᵀX and XᵀY to the normal equations.

    Parameters
    ----------
    sums : Statistics
        Without the new samples.
    rows : Tensor of shape (n, d)
    targets : Tensor of shape (n, n_classes)
    weights : Tensor of shape (n,), optional
    centred : bool
        Whether the regression has an intercept.

    Returns
    -------
    X : Tensor of shape (n, d) or (n + 1, d)
    Y : Tensor of shape (n, n_classes) or (n + 1, n_classes)

    Notes
    -----
    With n old samples of mean μ and k new ones of mean m, the centred sum of squares grows by
    Σ (x − m)(x − m)ᵀ + nk / (n + k) (m − μ)(m − μ)ᵀ: one more row.
    """
    if weights is None:
        weights = torch.ones(len(rows), dtype=torch.float64)
    root = weights.to(targets).sqrt().unsqueeze(1)
    if not centred:
        return rows * root.to(rows), targets * root
    n, k = sums.total_weight, float(weights.sum())
    share = (weights / k).to(targets)
    row_mean, target_mean = share.to(rows) @ rows, share @ targets
    jump = (n * k / (n + k)) ** 0.5
    shift = jump * (row_mean - sums.mean.to(rows))
    turn = jump * (target_mean - (sums.weights / n).to(targets))
    rows = torch.cat([(rows - row_mean) * root.to(rows), shift.unsqueeze(0)])
    targets = torch.cat([(targets - target_mean) * root, turn.unsqueeze(0)])
    return rows, targets
