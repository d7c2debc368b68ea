"""A differentially private softmax classifier: for those who have the samples when they release."""

from __future__ import annotations

import math
from collections.abc import Iterator
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from acil.core.classifier import ACILClassifier, check_samples, holding
from acil.core.expansion import Frozen
from acil.core.inputs import check_same_kind, columns_of
from acil.core.model import Learnt
from acil.core.parameters import is_number
from acil.core.sums import Block
from acil.errors import InputError
from acil.privacy.release import (
    ROUNDING,
    check_budget,
    enter_release,
    gaussian,
    label_set,
    ledger_of,
    model_of,
    noisy_sums,
    on_grid,
    require_releasable,
)

# Chosen once for all data and every ε, on public samples alone (docs/privacy.md, "The forms"): a choice
# that looks at the private samples would have to be paid for. The first two are defaults.

_STEPS, _LONGEST_ERROR = 8, 0.25
#: Share of the squared sensitivity that class sums and counts get, from which the descent starts.
_FIRST_SHARE = 0.1
#: Nesterov's momentum, and the first iterate, as a share of the steps, of those that are averaged.
_MOMENTUM, _AVERAGED_FROM = 0.8, 0.75
#: Ridge, relative to the samples of a class in one direction; and what is added to it for the noise.
_RIDGE, _RIDGE_OF_NOISE = 0.05, 0.008
#: With fewer samples a class than this over ε, by the counts with noise, samples do not hide each other,
#: and weights are mostly noise. Then gradients get at least this σ: no attack on them has an area above
#: 0.55.
_FEW, _HIDING = 20.0, 5.63
#: How far class sums of the same samples may differ, as a share of what one sample can change.
_SAME = 1e-6


def private_softmax(
    model: ACILClassifier,
    X: Any,
    y: Any,
    epsilon: float,
    delta: float,
    *,
    classes: Any = None,
    steps: int | None = None,
    longest_error: float | None = None,
) -> ACILClassifier:
    """Train a softmax classifier on all samples of a model; return it as a private release.

    More accurate than `privatize` where classes have hundreds of samples, but it needs the samples
    again. The release has weights alone. The model remembers it, as it does those of `privatize`.

    Parameters
    ----------
    model : ACILClassifier
        As for `privatize`. Best without expansion, on features that were whitened by public samples.
    X : array-like of shape (n_samples, n_features)
    y : array-like of shape (n_samples,)
        All samples that the model has learnt, in any order.
    epsilon, delta : float
        Of this release. δ should be well below 1 / (number of samples).
    classes : array-like, optional
        The label set, fixed without looking at the samples. By default the classes of the model, which
        then count as public.
    steps : int, optional
        Steps of descent, by default 8. Choose it, and the next one, on public samples that resemble the
        private ones, if there are any: the smaller the noise, the more steps pay.
    longest_error : float, optional
        Largest length of (probabilities − truth) of a sample in a gradient, by default 0.25; it could be
        √2. A smaller one needs less noise, and biases more.

    Returns
    -------
    ACILClassifier
        Predicts, and is saved with ``inference=True``. It has no intercepts.

    Notes
    -----
    First class sums and counts are released, as by `privatize` without gram. They are the first step of
    a descent from zero, and tell its curvature. Let c be the clip norm. A sample x with the error
    e = softmax(Wᵀx) − y contributes x eᵀ to a gradient, scaled to a length of at most c/4, so
    gradients have that sensitivity. All releases are Gaussian mechanisms: 1/σ² adds up, also where one
    depends on the ones before it. With fewer than about 20 / ε samples a class there is more noise than
    ε asks for: there the classifier is of little use, and membership would show most.

    Examples
    --------
    >>> import numpy as np
    >>> from acil import ACILClassifier
    >>> from acil.privacy import guarantee, private_softmax
    >>> X, y = np.random.default_rng(0).random((90, 4)), np.repeat([0, 1, 2], 30)
    >>> clf = ACILClassifier(expansion_size=None, clip_norm=1.0).fit(X, y)
    >>> release = private_softmax(clf, X, y, epsilon=4.0, delta=1e-6)
    >>> guarantee(release)["epsilon"]
    4.0
    """
    epsilon, delta, noise = check_budget(epsilon, delta)
    steps = _STEPS if steps is None else steps
    longest_error = _LONGEST_ERROR if longest_error is None else longest_error
    if not (is_number(steps, Integral) and steps >= 1) or not 0 < longest_error <= math.sqrt(2):
        raise InputError(
            "steps must be an int of at least 1, and longest_error positive and at most √2. Got "
            f"{steps} and {longest_error}."
        )
    with holding(model) as state:
        expansion = require_releasable(model, state)
        rows, checked, _ = check_samples(model, X, y)
        state.check_values(rows)
        check_same_kind(checked, state.classes)
        labels = label_set(state, classes)
        columns = columns_of(checked, labels)

        def blocks() -> Iterator[Block]:
            return state.model.blocks(state.features(rows), columns, None)

        _require_samples(state, labels, blocks())
        share = noise / math.sqrt(_FIRST_SHARE)
        sums, _ = noisy_sums(state.model.ridge.sums, state, labels, share, False, expansion)
        releases = enter_release(model, state, noise)
        norm = float(expansion.clip_norm or 0) * ROUNDING
        rest = noise / math.sqrt(1 - _FIRST_SHARE)
        if float(sums.target_total.mean()) * epsilon < _FEW:
            rest = max(rest, _HIDING)
        W = _descended(blocks, sums.moment, sums.target_total, norm, rest, steps, longest_error)
    head = Frozen((W, torch.zeros(len(labels)).to(W)), sums.counts, state.model.precision, None, 1.0)
    return model_of(model, state, labels, head, ledger_of(releases, delta, epsilon))


