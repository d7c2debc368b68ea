"""The runner: protocol, data and methods in; records out. Killed at any moment, it goes on exactly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from acil.benchmark.config import RunConfig
from acil.benchmark.dryrun import describe_plan
from acil.benchmark.environment import environment_record
from acil.benchmark.estimate import check_memory
from acil.benchmark.job import Failure, PhaseDone, attempt, is_finished
from acil.benchmark.parallel import run_side_by_side
from acil.benchmark.rundir import open_run
from acil.benchmark.sharded import run_sharded
from acil.benchmark.task import Progress, planned, prepare
from acil.distributed import Group, launched
from acil.errors import ACILError

__all__ = ["PhaseDone", "RunFailedError", "describe_plan", "run"]


class RunFailedError(ACILError):
    """Some jobs of a run failed; what the others found is recorded."""


def run(
    config: RunConfig,
    out: Path,
    *,
    resume: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Run methods under a protocol and record what comes out.

    Started by `torchrun`, each process does its part and rank 0 records; see `acil.benchmark.sharded`.

    Parameters
    ----------
    config : RunConfig
    out : Path
        The run directory.
    resume : bool
        Go on with a run that was interrupted.
    force : bool
        Replace a run that is there.
    progress : callable, optional
        Receives `PhaseDone` and the progress of base training.

    Returns
    -------
    Path
        The run directory.

    Raises
    ------
    RunFailedError
        If jobs failed. A job that fails does not stop the others. Under `torchrun`, on rank 0.
    """
    if launched():
        with Group.join(config.device) as group:
            failures, n_jobs = run_sharded(
                config, out, group, resume=resume, force=force, progress=progress
            )
        _raise_for(failures, n_jobs)
        return out
    task = prepare(config, out, progress)
    jobs = planned(task)
    check_memory(task, jobs)
    with open_run(out, config, task.resolved, resume, force) as directory:
        directory.records.append(environment_record(task.device))
        left = [job for job in jobs if not is_finished(task, job, directory)]
        if config.jobs > 1 and len(left) > 1:
            failures = run_side_by_side(task, left, out)
        else:
            failures = [failure for job in left if (failure := attempt(task, job, directory))]
    _raise_for(failures, len(jobs))
    return out


def _raise_for(failures: Sequence[Failure], n_jobs: int) -> None:
    """Raise if something failed that is not a result, or nothing came out at all."""
    broken = [failure for failure in failures if not failure.is_result]
    reasons = {failure.text for failure in failures}
    if len(failures) == n_jobs and len(reasons) == 1 and failures[0].error is not None:
        raise failures[0].error
    if broken or (failures and len(failures) == n_jobs):
        shown = " ".join(f"[{failure.job.title}] {failure.text}" for failure in broken or failures)
        raise RunFailedError(
            f"{len(broken or failures)} of {n_jobs} jobs failed; what the others found is recorded. "
            f"{shown} Mend the cause and try these again with --resume."
        )
