"""A differentially private release: the sums of a model with calibrated noise, as a model of its own."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np
import torch
from scipy.special import ndtr, ndtri
from torch import Tensor

from acil.core.classifier import ACILClassifier, adopt, holding, learnt_of, origin_of
from acil.core.expansion import AnalyticModel, Expansion, Frozen
from acil.core.inputs import (
    Labels,
    check_gamma,
    check_labels,
    check_same_kind,
    columns_of,
    union,
)
from acil.core.linalg import mirror_
from acil.core.model import Learnt
from acil.core.parameters import FITTED, is_number
from acil.core.ridge import Ridge
from acil.core.scores import Calibration, Discriminants
from acil.core.sums import Sums
from acil.errors import InputError, MissingExtraError, UnsupportedError
from acil.extras import install
from acil.privacy import UNIT

#: How the squared sensitivity is divided between gram, moment and counts: noise in gram hurts most.
_SHARES = {True: (0.78, 0.2, 0.02), False: (0.0, 0.9, 0.1)}
#: Least spread of classes, relative to the variance of the noise: even then, directions tell something.
_LEAST_SPREAD = 1e-2
#: Rows may be longer than the clip norm by rounding.
ROUNDING = 1 + 1e-9
#: How much finer than the noise the grid is to which sums with noise are rounded: 2⁻¹⁰.
_GRID_BITS = 10
#: Least ridge, as a share of the mean eigenvalue.
_LEAST_GAMMA = 1e-3
#: Largest ε, beyond which nothing is private, and most noise, in units of what a sample adds.
_MOST_EPSILON, _MOST_NOISE = 1e6, 1e6


def privatize(
    model: ACILClassifier,
    epsilon: float,
    delta: float,
    *,
    classes: Any = None,
    gram: bool = True,
    gamma: float | None = None,
) -> ACILClassifier:
    """Return a release of a model that is (ε, δ)-differentially private for its head.

    Gaussian noise is added to the sums; everything else follows from them and from public settings. The
    model remembers its releases: each further one of the same samples states the ε of all together.

    Parameters
    ----------
    model : ACILClassifier
        Learnt with a ``clip_norm`` that was chosen without the samples, in float64, with sums. Its
        expansion and settings count as public. It keeps its exact sums: do not give it away.
    epsilon, delta : float
        Of this release. δ should be well below 1 / (number of samples).
    classes : array-like, optional
        The label set, fixed without looking at the samples. By default the classes of the model, which
        then count as public.
    gram : bool, default=True
        Without it only class sums and counts are released, with less noise, and samples count as
        scattered equally in all directions. Best for features that were whitened by public samples.
    gamma : float, optional
        Ridge strength, chosen without the samples. By default as large as the noise in gram.

    Returns
    -------
    ACILClassifier
        Predicts like any other and can be saved, but neither learns nor forgets nor merges.

    Notes
    -----
    With ‖x‖ ≤ c, one sample changes gram by x xᵀ, of norm at most c², moment by at most c, and counts by
    1. Divided by these bounds and multiplied by the roots of their shares, the three together change by
    at most 1 in Euclidean norm. For gram this is the norm of the full matrix: entries off its diagonal,
    which occur twice, get half the variance. The noise multiplier σ of this Gaussian mechanism comes
    from dp-accounting. Repeated releases compose exactly: 1/σ² adds up.

    Noise comes from the operating system's entropy, never from ``random_state``. The proof is about real
    numbers. Sums with noise are rounded to a thousandth of the noise, so that the last bits of
    floating-point numbers do not tell more.

    Examples
    --------
    >>> import numpy as np
    >>> from acil import ACILClassifier
    >>> from acil.privacy import guarantee, privatize
    >>> X = np.random.default_rng(0).random((90, 4))
    >>> clf = ACILClassifier(expansion_size=None, clip_norm=1.0).fit(X, np.repeat([0, 1, 2], 30))
    >>> release = privatize(clf, epsilon=4.0, delta=1e-6)
    >>> guarantee(release)["epsilon"]
    4.0
    """
    epsilon, delta, noise = check_budget(epsilon, delta)
    gamma = None if gamma is None else check_gamma(gamma, "float64")
    with holding(model) as state:
        expansion = require_releasable(model, state)
        labels = label_set(state, classes)
        ridge = state.model.ridge
        ridge.flush()
        sums, spread = noisy_sums(ridge.sums, state, labels, noise, gram, expansion)
        releases = enter_release(model, state, noise)
    if gamma is None:
        gamma = spread + _LEAST_GAMMA * float(sums.gram.diagonal().mean())
    head = Ridge(sums, state.model.precision, gamma, bool(model.fit_intercept))
    return model_of(model, state, labels, head, ledger_of(releases, delta, epsilon))


def combine(releases: Sequence[ACILClassifier], *, disjoint: bool) -> ACILClassifier:
    """Add up private releases: of sites, or of phases.

    Parameters
    ----------
    releases : sequence of ACILClassifier
        Made by `privatize`, with the same expansion.
    disjoint : bool
        Whether no sample is in two of them. Then ε is the largest of theirs, else that of all together.
        This cannot be checked: if you do not know, say False.

    Returns
    -------
    ACILClassifier
    """
    states = [learnt_of(release) for release in releases]
    ledgers = [state.release for state in states]
    for ledger in ledgers:
        if ledger is None or not ledger["private"]:
            raise InputError("combine needs releases made by privatize: plain sums never mix with them.")
    if not states:
        raise InputError("combine needs at least one release.")
    known = [{entry["id"] for entry in ledger["releases"]} for ledger in ledgers if ledger]
    if len(set().union(*known)) < sum(map(len, known)):
        raise InputError("A release is given twice, or with one that it is part of.")
    if any(isinstance(state.model.head, Frozen) for state in states):
        raise UnsupportedError(
            "combine adds up sums, which a release made by private_softmax does not have."
        )
    total = states[0].model.ridge.clone()
    merged = replace(states[0], model=states[0].model.with_head(total))
    for release, state in zip(releases[1:], states[1:], strict=True):
        origin_of(releases[0]).require_same(origin_of(release))
        check_same_kind(state.classes, merged.classes)
        merged = merged.merged(state.model.ridge.sums, state.classes, None)
    delta = min(ledger["delta"] for ledger in ledgers if ledger)
    entries = [ledger["releases"] for ledger in ledgers if ledger]
    # In parallel, the samples of the release with the least noise have the largest ε.
    charged = (
        max(entries, key=_loss) if disjoint else [entry for of_model in entries for entry in of_model]
    )
    gamma = math.sqrt(sum(release.gamma_**2 for release in releases))
    first, sums = releases[0], merged.model.ridge.sums
    head = Ridge(sums, merged.model.precision, gamma, bool(first.fit_intercept))
    return model_of(first, merged, merged.classes, head, ledger_of(charged, delta))


def guarantee(model: ACILClassifier) -> dict[str, Any] | None:
    """Return what a release guarantees; None for a model without a guarantee.

    Parameters
    ----------
    model : ACILClassifier

    Returns
    -------
    dict or None
        ``epsilon``, ``delta`` and their ``unit``; and ``area``, the largest area under the ROC curve
        that any attack on the membership of a sample can have. 0.5 is chance.
    """
    ledger = learnt_of(model).release
    if ledger is None or not ledger["private"]:
        return None
    # With a sample or without: N(1, σ²) or N(0, σ²) at best. A draw of one is above a draw of the other
    # with probability Φ(1 / (σ √2)).
    area = float(ndtr(math.sqrt(_loss(ledger["releases"]) / 2)))
    return {"epsilon": ledger["epsilon"], "delta": ledger["delta"], "unit": UNIT, "area": area}


def accountant() -> Any:
    """Return dp-accounting's functions for Gaussian noise; raise if it is not installed."""
    try:
        import dp_accounting
    except ImportError as error:
        raise MissingExtraError(
            f"Private releases need the package dp-accounting. Install it with: {install('privacy')}"
        ) from error
    return dp_accounting


