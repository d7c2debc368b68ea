"""Jobs side by side: each in a process of its own, so that one that dies takes no other with it."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from acil.benchmark.config import RunConfig
from acil.benchmark.estimate import longest_first
from acil.benchmark.job import Failure, attempt
from acil.benchmark.plan import Job
from acil.benchmark.rundir import RunDirectory
from acil.benchmark.task import Task, prepare
from acil.errors import ACILError, ModelFileError

logger = logging.getLogger(__name__)

#: Seconds that a process has to end after it was asked to.
_PATIENCE = 5.0


@dataclass(frozen=True)
class _Ended:
    """The last thing that a process tells."""

    text: str | None = None
    is_result: bool = False
    #: Whether a file could not be written, which stops the whole run.
    stops_all: bool = False


@dataclass
class _Worker:
    job: Job
    process: Any
    connection: Connection
    ended: _Ended | None = None


def run_side_by_side(task: Task, jobs: Sequence[Job], out: Path) -> list[Failure]:
    """Run jobs in as many processes as the settings say; return those that failed.

    Parameters
    ----------
    task : Task
    jobs : sequence of Job
    out : Path
        The run directory, which this process has locked.

    Raises
    ------
    ModelFileError
        If a job could not write: then all are stopped.
    """
    # A forked process could not use a GPU that this one has touched.
    spawn = multiprocessing.get_context("spawn")
    # The longest first, or the last one would run alone in the end.
    waiting = longest_first(task, jobs)
    failures = list[Failure]()
    running: list[_Worker] = []
    try:
        while waiting or running:
            while waiting and len(running) < task.config.jobs:
                running.append(_started(spawn, task, waiting.pop(0), out))
            wait([part for worker in running for part in (worker.connection, worker.process.sentinel)])
            for worker in running:
                _hear(worker, task)
            for worker in [w for w in running if not w.process.is_alive()]:
                running.remove(worker)
                failure = _outcome(worker, task)
                failures += [failure] if failure else []
    finally:
        _stop(running)
    return failures


def _started(spawn: Any, task: Task, job: Job, out: Path) -> _Worker:
    receiving, sending = spawn.Pipe(duplex=False)
    arguments = (task.config, out, job, sending, task.progress is not None)
    process = spawn.Process(target=_work, args=arguments, name=job.title, daemon=True)
    process.start()
    sending.close()
    return _Worker(job, process, receiving)


def _hear(worker: _Worker, task: Task) -> None:
    """Take what a process has told so far."""
    try:
        while worker.connection.poll():
            message = worker.connection.recv()
            if isinstance(message, _Ended):
                worker.ended = message
            elif task.progress is not None:
                task.progress(message)
    except EOFError:
        # It has closed its end: only the end of the process is to come.
        worker.process.join()


def _outcome(worker: _Worker, task: Task) -> Failure | None:
    _hear(worker, task)
    worker.connection.close()
    code, ended = worker.process.exitcode, worker.ended
    if ended is not None and ended.stops_all:
        raise ModelFileError(ended.text)
    if ended is not None and ended.text is None and code == 0:
        return None
    if ended is not None and ended.text is not None:
        return Failure(worker.job, ended.text, ended.is_result)
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    text = f"Its process {how}."
    logger.warning("%s failed: %s", worker.job.title, text)
    return Failure(worker.job, text)


def _stop(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        worker.process.join(_PATIENCE)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.connection.close()


def _work(config: RunConfig, out: Path, job: Job, connection: Connection, tell: bool) -> None:
    """Do one job, in a new process."""
    # Ctrl-C reaches every process of the terminal; the first one stops the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(max(1, torch.get_num_threads() // config.jobs))
    try:
        task = prepare(config, out, connection.send if tell else None)
        failure = attempt(task, job, RunDirectory(out))
    except ModelFileError as error:
        connection.send(_Ended(str(error), stops_all=True))
    except ACILError as error:
        connection.send(_Ended(str(error)))
    else:
        connection.send(_Ended(failure.text, failure.is_result) if failure else _Ended())
    connection.close()


def _end_with_parent() -> None:
    """End this process when the one that started it is gone: nobody else has locked the directory."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
