"""The head by solver, precision, width and number of phases, against the bare calls of its libraries."""

from __future__ import annotations

from typing import Any

import torch

from acil import ACILClassifier
from acil.analytic.linalg import add_gram_, cholesky_
from benchmarks.problem import GAMMA, Phase, Problem
from benchmarks.timing import fastest, seconds

HEADS = {
    "gram, float64": {"solver": "gram", "dtype": "float64"},
    "gram, mixed": {"solver": "gram", "dtype": "mixed"},
    "recursive, float64": {"solver": "recursive", "dtype": "float64"},
}


def measure(quick: bool) -> list[dict[str, Any]]:
    """Return seconds of whole runs, weights after each phase, and their ratio to the bare calls."""
    full = (1024, 2048, 4096), (1, 5, 25, 50), 10_000
    widths, phases, rows = ((128, 256), (1, 5), 1000) if quick else full
    found = []
    for width in widths:
        for k in phases:
            problem = Problem(rows, phases=k).make()
            # Each time, so that both meet the same machine
            bare = bare_calls(width, rows)
            calls = bare["syrk"] + (k + 1) * bare["cholesky"]
            for name, settings in HEADS.items():
                taken = learn_all(problem, width, **settings)
                found.append({"width": width, "phases": k, "head": name, "rows": rows})
                found[-1] |= {"seconds": taken, "bare": calls, "ratio": taken / calls}
    return found


def learn_all(problem: list[Phase], width: int, **settings: Any) -> float:
    """Return the seconds of learning all phases, with weights after each."""
    clf = ACILClassifier(expansion_size=width, gamma=GAMMA, random_state=0, **settings)
    return sum(seconds(lambda p=phase: clf.partial_fit(*p).coef_) for phase in problem)


def bare_calls(width: int, rows: int) -> dict[str, float]:
    """Return the seconds of the triangle of XᵀX over all rows, and of one Cholesky factorization."""
    generator = torch.Generator().manual_seed(0)
    block = torch.randn(min(rows, 2**24 // (8 * width)), width, dtype=torch.float64, generator=generator)
    gram = torch.zeros(width, width, dtype=torch.float64)
    add_gram_(gram, block)
    syrk = fastest(lambda: add_gram_(gram, block)) * rows / len(block)
    gram.diagonal().add_(GAMMA)
    work = torch.empty_like(gram)
    copied = fastest(lambda: work.copy_(gram))
    factorized = fastest(lambda: cholesky_(work.copy_(gram), GAMMA))
    return {"syrk": syrk, "cholesky": max(factorized - copied, 0.0)}
