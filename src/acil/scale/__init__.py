"""Learning by several processes: each adds up its own shard, one reduction of the sums a phase."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from acil.scale.group import Group, all_reduce_, launched, scattered, share

if TYPE_CHECKING:
    from acil.scale.learning import partial_fit

__all__ = ["Group", "all_reduce_", "launched", "partial_fit", "scattered", "share"]


def __getattr__(name: str) -> Any:
    # It needs scikit-learn, which a plan of a benchmark would wait for.
    if name != "partial_fit":
        raise AttributeError(f"module 'acil.scale' has no attribute {name!r}")
    return importlib.import_module("acil.scale.learning").partial_fit
