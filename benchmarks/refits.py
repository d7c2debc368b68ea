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

_ROUNDS = 3


def measure(quick: bool) -> list[dict[str, Any]]:
    """Return seconds of learning all phases; scikit-learn gets rows that are expanded already."""
    widths, rows, phases = ((128,), 1000, 3) if quick else ((1024, 2048), 10_000, 10)
    problem = Problem(rows, phases=phases)
    return [row for width in widths for row in _of(width, problem, 1 if quick else _ROUNDS)]


def _of(width: int, problem: Problem, rounds: int) -> list[dict[str, Any]]:
    phases = problem.make()
    expansion = Expansion.draw(problem.features, width, "relu", seed=0)
    held_out = torch.relu(torch.randn(200, problem.features, generator=torch.Generator().manual_seed(5)))
    expanded = [(expansion(X.double()).numpy(), y.numpy()) for X, y in phases]
    expanded_held_out = expansion(held_out.double()).numpy()
    ridge = Ridge(alpha=GAMMA, fit_intercept=False, solver="cholesky")
    classifier = RidgeClassifier(alpha=GAMMA, fit_intercept=False)
    learners = {
        "acil, phase by phase": lambda: _learnt(width, phases, held_out),
        "Ridge on all data": lambda: _refitted(ridge, expanded, expanded_held_out),
        "RidgeClassifier on all data": lambda: _refitted(classifier, expanded, expanded_held_out),
    }
    # In turns, so that all meet the same machine; the fastest of each counts.
    turns = [{name: learner() for name, learner in learners.items()} for _ in range(rounds)]
    taken = {name: min(turn[name][0] for turn in turns) for name in learners}
    (_, scores), *others = turns[-1].values()
    # RidgeClassifier has the targets −1 and 1: its scores are on another scale.
    differences = [0.0, np.linalg.norm(others[0][1] - scores) / np.linalg.norm(scores), None]
    ours = taken["acil, phase by phase"]
    return [
        {"width": width, "rows": problem.rows, "phases": problem.phases, "learner": name}
        | {"seconds": value, "ratio": value / ours, "difference": difference}
        for (name, value), difference in zip(taken.items(), differences, strict=True)
    ]


def _learnt(width: int, phases: list[Phase], held_out: torch.Tensor) -> tuple[float, Any]:
    """Return the time of learning phase by phase, weights after each, and the scores after the last."""
    clf = ACILClassifier(expansion_size=width, gamma=GAMMA, random_state=0)
    taken = sum(seconds(lambda p=phase: clf.partial_fit(*p).coef_) for phase in phases)
    return taken, clf.decision_function(held_out.double()).numpy()


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
