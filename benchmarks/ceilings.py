"""What the machine can do at best: products, factorizations and copies by the libraries alone."""

from __future__ import annotations

from typing import Any

import torch
from scipy.linalg import blas

from acil.core.linalg import add_gram_
from benchmarks.timing import alternating


def measure(quick: bool) -> list[dict[str, Any]]:
    """Return the speed of each operation, and its share of that of a matrix product."""
    size, rounds = (256, 3) if quick else (4096, 4)
    return [row for dtype in (torch.float64, torch.float32) for row in _of(size, dtype, rounds)]


def _of(size: int, dtype: torch.dtype, rounds: int) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(size, size, dtype=dtype, generator=generator)
    target, gram = torch.empty_like(a), torch.zeros_like(a)
    definite = torch.eye(size, dtype=dtype) * size + (a + a.T) / 2
    syrk = blas.dsyrk if dtype == torch.float64 else blas.ssyrk
    columns, c = a.numpy().T, gram.numpy().T
    triangle = size * size * (size + 1)
    work = {
        "matrix product": (lambda: torch.mm(a, a, out=target), 2 * size**3),
        "syrk of SciPy": (lambda: syrk(1.0, columns, beta=1.0, c=c, overwrite_c=1), triangle),
        "triangle of XᵀX, as the head adds it": (lambda: add_gram_(gram, a), triangle),
        "Cholesky": (lambda: torch.linalg.cholesky_ex(definite), size**3 / 3),
    }
    actions = {name: action for name, (action, _) in work.items()}
    copy = "copy, read and written"
    taken = alternating({**actions, copy: lambda: target.copy_(a)}, rounds)
    base = {"dtype": str(dtype).removeprefix("torch."), "size": size}
    rows = []
    for name, (_, operations) in work.items():
        speed = operations / taken[name] / 1e9
        rows.append({"operation": name, **base, "seconds": taken[name], "speed": speed})
        rows[-1]["ratio"] = speed / rows[0]["speed"]
    # No share: bytes a second and operations a second have none.
    speed = 2 * a.nbytes / taken[copy] / 1e9
    return [*rows, {"operation": copy, **base, "seconds": taken[copy], "speed": speed, "ratio": None}]
