"""One thread for small work: several would wait for each other longer than they compute."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

import torch

#: Multiplications up to which a second thread saves little: docs/performance.md, "A busy machine".
SMALL = 2**24

Function = TypeVar("Function", bound=Callable[..., Any])


class _Mine(threading.local):
    """What this thread had before it was limited: threads of OpenMP and of MKL; None if it is not."""

    before: tuple[int, int] | None = None


_mine = _Mine()
# torch.set_num_threads also decides for threads that begin later. Its libraries have settings for one
# thread alone; where they cannot be reached, nothing is limited.
_library = ctypes.PyDLL(torch._C.__file__)
_set_openmp = getattr(_library, "omp_set_num_threads", None)
_set_mkl = getattr(_library, "MKL_Set_Num_Threads_Local", None)


@contextmanager
def threads_for(multiplications: float) -> Iterator[None]:
    """Compute in one thread what is too small to divide, anything else in as many as the caller has set.

    The innermost of nested ones counts. Other threads, and those that begin meanwhile, keep theirs.

    >>> with threads_for(1000):
    ...     torch.get_num_threads()
    1
    """
    small, before = multiplications <= SMALL, _mine.before
    if small == (before is not None) or _set_openmp is None:
        yield
    elif before is not None:
        _mine.before = None
        _set(*before)
        try:
            yield
        finally:
            _mine.before = before
            _set(1, 1)
    else:
        # The first call of torch in a thread sets them.
        threads = torch.get_num_threads()
        _mine.before = before = threads, _set(1, 1)
        try:
            yield
        finally:
            _set(*before)
            _mine.before = None


def sized(multiplications: Callable[..., float]) -> Callable[[Function], Function]:
    """Run a function in `threads_for` as many multiplications as are told by its arguments."""

    def decorate(function: Function) -> Function:
        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with threads_for(multiplications(*args, **kwargs)):
                return function(*args, **kwargs)

        return cast(Function, run)

    return decorate


def _set(openmp: int, mkl: int) -> int:
    """Set the threads of OpenMP and of MKL; return those of MKL before, 0 if they follow OpenMP's."""
    if _set_openmp is not None:
        _set_openmp(openmp)
    return 0 if _set_mkl is None else int(_set_mkl(mkl))
