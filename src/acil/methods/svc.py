"""Linear support vector classifiers, one against the rest, all classes at once and on any device."""

from __future__ import annotations

import torch
from torch import Tensor

#: Newton steps; the loss is a quadratic in pieces, and some ten steps find the right ones.
_MOST_STEPS = 100
#: Conjugate gradients stop at this share of the gradient: early steps need no exact direction.
_INEXACT = 0.1
_MOST_PRODUCTS = 250
#: Share of the expected decrease that a step must bring, and how often it is halved for it.
_ARMIJO, _MOST_HALVINGS = 1e-4, 30


def squared_hinge(
    rows: Tensor, targets: Tensor, n_classes: int, C: float = 1.0, tolerance: float = 1e-4
) -> tuple[Tensor, Tensor, bool]:
    """Minimize ½‖w‖² + ½b² + C Σ max(0, 1 − y (w·x + b))² for each class against all others.

    The problem of scikit-learn's ``LinearSVC(dual=False)``, solved for all classes together by Newton's
    method with conjugate gradients.

    Parameters
    ----------
    rows : Tensor of shape (n, d), float64
    targets : Tensor of shape (n,), int64
        0 … n_classes - 1, on any device.
    n_classes : int
    C : float
    tolerance : float
        A class is done when its gradient is below this share of the gradient at zero, times the smaller
        share of the two sides, which is liblinear's rule.

    Returns
    -------
    weight : Tensor of shape (n_classes, d)
    bias : Tensor of shape (n_classes,)
    converged : bool

    Examples
    --------
    >>> import torch
    >>> rows = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]], dtype=torch.float64)
    >>> weight, bias, _ = squared_hinge(rows, torch.tensor([0, 0, 1, 1]), 2)
    >>> (rows @ weight.T + bias).argmax(1).tolist()
    [0, 0, 1, 1]
    """
    Z = torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1)
    signs = _signs(targets.to(rows.device), n_classes, rows.dtype)
    W = Z.new_zeros(Z.shape[1], n_classes)
    positive = (signs > 0).sum(0)
    share = torch.minimum(positive, len(rows) - positive).clamp(min=1) / len(rows)
    goal = None
    for _ in range(_MOST_STEPS):
        margins = 1 - signs * (Z @ W)
        slack = margins.clamp(min=0)
        gradient = W - 2 * C * (Z.mT @ (signs * slack))
        norm = gradient.norm(dim=0)
        goal = tolerance * share * norm if goal is None else goal
        open_ = norm > goal
        if not open_.any():
            return W[:-1].mT.contiguous(), W[-1].clone(), True
        W[:, open_] += _step(Z, W[:, open_], signs[:, open_], margins[:, open_], gradient[:, open_], C)
    return W[:-1].mT.contiguous(), W[-1].clone(), False


def _signs(targets: Tensor, n_classes: int, dtype: torch.dtype) -> Tensor:
    signs = torch.full((len(targets), n_classes), -1.0, dtype=dtype, device=targets.device)
    signs[torch.arange(len(targets), device=targets.device), targets] = 1.0
    return signs


def _step(Z: Tensor, W: Tensor, signs: Tensor, margins: Tensor, gradient: Tensor, C: float) -> Tensor:
    """Return the change of each column: a Newton direction, shortened until the loss falls."""
    active = (margins > 0).to(Z.dtype)
    direction = _conjugate_gradients(Z, active, gradient, C)
    slope = (gradient * direction).sum(0)
    change = signs * (Z @ direction)
    before = _loss(W, margins, C)
    length = torch.ones_like(slope)
    for _ in range(_MOST_HALVINGS):
        after = _loss(W + length * direction, margins - length * change, C)
        fallen = after <= before + _ARMIJO * length * slope
        if fallen.all():
            break
        length = torch.where(fallen, length, length / 2)
    return length * direction


def _loss(W: Tensor, margins: Tensor, C: float) -> Tensor:
    return 0.5 * W.square().sum(0) + C * margins.clamp(min=0).square().sum(0)


def _conjugate_gradients(Z: Tensor, active: Tensor, gradient: Tensor, C: float) -> Tensor:
    """Return an approximate solution S of (I + 2C Zᵀ A Z) S = −gradient, column by column."""
    S = torch.zeros_like(gradient)
    residual = -gradient
    direction = residual.clone()
    square = residual.square().sum(0)
    goal = _INEXACT**2 * square
    for _ in range(_MOST_PRODUCTS):
        if not (square > goal).any():
            break
        product = direction + 2 * C * (Z.mT @ (active * (Z @ direction)))
        # A column that is done has nothing to go along: 0 / 0 would spoil it.
        length = square / (direction * product).sum(0).clamp(min=torch.finfo(Z.dtype).tiny)
        S += length * direction
        residual -= length * product
        new = residual.square().sum(0)
        direction = residual + new / square.clamp(min=torch.finfo(Z.dtype).tiny) * direction
        square = new
    return S
