"""Learning by several processes: each adds up its own shard, one reduction of the sums a phase."""

from acil.scale.group import Group, all_reduce_, launched, scattered, share
from acil.scale.learning import partial_fit

__all__ = ["Group", "all_reduce_", "launched", "partial_fit", "scattered", "share"]
