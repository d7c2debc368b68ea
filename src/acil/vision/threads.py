"""How many threads work on images at a time."""

from __future__ import annotations

import os

#: More threads than this only wait for memory.
MAX_THREADS = 32


def worker_threads() -> int:
    """Return the number of threads for images: one for each core that this process may use.

    Examples
    --------
    >>> 1 <= worker_threads() <= MAX_THREADS
    True
    """
    allowed = getattr(os, "sched_getaffinity", None)
    cores = len(allowed(0)) if allowed is not None else os.cpu_count() or 1
    return min(cores, MAX_THREADS)
