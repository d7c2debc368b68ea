"""The head by solver, precision, width and number of phases, against the bare calls of its libraries."""

from __future__ import annotations

from typing import Any

import torch

from acil import ACILClassifier
from acil.core.cholesky import cholesky_
from acil.core.linalg import add_gram_
from benchmarks.problem import GAMMA, Phase, Problem
from benchmarks.timing import fastest, seconds

HEADS = {
    "gram, float64": {"solver": "gram", "dtype": "float64"},
    "gram, mixed": {"solver": "gram", "dtype": "mixed"},
    "recursive, float64": {"solver": "recursive", "dtype": "float64"},
}


#: Width → rounds: short runs need more of them until one is undisturbed.
_ROUNDS = {1024: 5, 2048: 3, 4096: 2}


def measure(quick: bool) -> list[dict[str, Any]]:
    """Return seconds of whole runs, weights after each phase, and their ratio to the bare calls."""
    full = (1024, 2048, 4096), (1, 5, 25, 50), 10_000
    widths, phases, rows = ((128, 256), (1, 5), 1000) if quick else full
    return [row for width in widths for k in phases for row in _of(width, k, rows)]


def _of(width: int, phases: int, rows: int) -> list[dict[str, Any]]:
    problem = Problem(rows, phases=phases).make()
    bare, taken = [], {name: [] for name in HEADS}
    # In turns, so that all meet the same machine; the fastest of each counts.
    for _ in range(_ROUNDS.get(width, 1)):
        bare.append(bare_calls(width, rows))
        for name, settings in HEADS.items():
            taken[name].append(learn_all(problem, width, **settings))
    syrk, cholesky = (min(times[call] for times in bare) for call in ("syrk", "cholesky"))
    calls = syrk + (phases + 1) * cholesky
    return [
        {"width": width, "phases": phases, "head": name, "rows": rows}
        | {"seconds": min(times), "bare": calls, "ratio": min(times) / calls}
        for name, times in taken.items()
    ]


def learn_all(problem: list[Phase], width: int, **settings: Any) -> float:
    """Return the seconds of learning all phases, with weights after each."""
    clf = ACILClassifier(scores="ridge", expansion_size=width, gamma=GAMMA, random_state=0, **settings)
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
