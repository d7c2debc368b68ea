"""Learning by several processes: each adds up its own shard, one reduction of the sums a phase."""

from acil.distributed.group import Group, launched
from acil.distributed.learning import partial_fit

__all__ = ["Group", "launched", "partial_fit"]
