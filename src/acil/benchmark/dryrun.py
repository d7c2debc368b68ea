"""What a run would do, in words, without doing it."""

from __future__ import annotations

from acil.benchmark.config import RunConfig
from acil.benchmark.estimate import (
    head_seconds,
    head_width,
    later_trained_images,
    machine_bytes,
    needed_bytes,
    seconds_per_image,
    trained_images,
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
    trained = trained_images(task) * len(config.seeds)
    later = [later_trained_images(task, job) for job in jobs]
    pace = seconds_per_image(task) if trained or any(later) else 0.0
    heads = sum(head_seconds(task, job) for job in jobs)
    lines = [
        f"{task.dataset}: {task.n_classes} classes, {len(task.data.train)} training and "
        f"{len(task.data.test)} test images, order {config.order}, base of {task.base} classes",
        f"recipe {task.recipe.name}, device {task.device}",
        f"memory: at most {needed / 2**30:.2f} GiB for heads of width up to {widest}; there are "
        + ("some" if there is None else f"{there / 2**30:.1f} GiB"),
        f"time, roughly, one after the other: {_duration(pace * trained)} for base training (all "
        f"seeds), {_duration(heads)} for analytic heads"
        + (f", {_duration(pace * sum(later))} for what other methods train" if any(later) else ""),
    ]
    if trained:
        training = task.recipe.training
        lines.append(
            f"base training: {trained / 1e6:.3g} million network inputs (all seeds; {training.epochs} "
            f"epochs, {training.auxiliary.inputs_per_image} for an image and epoch)"
        )
    if task.data.skipped:
        lines.append(f"left out: {len(task.data.skipped)} images that cannot be read")
    described = [
        f"  {job.title}" + (f": trains on {images / 1e6:.3g} million images" if images else "")
        for job, images in zip(jobs, later, strict=True)
    ]
    return "\n".join([*lines, f"{len(jobs)} jobs:", *described])


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