def check_budget(epsilon: Any, delta: Any) -> tuple[float, float, float]:
    """Return ε, δ and the noise that they ask for; raise unless they are a budget."""
    if not (is_number(epsilon, Real) and 0 < epsilon <= _MOST_EPSILON):
        raise InputError(
            f"epsilon must be a positive number, at most {_MOST_EPSILON:g}. Got {epsilon!r}."
        )
    if not (is_number(delta, Real) and 0 < delta < 1):
        raise InputError(f"delta must be a number between 0 and 1. Got {delta!r}.")
    noise = float(accountant().get_sigma_gaussian(float(epsilon), float(delta)))
    if noise > _MOST_NOISE:
        raise InputError(
            f"epsilon = {epsilon:g} and delta = {delta:g} ask for {noise:.1e} times as much noise as a "
            "sample adds, which leaves nothing. Give a larger budget."
        )
    return float(epsilon), float(delta), noise


def require_releasable(model: ACILClassifier, state: Learnt) -> Expansion:
    """Return the expansion of a model, or raise if no private release of it can be made."""
    state.require_sums_of_samples()
    expansion = state.model.expansion
    if expansion.projection is not None and expansion.activation in FITTED:
        raise UnsupportedError(
            f"A release needs an expansion that says nothing of the samples. That of this model, "
            f"activation={expansion.activation!r}, was made from samples. Learn with another activation."
        )
    if expansion.clip_norm is None:
        raise UnsupportedError(
            "A release needs rows of bounded length. Learn the model with clip_norm, chosen without the "
            "samples."
        )
    if not state.clipped:
        raise UnsupportedError(
            "A release needs rows that acil itself has clipped. This model has sums that were made "
            "elsewhere: nobody can tell how long their rows were."
        )
    if state.scaling is not None:
        raise UnsupportedError(
            "A release needs features whose scale says nothing of the samples. This model has "
            "standardize=True: scale them by public numbers before learning."
        )
    if state.model.precision.name != "float64":
        raise UnsupportedError(
            f'A release needs sums in float64. This model has dtype="{state.model.precision.name}".'
        )
    return expansion


