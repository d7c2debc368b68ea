"""Samples and regressions on tensors, for tests below the classifier."""

import numpy as np
import torch

from acil.core.model import require_forgettable
from acil.core.ridge import Ridge
from acil.core.sums import PRECISIONS, Sums
from support.strategies import long_double_ridge, one_hot

CPU = torch.device("cpu")


def samples(n, d, c, seed=0, shift=0.0):
    """Return rows, and the column of the class of each."""
    rng = np.random.default_rng(seed)
    rows = torch.from_numpy(rng.normal(size=(n, d)) + shift)
    return rows, torch.from_numpy(rng.integers(0, c, n))


def ill_conditioned(n, d, c, condition, seed=0):
    """Return samples whose classes show in thin directions, and γ, with κ close to ``condition``."""
    rng = np.random.default_rng(seed)
    left = np.linalg.qr(rng.normal(size=(n, d)))[0]
    right = np.linalg.qr(rng.normal(size=(d, d)))[0]
    rows = (left * np.geomspace(1, condition**-0.5, d)) @ right
    return torch.from_numpy(rows), torch.from_numpy(left[:, -c:].argmax(axis=1)), 1e-3 / condition


def weights_for(n, seed=1):
    return torch.from_numpy(np.random.default_rng(seed).uniform(0.2, 3.0, n))


def sums_of(rows, columns, c, weights=None, dtype=torch.float64):
    sums = Sums(rows.shape[1], c, dtype)
    sums.add([(rows, columns, weights)])
    return sums


def new_ridge(d, c, gamma=1.0, precision="float64", intercept=False):
    types = PRECISIONS[precision]
    return Ridge(Sums(d, c, types.sums), types, gamma, intercept)


def learn(head, rows, columns, weights=None):
    """Return a regression that has learnt more samples of the classes that it has."""
    c = len(head.counts)
    return head.learn([(rows, columns, weights)], len(columns), torch.arange(c), c)


def forget(head, rows, columns, weights=None):
    """Return a regression that has never seen some samples; all classes stay."""
    declared = torch.ones(len(head.counts), dtype=torch.bool)
    blocks = [(rows, columns, weights)]
    if isinstance(head, Ridge):
        require_forgettable(head, blocks)
    return head.forget(blocks, declared)[0]


def exact(rows, columns, c, gamma, intercept=False, weights=None):
    """Return intercepts, if asked for, above W, by NumPy in long double."""
    given = None if weights is None else weights.numpy()
    targets = one_hot(columns.numpy(), range(c))
    W, b = long_double_ridge(rows.double().numpy(), targets, gamma, intercept, given)
    return np.vstack([b, W]) if intercept else W


def condition(rows, gamma, intercept=False):
    """Return κ as we promise it: the largest eigenvalue of the sums over the least one, centred."""
    now = np.asarray(rows)
    largest = np.linalg.norm(now, 2) ** 2 + gamma
    singular = np.linalg.svd(now - now.mean(axis=0) * intercept, compute_uv=False)
    return largest / ((singular[-1] ** 2 if len(now) > now.shape[1] else 0.0) + gamma)
