"""Time of a run by its parts: chosen functions of the package are wrapped while it runs."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from acil.core import cholesky, sums
from acil.core.expansion import Expansion
from acil.core.inputs import Rows
from acil.core.ridge import Ridge
from benchmarks.timing import synchronize

#: Part → where its functions are looked up, and under which name.
_PARTS: dict[str, list[tuple[Any, str]]] = {
    "transfers": [(Rows, "_block"), (Rows, "check_finite")],
    "expansion": [(Expansion, "__call__")],
    "gram": [(sums, "add_gram_")],
    "copy of gram and factor": [(cholesky.Factor, "__init__")],
    "of that, the factor": [(cholesky, "cholesky_in_place_")],
    "of that, inverses of blocks": [(cholesky, "BlockInverses")],
    "solve": [(cholesky.Factor, "solve")],
    "correction by rows": [(cholesky.Factor, "updated")],
    "condition number": [(Ridge, "_condition")],
}


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
