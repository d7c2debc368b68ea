"""A run by several processes, as `torchrun` starts them: rank 0 records, the others follow.

All processes go through the same jobs and phases. A method that takes shards learns and predicts with
all of them; any other runs on rank 0 alone, and the others wait.
"""

from __future__ import annotations

import dataclasses
import logging
from contextlib import ExitStack
from pathlib import Path

from acil.benchmark.config import RunConfig
from acil.benchmark.environment import environment_record
from acil.benchmark.estimate import check_memory
from acil.benchmark.job import (
    Failure,
    attempt,
    compared_with_joint,
    is_finished,
    phase_of,
    restore,
    test_set,
)
from acil.benchmark.plan import Job, ends
from acil.benchmark.rundir import RunDirectory, open_run
from acil.benchmark.task import Progress, Task, context, planned, prepare
from acil.distributed import Group
from acil.errors import ACILError, InputError, ModelFileError, ProcessLostError
from acil.methods import resolve

logger = logging.getLogger(__name__)


def run_sharded(
    config: RunConfig,
    out: Path,
    group: Group,
    *,
    resume: bool,
    force: bool,
    progress: Progress | None,
) -> tuple[list[Failure], int]:
    """Do the part of this process in a run.

    Parameters
    ----------
    config : RunConfig
    out : Path
        The run directory, in which only rank 0 reads and writes.
    group : Group
    resume, force, progress
        See `acil.benchmark.runner.run`.

    Returns
    -------
    failures : list of Failure
        Of rank 0; the others have none.
    n_jobs : int
    """
    with ExitStack() as stack:
        directory: RunDirectory | None = None
        left: list[int] = []
        with group.together():
            task = _prepared(config, out, group, progress)
            jobs = planned(task)
            check_memory(task, jobs)
            if group.leads:
                directory = stack.enter_context(open_run(out, config, task.resolved, resume, force))
                environment = {**environment_record(task.device), "processes": group.size}
                directory.records.append(environment)
                left = [i for i, job in enumerate(jobs) if not is_finished(task, job, directory)]
        left = group.exchange(left)[0]
        failures = [_done(task, jobs[i], directory) for i in left]
    return [failure for failure in failures if failure is not None], len(jobs)


def _prepared(config: RunConfig, out: Path, group: Group, progress: Progress | None) -> Task:
    if config.jobs > 1:
        raise InputError(
            f"jobs = {config.jobs} processes side by side and {group.size} that work together exclude "
            "each other. Leave out --jobs, or start without torchrun."
        )
    own = dataclasses.replace(config, device=str(group.device))
    task = prepare(own, out if group.leads else None, progress if group.leads else None)
    return dataclasses.replace(task, config=config, group=group)


def _done(task: Task, job: Job, directory: RunDirectory | None) -> Failure | None:
    if not resolve(job.method).takes_shards(job.settings):
        with task.together():
            if directory is None:
                return None
            logger.warning("%s runs on rank 0 alone: it cannot be shared out.", job.title)
            return attempt(dataclasses.replace(task, group=None), job, directory)
    if directory is not None:
        return attempt(task, job, directory)
    try:
        _follow(task, job)
    except (ModelFileError, ProcessLostError):
        raise
    except ACILError:
        # All processes have heard of it, and rank 0 records it.
        logger.info("%s failed.", job.title)
    return None


def _follow(task: Task, job: Job) -> None:
    """Make the calls that `run_job` makes on rank 0, without its files."""
    with task.together():
        method = resolve(job.method)(context(task, job, None))
        learnt = restore(task, job, method, None)
    for index in range(learnt + 1, len(job.grouping)):
        with task.together():
            method.learn(phase_of(task, job, index))
            method.predict(test_set(task, ends(job.grouping)[index])[0])
    with task.together():
        compared_with_joint(task, method)
