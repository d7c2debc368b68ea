"""The runner: protocol, data and methods in; records out. Killed at any moment, it goes on exactly.

Jobs run one after the other, or side by side in processes of their own (``--jobs``), so that one that
dies takes no other with it. Started by `torchrun`, all processes go through the same jobs and phases: a
method that takes shards learns and predicts with all of them, any other runs on rank 0 while the others
wait. Rank 0 alone reads and writes the run directory.
"""

from __future__ import annotations

import dataclasses
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from concurrent import futures
from contextlib import ExitStack, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from acil.bench.config import RunConfig
from acil.bench.estimate import check_memory, check_room, longest_first
from acil.bench.job import Failure, attempt, record_failure
from acil.bench.plan import Job
from acil.bench.prepare import PreparedRun, ProgressListener, prepare, told_left_out
from acil.bench.records import finished
from acil.bench.rundir import RunDirectory, environment_record, open_run
from acil.errors import ACILError, InputError, ModelFileError
from acil.scale import Group

logger = logging.getLogger(__name__)

#: Seconds that a process has to end after it was asked to.
_PATIENCE = 5.0


class RunFailedError(ACILError):
    """Some jobs of a run failed; what the others found is recorded."""


def run(
    config: RunConfig,
    out: Path,
    *,
    resume: bool = False,
    force: bool = False,
    progress: ProgressListener | None = None,
) -> Path:
    """Run methods under a protocol, record what comes out, and return the run directory.

    Started by `torchrun`, each process does its part and rank 0 records. ``progress`` receives
    `PhaseDone` and the progress of trainings. If jobs failed, which does not stop the others, a
    `RunFailedError` is raised in the end; under `torchrun`, on rank 0.
    """
    with ExitStack() as stack:
        group = stack.enter_context(Group.join(config.device))
        directory: RunDirectory | None = None
        unfinished: list[int] = []
        with group.together():
            if config.jobs > 1 and group.size > 1:
                raise InputError(
                    f"jobs = {config.jobs} processes side by side and {group.size} that work together "
                    "exclude each other. Leave out --jobs, or start without torchrun."
                )
            folder, listener = (out, progress) if group.leads else (None, None)
            prepared = prepare(config, folder, listener, group)
            jobs = prepared.plan()
            check_memory(prepared, jobs)
            check_room(prepared, jobs, out if group.leads else None)
            if group.leads:
                directory = stack.enter_context(open_run(out, config, prepared.resolved, resume, force))
                processes = {"processes": group.size} if group.size > 1 else {}
                directory.records.append({**environment_record(prepared.device), **processes})
                done = finished(directory.records.read())
                unfinished = [i for i, job in enumerate(jobs) if not prepared.is_finished(job, done)]
                if skipped := prepared.left_out:
                    logger.warning("%s", told_left_out(skipped))
        unfinished = group.exchange(unfinished)[0]
        waiting = [jobs[i] for i in unfinished]
        if config.jobs > 1 and len(waiting) > 1:
            failures = _run_side_by_side(prepared, waiting, out)
        else:
            failures = [failure for job in waiting if (failure := attempt(prepared, job, directory))]
    _raise_for(failures, len(jobs))
    return out


def _raise_for(failures: Sequence[Failure], n_jobs: int) -> None:
    """Raise if something failed that is not a result, or nothing came out at all."""
    broken = [failure for failure in failures if not failure.is_result]
    all_failed = bool(failures) and len(failures) == n_jobs
    error = failures[0].error if all_failed else None
    # Of a fault in the method's code, the traceback is told already.
    if isinstance(error, ACILError) and len({failure.text for failure in failures}) == 1:
        raise error
    if broken or all_failed:
        shown = " ".join(f"[{failure.job.title}] {failure.text}" for failure in broken or failures)
        raise RunFailedError(
            f"{len(broken or failures)} of {n_jobs} jobs failed; what the others found is recorded. "
            f"{shown} Mend the cause and try these again with --resume."
        )


def _run_side_by_side(prepared: PreparedRun, jobs: Sequence[Job], out: Path) -> list[Failure]:
    """Run jobs in as many processes as the settings say, a thread for each; return those that failed.

    If a job could not write, all are stopped.
    """
    # A forked process could not use a GPU that this one has touched.
    spawn = multiprocessing.get_context("spawn")
    processes: list[Any] = []
    stopping = threading.Event()
    # Ctrl-C is for this process, which stops the others: they inherit that it is blocked. Whoever starts
    # multiprocessing's own helper unblocks it again.
    resource_tracker.ensure_running()
    unheard = (signal.pthread_sigmask, (signal.SIG_BLOCK, {signal.SIGINT}))
    with futures.ThreadPoolExecutor(prepared.config.jobs, "job", *unheard) as pool:
        # The longest first, or the last one would run alone in the end.
        order = longest_first(prepared, jobs)
        shared = (spawn, prepared, out, processes, stopping)
        threads = [pool.submit(_in_process, job, *shared) for job in order]
        try:
            return [failure for done in futures.as_completed(threads) if (failure := done.result())]
        finally:
            stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for stop in ("terminate", "kill"):
                for process in processes:
                    getattr(process, stop)()
                # `wait` never hears of those that were cancelled before they began.
                futures.wait([thread for thread in threads if not thread.cancelled()], _PATIENCE)


def _in_process(
    job: Job,
    spawn: Any,
    prepared: PreparedRun,
    out: Path,
    processes: list[Any],
    stopping: threading.Event,
) -> Failure | None:
    """Run one job in a new process, pass on what it tells, and return how it failed, if it did."""
    receiving, sending = spawn.Pipe(duplex=False)
    arguments = (prepared.config, out, job, sending, prepared.progress is not None)
    process = spawn.Process(target=_work, args=arguments, name=job.title, daemon=True)
    process.start()
    processes.append(process)
    sending.close()
    told: Any = "nothing yet"
    # Until it tells how its job failed, or None, or dies
    with receiving, suppress(EOFError):
        while not isinstance(told := receiving.recv(), Failure | None):
            if prepared.progress is not None:
                prepared.progress(told)
    process.join()
    code = process.exitcode
    if isinstance(told, Failure) and told.stops_all:
        raise ModelFileError(told.text)
    if isinstance(told, Failure) or (told is None and code == 0):
        return told
    if stopping.is_set():
        return None
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    text = f"Its process {how}."
    record_failure(prepared, job, RunDirectory(out), text)
    logger.warning("%s failed: %s", job.title, text)
    return Failure(job, text)


def _work(config: RunConfig, out: Path, job: Job, connection: Connection, tell: bool) -> None:
    """Do one job, in a new process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(max(1, torch.get_num_threads() // config.jobs))
    try:
        prepared = prepare(config, out, connection.send if tell else None)
        failure = attempt(prepared, job, RunDirectory(out))
    except ACILError as error:
        failure = Failure(job, str(error), stops_all=isinstance(error, ModelFileError))
    # Without the error itself, which may not be able to travel.
    connection.send(failure and dataclasses.replace(failure, error=None))
    connection.close()


def _end_with_parent() -> None:
    """End this process when the one that started it is gone: nobody else has locked the directory."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
