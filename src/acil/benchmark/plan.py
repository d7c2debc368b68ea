"""What a run has to compute: jobs, and which numbers of phases one job covers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from acil.benchmark.protocol import phases
from acil.methods.base import Method


@dataclass(frozen=True)
class Job:
    """One pass over the data with one method.

    Attributes
    ----------
    method : str
    settings : dict
    seed : int
    grouping : tuple of tuple of int
        Classes of each phase that is learnt.
    covers : dict of int to tuple of tuple of int
        Number of phases K → its grouping, each a coarser (or the same) view of ``grouping``.
    """

    method: str
    settings: dict[str, Any]
    seed: int
    grouping: tuple[tuple[int, ...], ...]
    covers: dict[int, tuple[tuple[int, ...], ...]]

    @property
    def title(self) -> str:
        """What the job is, for messages."""
        counts = ", ".join(str(k) for k in sorted(self.covers))
        settings = "".join(f", {name} = {value}" for name, value in self.settings.items())
        return f"{self.method}, seed {self.seed}, K = {counts}{settings}"


def plan_jobs(
    methods: Sequence[tuple[str, type[Method]]],
    variants: Mapping[str, Sequence[dict[str, Any]]],
    seeds: Sequence[int],
    counts: Sequence[int],
    n_classes: int,
    base: int,
) -> list[Job]:
    """Return the jobs of a run, seed by seed so that a base network is used while it is warm.

    A method whose state does not depend on the grouping of classes into phases learns in the finest
    grouping asked for; groupings whose phases end at the same classes are read off on the way.
    """
    groupings = {k: phases(n_classes, base, k) for k in counts}
    jobs = []
    for seed in seeds:
        for name, cls in methods:
            for settings in variants[name]:
                if cls.grouping_free:
                    together = _families(groupings)
                else:
                    together = [{k: grouping} for k, grouping in groupings.items()]
                for covers in together:
                    finest = max(covers.values(), key=len)
                    jobs.append(Job(name, settings, seed, finest, covers))
    return jobs


def ends(grouping: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the number of classes seen after each phase."""
    return tuple(accumulate(len(classes) for classes in grouping))


def _families(
    groupings: dict[int, tuple[tuple[int, ...], ...]],
) -> list[dict[int, tuple[tuple[int, ...], ...]]]:
    """Collect groupings that one pass can serve, beginning with the finest."""
    left = dict(sorted(groupings.items(), key=lambda item: -len(item[1])))
    families = []
    while left:
        finest = next(iter(left.values()))
        family = {k: g for k, g in left.items() if set(ends(g)) <= set(ends(finest))}
        left = {k: g for k, g in left.items() if k not in family}
        families.append(family)
    return families
