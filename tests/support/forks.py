"""Processes for tests: forks of a fresh one, which has no threads and has imported what they need."""

import multiprocessing
import os
import sys
from multiprocessing import forkserver
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
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path))):
        forkserver.ensure_running()
    return _CONTEXT