def label_set(state: Learnt, classes: Any) -> Labels:
    """Return the labels that are released, whether they have samples or not."""
    labels = state.classes if classes is None else np.unique(check_labels(classes))
    check_same_kind(labels, state.classes)
    if not np.isin(state.classes, labels).all():
        raise InputError("The label set lacks classes of the model. Give them all.")
    return labels


def noisy_sums(
    exact: Sums, state: Learnt, labels: Any, noise: float, with_gram: bool, expansion: Expansion
) -> tuple[Sums, float]:
    """Return sums with noise that could be those of samples, and the spread of the noise in gram."""
    d, norm = expansion.size, float(expansion.clip_norm or 0) * ROUNDING
    places = columns_of(state.classes, labels)
    share_gram, share_moment, share_counts = _SHARES[with_gram]
    sums = Sums(d, len(labels), torch.float64)
    moment, counts = sums.moment.clone(), torch.zeros(len(labels), dtype=torch.float64)
    moment[:, places], counts[places] = exact.moment.cpu(), exact.target_total
    noise_moment, noise_counts = noise * norm / math.sqrt(share_moment), noise / math.sqrt(share_counts)
    moment = on_grid(moment + noise_moment * gaussian(d, len(labels)), noise_moment)
    counts = on_grid(counts + noise_counts * gaussian(len(labels)), noise_counts)
    # A class of the label set is there, whether it has samples or not.
    counts = _drawn(counts.unsqueeze(0), noise_counts**2).clamp(min=1.0)[0]
    moment = _drawn(moment / counts, (noise_moment / counts) ** 2) * counts
    between = (moment / counts) @ moment.T
    if with_gram:
        scale = noise * norm**2 / math.sqrt(share_gram)
        noise_gram = gaussian(d, d)
        # Symmetric: variance 1 on the diagonal, 1/2 beside it
        gram = mirror_(exact.gram.cpu().clone()) + scale / 2 * (noise_gram + noise_gram.T)
        gram = on_grid(gram, scale)
        # Sums over samples have a scatter within classes that has no negative eigenvalue.
        values, vectors = torch.linalg.eigh(gram - between)
        within = (vectors * values.clamp(min=0.0)) @ vectors.T
        # The largest eigenvalue of such noise
        spread = scale * math.sqrt(2 * d)
    else:
        within, spread = torch.eye(d, dtype=torch.float64) * (counts.sum() * norm**2 / d), 0.0
    with sums.matrix.changing(sums.version) as matrix:
        matrix.copy_(within + between)
    sums.version = sums.matrix.version
    sums.moment, sums.target_total, sums.counts = moment, counts, counts.round().long()
    sums.total, sums.total_weight = moment.sum(dim=1), float(counts.sum())
    sums.n_samples = int(sums.counts.sum())
    return sums, spread