def _require_samples(state: Learnt, labels: Any, blocks: Iterator[Block]) -> None:
    """Raise unless these are the samples of the model: else its ledger would not be theirs."""
    state.model.ridge.flush()
    sums, places = state.model.ridge.sums, columns_of(state.classes, labels)
    rest = torch.zeros(sums.gram.shape[0], len(labels), dtype=torch.float64)
    rest[:, places] = sums.moment.cpu()
    counts = torch.zeros(len(labels), dtype=torch.float64)
    counts[places] = sums.target_total
    for block, columns, _ in blocks:
        rest.index_add_(1, columns, block.T.cpu(), alpha=-1)
        counts -= torch.bincount(columns, minlength=len(labels))
    if counts.any() or float(rest.abs().max()) > _SAME * float(state.model.expansion.clip_norm or 0):
        raise InputError(
            "X and y must be all samples that the model has learnt, and no others, each with weight 1: "
            "their class sums differ. Nothing was released."
        )


def _descended(
    blocks: Any,
    moment: Tensor,
    counts: Tensor,
    norm: float,
    noise: float,
    steps: int,
    longest_error: float,
) -> Tensor:
    """Return the weights of a softmax classifier, by descent from class sums with noise.

    ``noise`` is σ of all gradients together, for a sensitivity of 1.
    """
    d, n_classes = moment.shape
    longest, n_each, means = longest_error * norm, float(counts.mean()), moment / counts
    scale, usual = noise * longest, n_each * norm**2 / d
    each = scale * math.sqrt(steps)
    # If weights have the variance τ², gradients with noise of variance s² and the curvature h are worth
    # a ridge of s² / (τ² h).
    ridge = _RIDGE * usual + _RIDGE_OF_NOISE * scale**2 * d * norm**2 / usual
    # Samples of a class curve the loss along its mean, where p (1 − p) ≤ 1/4. Near zero all samples do,
    # where p is 1 / (number of classes); whitened rows scatter within classes by ‖x‖² / d.
    along = float(means.square().sum(dim=0).mean()) / 4
    common = float(torch.linalg.matrix_norm(means, 2)) ** 2 / n_classes + norm**2 / d
    rate = 1 / (n_each * max(along, common * (1 - 1 / n_classes)) + ridge)
    # At zero all errors are about 1 long, and are scaled like any others.
    speed = rate * longest_error * (moment - moment.mean(dim=1, keepdim=True))
    W, total, first = speed.clone(), torch.zeros_like(moment), math.ceil(_AVERAGED_FROM * steps)
    for step in range(steps):
        ahead = W + _MOMENTUM * speed
        slope = gradient(blocks(), ahead, longest) + each * gaussian(d, n_classes)
        speed = _MOMENTUM * speed - rate * (on_grid(slope, each) + ridge * ahead)
        W = W + speed
        if step >= first:
            total += W
    # The mean of the later ones has less noise than the last one.
    return total / (steps - first)


def gradient(blocks: Iterator[Block], W: Tensor, longest: float) -> Tensor:
    """Return the sum of the gradients of all samples, each scaled to at most this length."""
    total = torch.zeros_like(W)
    for block, columns, _ in blocks:
        error = torch.softmax(block @ W.to(block), dim=1)
        error[torch.arange(len(columns)), columns] -= 1
        # ‖x eᵀ‖ = ‖x‖ ‖e‖
        lengths = error.norm(dim=1) * block.norm(dim=1)
        error *= (longest / lengths.clamp(min=longest)).unsqueeze(1)
        total += (block.T @ error).to(total)
    return total
