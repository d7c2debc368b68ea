"""One process at a time: flock on a file that is replaced while it is locked."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from acil.errors import InputError, ModelFileError

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.02
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_LOCKS_HERE = (errno.EBADF, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def locked(path: str | os.PathLike[str], timeout: float | None = None) -> Iterator[None]:
    """Keep other processes and threads that do the same away from one file.

    For reading a model, changing it and saving it again. Readers need no lock.

    Parameters
    ----------
    path : str or path-like
        The file, which need not exist yet.
    timeout : float, optional
        Seconds to wait for others; by default as long as it takes.

    Raises
    ------
    ModelFileError
        If the others have not finished in time, or the directory does not exist.

    Notes
    -----
    The lock is an flock on the file itself, or on its directory as long as there is no file, so it
    ends with the process that holds it and leaves nothing behind. `acil.atomic` puts a new file in the
    place of a locked one: it locks the new one first, so that the path is locked all the time.
    Whoever waited for the old one sees that it has been replaced and waits for the new one. Locking
    the directory always would be simpler, but would make all models in it wait for each other.
    """
    target = resolved(path)
    me = threading.get_ident()
    with _mutex:
        mine = target in _held and _held[target].owner == me
    if mine:
        raise InputError(f"This thread has already locked {path}. Lock each file once.")
    try:
        lock = _acquire(target, me, None if timeout is None else time.monotonic() + timeout)
    except _BusyError:
        raise ModelFileError(
            f"{path} is being changed by another process (waited {timeout:g} s). Try again when it "
            "has finished."
        ) from None
    except OSError as error:
        raise ModelFileError(
            f"Cannot lock {path}: {error.strerror}. Give the path of a file in an existing directory."
        ) from error
    try:
        yield
    finally:
        with _mutex:
            if _held.get(target) is lock:
                del _held[target]
            for descriptor in lock.descriptors:
                _unlock(descriptor)


def move_locked(draft: Path, target: Path, descriptor: int) -> bool:
    """Rename a file; if this process has locked the path, hand the lock over to the new file.

    Parameters
    ----------
    draft, target : Path
        ``target`` as `resolved` returns it.
    descriptor : int
        The open draft.

    Returns
    -------
    bool
        Whether the lock has taken the descriptor, and will close it.
    """
    with _mutex:
        lock = _held.get(target)
        if lock is not None:
            # Before it gets its name: nobody else can be waiting for it.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        draft.replace(target)
        if lock is not None:
            lock.descriptors.append(descriptor)
        return lock is not None


def resolved(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path behind symbolic links, of a file that need not exist."""
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise ModelFileError(f"{os.fspath(path)!r} is not a usable path: {error}.") from error


class _BusyError(Exception):
    """Another process has not finished in time."""


@dataclass
class _Lock:
    """What one thread holds: open, locked files, and whether one of them is the directory."""

    owner: int
    directory: Path | None = None
    descriptors: list[int] = field(default_factory=list)


_held: dict[Path, _Lock] = {}
_mutex = threading.Lock()


def _acquire(target: Path, me: int, deadline: float | None) -> _Lock:
    while True:
        try:
            descriptor, directory = _open_for_lock(target), None
        except FileNotFoundError:
            directory = target.parent
            with _mutex:
                if any(lock.owner == me and lock.directory == directory for lock in _held.values()):
                    return _held.setdefault(target, _Lock(me))
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            supported = _flock(descriptor, deadline)
            if not supported:
                logger.warning("%s is on a file system without locks: not locked.", target)
                os.close(descriptor)
                return _Lock(me)
            # Whoever had the lock may have put a new file there.
            if _is_current(target, descriptor, directory):
                lock = _Lock(me, directory, [descriptor])
                with _mutex:
                    _held[target] = lock
                return lock
        except BaseException:
            os.close(descriptor)
            raise
        _unlock(descriptor)


def _open_for_lock(target: Path) -> int:
    try:
        # Network file systems lock exclusively only what is open for writing.
        return os.open(target, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno not in _READ_ONLY:
            raise
        return os.open(target, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def _flock(descriptor: int, deadline: float | None) -> bool:
    """Wait for the lock; False where the file system has none."""
    how = fcntl.LOCK_EX if deadline is None else fcntl.LOCK_EX | fcntl.LOCK_NB
    while True:
        try:
            fcntl.flock(descriptor, how)
        except BlockingIOError:
            if deadline is not None and time.monotonic() >= deadline:
                raise _BusyError from None
            time.sleep(_POLL_SECONDS)
        except OSError as error:
            if error.errno in _NO_LOCKS_HERE:
                return False
            raise
        else:
            return True


def _is_current(target: Path, descriptor: int, directory: Path | None) -> bool:
    try:
        now = target.stat()
    except FileNotFoundError:
        return directory is not None
    return directory is None and os.path.samestat(now, os.fstat(descriptor))


def _unlock(descriptor: int) -> None:
    # Explicitly, because a forked child may still have the same file open.
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
