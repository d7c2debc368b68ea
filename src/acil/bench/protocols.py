"""Protocols: which training samples come when, and what is measured beside accuracies.

``class-incremental``: classes come in phases, each once. ``long-tailed``: the same, with fewer and fewer
training samples of each class. ``si-blurry``: a stream of tasks that share classes, tested on its way.

Sources:

- Liu et al., *Long-Tailed Class Incremental Learning*, ECCV 2022: the numbers of samples.
- Moon et al., *Online Class Incremental Learning on Stochastic Blurry Task Boundary via Mask and Visual
  Prompt Tuning*, ICCV 2023: Si-Blurry, in the stochastic form, which the published code always runs.

Departures from both are numbered in docs/differences.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acil.bench.datasets import Dataset
from acil.bench.methods.base import Phase
from acil.bench.plan import Grouping, Job
from acil.errors import InputError

#: How many times as many samples the first class of a long tail has as the last.
IMBALANCE = 100
#: Classes with more training samples are "many", those with at most so many "few", others "medium".
MANY, FEW = 100, 20
#: Seed of the samples that a class of a long tail keeps: the same ones in every run.
_TAIL_SEED = 0
#: Si-Blurry: percent of the classes that belong to one task, and of the others' samples that move.
DISJOINT_CLASSES, BLURRY_SAMPLES = 50, 10
#: Si-Blurry: a test each time when so many more samples have come.
TESTED_EVERY = 1000

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Part:
    """What a method learns before it is tested."""

    phase: Phase
    #: All classes that have come so far, and how many training samples, those of the part included.
    seen: Tensor
    samples: int


@dataclass(frozen=True)
class Tests:
    """What the tests of one phase found; the last one is that of the phase."""

    predictions: Tensor
    answers: Tensor
    #: Training samples so far, and accuracy, of each test.
    course: Sequence[tuple[int, float]]


class Protocol:
    """Class-incremental learning: classes come in phases, each once, with all their samples."""

    #: Whether a class may come again, so that not every method can take part.
    classes_return = False

    def training_data(self, data: Dataset) -> Dataset:
        """Return a data set, its classes not yet in order, without samples that take no part."""
        return data

    def tasks(self, data: Dataset, job: Job) -> tuple[Tensor, ...]:
        """Return the training samples of each phase of a job, in the order in which they come."""
        return tuple(
            torch.nonzero(torch.isin(data.train_labels, torch.tensor(classes))).flatten()
            for classes in job.grouping
        )

    def sizes(self, data: Dataset, job: Job) -> tuple[int, ...]:
        """Return how many samples each phase of a job has, as fast as a plan needs it."""
        return tuple(int(data.class_sizes[list(classes)].sum()) for classes in job.grouping)

    def parts(self, data: Dataset, tasks: Sequence[Tensor], index: int, number: int) -> Iterator[Part]:
        """Yield what is learnt of one phase between tests.

        ``number`` is the phase as methods count: 0 is a base phase.
        """
        come = torch.cat(list(tasks[: index + 1]))
        for start, stop in pairwise(self.stops(len(come) - len(tasks[index]), len(come))):
            rows = come[start:stop]
            labels, seen = data.train_labels[rows], torch.unique(data.train_labels[come[:stop]])
            classes = tuple(torch.unique(labels).tolist())
            phase = Phase(number, classes, data.train.subset(rows), labels, len(seen))
            yield Part(phase, seen, stop)

    def stops(self, first: int, last: int) -> list[int]:
        """Return the numbers of samples between which a phase from first to last is learnt."""
        return [first, last]

    def measured(self, data: Dataset, tests: Tests) -> dict[str, Any]:
        """Return what the record of a phase says beside accuracies."""
        return {}

    def summarised(self, data: Dataset, rows: Sequence[Record]) -> dict[str, Any]:
        """Return what a summary says beside means over the records of phases, or in their place."""
        return {}


class LongTailed(Protocol):
    """Class c of C keeps n · 0.01^(c / (C − 1)) samples; c is the data set's own label.

    n is the number of samples of the largest class. In the order "natural" the frequent classes come
    first ("ordered"), any other order mixes them ("shuffled"; that of Liu et al. is seed1993). All test
    samples stay.
    """

    def training_data(self, data: Dataset) -> Dataset:
        """Return the data with fewer training samples."""
        there = data.class_sizes.tolist()
        generator = np.random.RandomState(_TAIL_SEED)
        chosen = []
        for label, size in enumerate(tail_sizes(max(there), len(there))):
            members = torch.nonzero(data.train_labels == label).flatten()
            chosen.append(members[torch.from_numpy(generator.permutation(len(members))[:size])])
        rows = torch.cat(chosen).sort().values
        train = data.train.subset(rows).alone()
        return dataclasses.replace(data, train=train, train_labels=data.train_labels[rows])

    def measured(self, data: Dataset, tests: Tests) -> dict[str, Any]:
        """Return the accuracy on classes with many, medium and few training samples."""
        counts = data.class_sizes[tests.answers]
        right, many, few = tests.predictions == tests.answers, counts > MANY, counts <= FEW
        groups = {"many": many, "medium": ~(many | few), "few": few}
        return {f"accuracy_{name}": _percent(right[group]) for name, group in groups.items()}

    def summarised(self, data: Dataset, rows: Sequence[Record]) -> dict[str, Any]:
        """Return the same after the last phase."""
        names = ("accuracy_many", "accuracy_medium", "accuracy_few")
        return {name: rows[-1][name] for name in names}


class SiBlurry(Protocol):
    """A stream of tasks: half of the classes belong to one each, samples of the others to any.

    A method learns and is tested every `TESTED_EVERY` samples and at the end of each task, and is not
    told which classes a task has. A task without samples has no end.
    """

    classes_return = True

    def tasks(self, data: Dataset, job: Job) -> tuple[Tensor, ...]:
        """Return the samples of the tasks that have any; the split follows from the job's seed."""
        return self.split(data, max(job.covers), job.seed)

    def sizes(self, data: Dataset, job: Job) -> tuple[int, ...]:
        """Return the lengths of the tasks."""
        return tuple(map(len, self.tasks(data, job)))

    def split(self, data: Dataset, n_tasks: int, seed: int) -> tuple[Tensor, ...]:
        """Return the samples of the tasks that have any, for a number of tasks and a seed."""
        split = si_blurry(data.train_labels, len(data.class_names), n_tasks, seed)
        return tuple(rows for rows in split if len(rows))

    def grouping(self, data: Dataset, n_tasks: int, seed: int) -> Grouping:
        """Return the classes that each task is the first to show."""
        known: set[int] = set()
        groups = []
        for rows in self.split(data, n_tasks, seed):
            new = {*data.train_labels[rows].tolist()} - known
            known |= new
            groups.append(tuple(sorted(new)))
        return tuple(groups)

    def stops(self, first: int, last: int) -> list[int]:
        """Return multiples of `TESTED_EVERY`, and both ends."""
        following = first // TESTED_EVERY * TESTED_EVERY + TESTED_EVERY
        return [first, *range(following, last, TESTED_EVERY), last]

    def measured(self, data: Dataset, tests: Tests) -> dict[str, Any]:
        """Return the accuracy on each class, and the tests on the way."""
        right, answers = tests.predictions == tests.answers, tests.answers
        return {
            "accuracy_by_class": [
                _percent(right[answers == label]) for label in range(len(data.class_names))
            ],
            "tests": [list(test) for test in tests.course if test[0] % TESTED_EVERY == 0],
        }

    def summarised(self, data: Dataset, rows: Sequence[Record]) -> dict[str, Any]:
        """Return A_AUC, F and the classes that never came."""
        shares = [share for row in rows for _, share in row["tests"]]
        by_class = [row["accuracy_by_class"] for row in rows]
        last = zip(data.class_names, by_class[-1], strict=True)
        return {
            # A_AUC: the mean over all tests on the way
            "anytime_accuracy": fmean(shares) if shares else None,
            "forgetting": drop_from_best(by_class),
            "never_shown": [name for name, share in last if share is None],
        }


