"""Processes for tests: forks of a fresh one, which has no threads and has imported what they need.

So they start in a hundredth of a second. A test of the start itself runs Python anew.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from unittest.mock import patch

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        *("pytest", "scipy.sparse", "support.killing", "support.ranks", "support.strategies"),
        # What torch imports with the first step of an optimizer
        "torch._dynamo",
    ]
)


def forks():
    """Return what makes pipes and processes."""
    # In Python 3.11 the server does not know where we import from, and silently imports nothing: then
    # every process imports torch again.
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    # Processes that a test runs at once share few cores; and a fork has no threads of its parent.
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with patch.dict(os.environ, paths | threads):
        forkserver.ensure_running()
    return _CONTEXT


def called(function, *arguments, seconds=120):
    """Call a function in a process of its own, and return what it returned."""
    receiving, sending = forks().Pipe(duplex=False)
    process = forks().Process(target=_call, args=(sending, function, arguments))
    process.start()
    sending.close()
    assert receiving.poll(seconds), "it did not end in time"
    succeeded, result = receiving.recv()
    process.join(seconds)
    assert succeeded, result
    return result


def _call(connection, function, arguments):
    try:
        connection.send((True, function(*arguments)))
    except BaseException:
        connection.send((False, traceback.format_exc()))


class Command:
    """`acil` as a process, with what tests use of `subprocess.Popen`; what it says goes to files.

    ``before`` is called in the process before the command, and ``main`` in place of it.
    """

    def __init__(self, *arguments, cwd, said, environment=None, before=None, main=None):
        self.stdout, self.stderr = Path(f"{said}.out"), Path(f"{said}.err")
        environment = {**os.environ, **(environment or {})}
        arguments = list(map(str, arguments))
        content = (cwd, environment, self.stdout, self.stderr, before, main or partial(_acil, arguments))
        self._process = forks().Process(target=_run, args=content)
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self):
        """As of `subprocess.Popen`: None while it runs, negative after a signal."""
        return self._process.exitcode

    def send_signal(self, number):
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def wait(self, seconds=120):
        self._process.join(seconds)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("acil", seconds)
        return self.returncode


def finished(*arguments, cwd=".", **options):
    """Run `acil` to its end, as `subprocess.run` does with captured output."""
    with tempfile.TemporaryDirectory() as folder:
        process = Command(*arguments, cwd=cwd, said=Path(folder, "said"), **options)
        process.wait(300)
        texts = process.stdout.read_text(), process.stderr.read_text()
    return subprocess.CompletedProcess(arguments, process.returncode, *texts)


def _run(cwd, environment, stdout, stderr, before, main):
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    for descriptor, path in ((1, stdout), (2, stderr)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
    # Not the fork's own way: processes that the command starts are to notice when it is killed.
    default, *_ = multiprocessing.get_all_start_methods()
    multiprocessing.set_start_method(default, force=True)
    if before is not None:
        before()
    main()


def _acil(arguments):
    from acil.cli import main

    sys.argv = ["acil", *arguments]
    main()
