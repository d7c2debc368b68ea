"""The head against the recursion as published, and against that recursion sample by sample."""

from __future__ import annotations

from typing import Any

import torch

from acil import ACILClassifier
from acil.core.expansion import Expansion
from benchmarks import head
from benchmarks.problem import GAMMA, Problem
from benchmarks.timing import seconds


def measure(quick: bool) -> list[dict[str, Any]]:
    """Return the rows of `benchmarks/head.py`: whole runs, at the recursion's best batch size."""
    problem = head.Problem(256, 10) if quick else head.Problem(4096, 500)
    figures = head.measure(problem)
    shared = {"width": problem.width, "rows": 100 * problem.rows_each}
    return [
        {"head": name, **shared, "seconds": row["seconds"], "ratio": row["speed_up"]}
        | {"difference": row["difference"], "condition": figures["condition"]}
        for name, row in figures["heads"].items()
    ]


def measure_samples(quick: bool) -> list[dict[str, Any]]:
    """Return the time of one new sample, weights included, as the head and as the recursion learn it."""
    found = []
    for width in (128, 256) if quick else (1024, 2048, 4096):
        (features, labels), *_ = Problem(4 * width, phases=0).make()
        clf = ACILClassifier(scores="ridge", expansion_size=width, gamma=GAMMA, random_state=0)
        clf.fit(features, labels).coef_  # noqa: B018
        drops = [(features[i : i + 1] + 0.1, labels[i : i + 1]) for i in range(32)]
        ours = [seconds(lambda m=clf, d=drop: m.partial_fit(*d).coef_) for drop in drops]
        expansion = Expansion.draw(features.shape[1], width, "relu", seed=0)
        theirs = _recursion(expansion, features.double(), clf.coef_.shape[0])
        found.append({"width": width, "seconds": sorted(ours)[len(ours) // 2], "recursion": theirs})
        found[-1] |= {"anew": head.anew_seconds(clf), "ratio": theirs / found[-1]["seconds"]}
    return found


def _recursion(expansion: Expansion, features: torch.Tensor, classes: int) -> float:
    """Return the median time of Eq. (9) and (10) for one sample."""
    R = torch.eye(expansion.size, dtype=torch.float64) / GAMMA
    W = torch.zeros(expansion.size, classes, dtype=torch.float64)

    def step(row: torch.Tensor) -> None:
        x = expansion(row)
        Rx = R @ x.T
        # Eq. (10) for one row: K is a number
        R.sub_(Rx @ Rx.T / (1 + float(x @ Rx)))
        y = torch.zeros(1, classes, dtype=torch.float64)
        y[0, 0] = 1
        W.add_(R @ x.T @ (y - x @ W))

    taken = sorted(seconds(lambda i=i: step(features[i : i + 1])) for i in range(32))
    return taken[len(taken) // 2]