#: Name → protocol.
PROTOCOLS: dict[str, Protocol] = {
    "class-incremental": Protocol(),
    "long-tailed": LongTailed(),
    "si-blurry": SiBlurry(),
}


def tail_sizes(most: int, n_classes: int) -> list[int]:
    """Return how many samples each class of a long tail has, at least one.

    Examples
    --------
    >>> sizes = tail_sizes(500, 100)
    >>> sizes[:3], sizes[-1], sum(sizes)
    ([500, 477, 455], 5, 10847)
    """
    # n_c = n · (1 / imbalance)^(c / (C − 1))
    steps = max(1, n_classes - 1)
    return [max(1, int(most * (1 / IMBALANCE) ** (label / steps))) for label in range(n_classes)]


def si_blurry(labels: Tensor, n_classes: int, n_tasks: int, seed: int) -> tuple[Tensor, ...]:
    """Return the samples of each task of a Si-Blurry stream, in the order in which they come.

    Random numbers are drawn in the order of the published code, which for the same labels has the same
    tasks. Parts of classes and of samples are cut at random places, and may be empty; what is left over
    when classes do not divide by tasks never comes.
    """
    if not 1 <= n_tasks <= n_classes:
        raise InputError(
            f"A Si-Blurry stream of {n_classes} classes has from 1 to {n_classes} tasks, got {n_tasks}. "
            "Set --phases."
        )
    generator = torch.Generator().manual_seed(seed)
    n_disjoint = n_classes * DISJOINT_CLASSES // 100 // n_tasks * n_tasks
    n_blurry = (n_classes - n_disjoint) // n_tasks * n_tasks
    order = torch.randperm(n_classes, generator=generator)

    def cut(total: int) -> list[int]:
        """Return the sizes of as many parts as there are tasks, cut at random places."""
        if not total:
            return [0] * n_tasks
        places = torch.randint(0, total, (n_tasks - 1,), generator=generator).sort().values.tolist()
        return [stop - start for start, stop in pairwise([0, *places, total])]

    disjoint = torch.split(order[:n_disjoint], cut(n_disjoint))
    blurry = torch.split(order[n_disjoint : n_disjoint + n_blurry], cut(n_blurry))
    disjoint_rows, shared = (
        [torch.nonzero(torch.isin(labels, classes)).flatten() for classes in groups]
        for groups in (disjoint, blurry)
    )
    moved = cut(sum(map(len, shared)) * BLURRY_SAMPLES // 100)
    # The first ones of each task in the order of the data; fewer, if it has no more
    pool = torch.cat([rows[:count] for rows, count in zip(shared, moved, strict=True)])
    pool = pool[torch.randperm(len(pool), generator=generator)] if sum(moved) else pool
    tasks = []
    for rows, mine, count in zip(disjoint_rows, shared, moved, strict=True):
        together = torch.cat([rows, mine[count:], pool[:count]])
        pool = pool[count:]
        tasks.append(together[torch.randperm(len(together), generator=generator)])
    return tuple(tasks)


def drop_from_best(by_class: Sequence[Sequence[float | None]]) -> float | None:
    """Return what classes lose from their best accuracy at the end of an earlier task to the last one.

    That is F of Si-Blurry: the mean over classes with a best accuracy above 0; None without any.

    Examples
    --------
    >>> drop_from_best([[80.0, 0.0, None], [90.0, 10.0, None], [60.0, 20.0, 50.0]])
    10.0
    """
    *earlier, last = by_class
    drops = []
    for label, now in enumerate(last):
        best = max((row[label] or 0.0 for row in earlier), default=0.0)
        if best > 0 and now is not None:
            drops.append(best - now)
    return fmean(drops) if drops else None


def _percent(right: Tensor) -> float | None:
    """Return the share of right answers in percent; None without any answer."""
    return 100.0 * int(right.sum()) / len(right) if len(right) else None
