"""Learning phase by phase against scikit-learn, refitted on all data at each phase."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import Ridge, RidgeClassifier

from acil import ACILClassifier
from acil.analytic import Expansion
from benchmarks.problem import GAMMA, Phase, Problem
from benchmarks.timing import seconds


def measure(quick: bool) -> list[dict[str, Any]]:
    """Return seconds of learning all phases; scikit-learn gets rows that are expanded already."""
    widths, rows, phases = ((128,), 1000, 3) if quick else ((1024, 2048), 10_000, 10)
    return [row for width in widths for row in _of(width, Problem(rows, phases=phases))]


def _of(width: int, problem: Problem) -> list[dict[str, Any]]:
    phases = problem.make()
    expansion = Expansion.draw(problem.features, width, "relu", seed=0)
    held_out = torch.relu(torch.randn(200, problem.features, generator=torch.Generator().manual_seed(5)))
    clf = ACILClassifier(expansion_size=width, gamma=GAMMA, random_state=0)
    ours = sum(seconds(lambda p=phase: clf.partial_fit(*p).coef_) for phase in phases)
    scores = clf.decision_function(held_out.double()).numpy()
    expanded = [(expansion(X.double()).numpy(), y.numpy()) for X, y in phases]
    rows = [{"learner": "acil, phase by phase", "seconds": ours, "ratio": 1.0, "difference": 0.0}]
    for name, estimator in (
        ("Ridge on all data", Ridge(alpha=GAMMA, fit_intercept=False, solver="cholesky")),
        ("RidgeClassifier on all data", RidgeClassifier(alpha=GAMMA, fit_intercept=False)),
    ):
        taken, found = _refitted(estimator, expanded, expansion(held_out.double()).numpy())
        row = {"learner": name, "seconds": taken, "ratio": taken / ours}
        # RidgeClassifier has the targets −1 and 1: its scores are on another scale.
        comparable = isinstance(estimator, Ridge) and not isinstance(estimator, RidgeClassifier)
        difference = np.linalg.norm(found - scores) / np.linalg.norm(scores) if comparable else None
        rows.append({**row, "difference": difference})
    return [{"width": width, "rows": problem.rows, "phases": problem.phases, **row} for row in rows]


def _refitted(estimator: Any, phases: list[Phase], held_out: Any) -> tuple[float, Any]:
    """Return the time of fitting all data up to each phase, and the scores after the last."""
    total = 0.0
    X, y = np.empty((0, held_out.shape[1])), np.empty(0, dtype=np.int64)
    for rows, labels in phases:
        X, y = np.concatenate([X, rows]), np.concatenate([y, labels])
        target = y if isinstance(estimator, RidgeClassifier) else np.eye(y.max() + 1)[y]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            total += seconds(lambda X=X, t=target: estimator.fit(X, t))
    if isinstance(estimator, RidgeClassifier):
        return total, estimator.decision_function(held_out)
    return total, estimator.predict(held_out)