def _drawn(values: Tensor, variance: Tensor | float) -> Tensor:
    """Draw columns towards their mean by the share of their spread that is noise (James and Stein)."""
    centre = values.mean(dim=1, keepdim=True)
    noise = torch.as_tensor(variance, dtype=values.dtype) * torch.ones(values.shape[1])
    spread = float((values - centre).square().mean() - noise.mean())
    real = max(spread, _LEAST_SPREAD * float(noise.mean()), 1e-300)
    return centre + (values - centre) * (real / (real + noise))


def gaussian(*shape: int) -> Tensor:
    """Return standard normal numbers, each from 8 bytes of the operating system's entropy."""
    # 52 bits: with one more, adding 0.5 would round, and a number could be infinite.
    bits = np.frombuffer(os.urandom(8 * math.prod(shape)), dtype=np.uint64) >> np.uint64(12)
    return torch.from_numpy(ndtri((bits + 0.5) * 2.0**-52)).reshape(shape)


def on_grid(values: Tensor, scale: float) -> Tensor:
    """Round numbers with noise of this scale to a grid on which their last bits tell nothing.

    Noise has finitely many values, so all bits of a sum tell what was added to it. The grid is far finer
    than the noise and far coarser than these values and all rounding of sums. Its steps are a power of
    two, by which numbers are divided exactly.
    """
    step = 2.0 ** (math.floor(math.log2(scale)) - _GRID_BITS)
    return (values / step).round() * step


def _loss(entries: Sequence[dict[str, Any]]) -> float:
    """Return Σ 1/σ² of releases of the same samples."""
    return math.fsum(entry["noise"] ** -2 for entry in entries)


def ledger_of(
    entries: list[dict[str, Any]], delta: float | None = None, alone: float | None = None
) -> dict[str, Any]:
    """Return what a model remembers of its releases, and what a release says of itself if it has a δ."""
    epsilon = alone
    if delta is not None and (alone is None or len(entries) > 1):
        epsilon = float(accountant().get_epsilon_gaussian(_loss(entries) ** -0.5, delta))
    return {"private": delta is not None, "releases": entries, "epsilon": epsilon, "delta": delta}


def enter_release(model: ACILClassifier, state: Learnt, noise: float) -> list[dict[str, Any]]:
    """Enter a release into the ledger of its model, before anybody has it; return all so far."""
    before = [] if state.release is None else state.release["releases"]
    releases = [*before, {"id": secrets.token_hex(16), "noise": noise}]
    adopt(model, replace(state, release=ledger_of(releases)))
    return releases


def model_of(
    origin: ACILClassifier, state: Learnt, labels: Any, head: Ridge | Frozen, ledger: dict[str, Any]
) -> ACILClassifier:
    """Return a model with this head, and nothing of its origin but public settings."""
    gamma = "auto" if head.gamma is None else head.gamma
    settings = {**origin.get_params(), "gamma": gamma, "random_state": state.seed, "device": "cpu"}
    release = type(origin)(**settings)
    expansion = state.model.expansion
    mixer = state.model.mixer
    if isinstance(mixer, Discriminants):
        mixer = replace(mixer, draw=False)
    model = AnalyticModel(expansion, head, torch.device("cpu"), mixer)
    # What was measured on samples stays behind; typical values stand for it.
    calibration = state.calibration and Calibration.empty(0.0).merged(None)
    classes = union(labels[:0], labels)
    adopt(release, Learnt(classes, model, state.seed, calibration=calibration, release=ledger))
    release.n_features_in_ = expansion.in_features
    for name in ("feature_names_in_", "backbone_", "encoder_"):
        if hasattr(origin, name):
            setattr(release, name, getattr(origin, name))
    if hasattr(origin, "images_"):
        release.images_ = {**origin.images_, "tracked": []}
    return release
