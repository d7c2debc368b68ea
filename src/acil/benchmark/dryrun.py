"""What a run would do, in words, without doing it."""

from __future__ import annotations

from acil.benchmark.config import RunConfig
from acil.benchmark.estimate import (
    head_seconds,
    head_width,
    machine_bytes,
    needed_bytes,
    training_seconds,
)
from acil.benchmark.task import planned, prepare


def describe_plan(config: RunConfig) -> str:
    """Return what a run with these settings would do, need and take.

    Parameters
    ----------
    config : RunConfig
    """
    task = prepare(config, None, None)
    jobs = planned(task)
    widest = max(head_width(task, job) for job in jobs)
    needed, there = needed_bytes(task, jobs), machine_bytes(task.device)
    training = training_seconds(task) * len(config.seeds)
    heads = sum(head_seconds(task, job) for job in jobs)
    lines = [
        f"{task.dataset}: {task.n_classes} classes, {len(task.data.train)} training and "
        f"{len(task.data.test)} test images, order {config.order}, base of {task.base} classes",
        f"recipe {task.recipe.name}, device {task.device}",
        f"memory: at most {needed / 2**30:.2f} GiB for heads of width up to {widest}; there are "
        + ("some" if there is None else f"{there / 2**30:.1f} GiB"),
        f"time, roughly: {_duration(training)} for base training (all seeds), {_duration(heads)} for "
        "analytic heads; what other methods train comes on top",
    ]
    if task.data.skipped:
        lines.append(f"left out: {len(task.data.skipped)} images that cannot be read")
    return "\n".join([*lines, f"{len(jobs)} jobs:", *(f"  {job.title}" for job in jobs)])


def _duration(seconds: float) -> str:
    """Return seconds as people say them.

    Examples
    --------
    >>> _duration(0.2), _duration(90), _duration(9000)
    ('1 s', '90 s', '2.5 h')
    """
    if seconds < 300:
        return f"{max(1.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
