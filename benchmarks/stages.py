"""Time of a run by its parts: chosen functions of the package are wrapped while it runs."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from acil.analytic import factor, head, refinement, statistics
from acil.analytic.expansion import Expansion
from acil.inputs import Rows

#: Part → where its functions are looked up, and under which name.
_PARTS: dict[str, list[tuple[Any, str]]] = {
    "transfers": [(Rows, "_block"), (Rows, "check_finite")],
    "expansion": [(Expansion, "__call__")],
    "gram": [(statistics, "add_gram_"), (statistics, "add_gram_pair_")],
    "moment": [(statistics, "product_pair"), (statistics.Statistics, "_add_moment")],
    "copy of gram and factor": [(factor.CorrectedFactor, "factorize")],
    "of that, the factor": [(factor, "Triangle")],
    "solve": [(factor.CorrectedFactor, "solve"), (factor.CorrectedFactor, "solve_corrected")],
    "residuals": [(refinement.NormalEquations, "_residual")],
    "correction by rows": [(factor.CorrectedFactor, "absorb")],
    "look at eigenvalues": [(head.GramHead, "_look_at_least_eigenvalue")],
}


def synchronize(device: torch.device) -> None:
    """Wait for the work that is queued on a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def timed_parts(device: torch.device) -> Iterator[dict[str, float]]:
    """Collect the seconds of each part; waits for the device before and after each of them."""
    seconds: dict[str, float] = defaultdict(float)

    def wrapped(part: str, action: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(action)
        def run(*args: Any, **kwargs: Any) -> Any:
            synchronize(device)
            started = time.perf_counter()
            result = action(*args, **kwargs)
            synchronize(device)
            seconds[part] += time.perf_counter() - started
            return result

        return run

    kept = [(place, name, getattr(place, name)) for own in _PARTS.values() for place, name in own]
    for part, own in _PARTS.items():
        for place, name in own:
            setattr(place, name, wrapped(part, getattr(place, name)))
    try:
        yield seconds
    finally:
        for place, name, action in kept:
            setattr(place, name, action)
