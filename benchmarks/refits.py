"""Learning phase by phase against scikit-learn, refitted on all data at each phase."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import Ridge, RidgeClassifier

from acil import ACILClassifier
from acil.core.expansion import Expansion
from benchmarks.problem import GAMMA, Phase, Problem
from benchmarks.timing import alternating

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
    ours = ACILClassifier(scores="ridge", expansion_size=width, gamma=GAMMA, random_state=0)
    ridge = Ridge(alpha=GAMMA, fit_intercept=False, solver="cholesky")
    classifier = RidgeClassifier(alpha=GAMMA, fit_intercept=False)
    X = expansion(torch.cat([rows for rows, _ in phases]).double()).numpy()
    y = torch.cat([labels for _, labels in phases]).numpy()
    ends = np.cumsum([len(labels) for _, labels in phases])
    labels_so_far = [y[:end] for end in ends]
    one_hot = [np.eye(seen.max() + 1)[seen] for seen in labels_so_far]
    taken = alternating(
        {
            "acil, phase by phase": lambda: _learn(ours, phases),
            "Ridge on all data": lambda: _refit(ridge, X, one_hot),
            "RidgeClassifier on all data": lambda: _refit(classifier, X, labels_so_far),
        },
        rounds,
    )
    scores = ours.decision_function(held_out.double()).numpy()
    found = ridge.predict(expansion(held_out.double()).numpy())
    # RidgeClassifier has the targets −1 and 1: its scores are on another scale.
    differences = [0.0, np.linalg.norm(found - scores) / np.linalg.norm(scores), None]
    return [
        {"width": width, "rows": problem.rows, "phases": problem.phases, "learner": name}
        | {"seconds": value, "ratio": value / taken["acil, phase by phase"], "difference": difference}
        for (name, value), difference in zip(taken.items(), differences, strict=True)
    ]


def _learn(clf: ACILClassifier, phases: list[Phase]) -> None:
    """Learn phase by phase, from the beginning, weights after each."""
    clf.fit(*phases[0]).coef_  # noqa: B018
    for phase in phases[1:]:
        clf.partial_fit(*phase).coef_  # noqa: B018


def _refit(estimator: Any, X: Any, targets: list[Any]) -> None:
    """Fit all data up to each phase."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for target in targets:
            estimator.fit(X[: len(target)], target)
