"""Files written whole or not at all, and a lock for changing one: flock, which leaves nothing behind."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from acil.errors import InputError, ModelFileError

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

_HINTS = {
    errno.ENOENT: "Create its directory first.",
    errno.ENOTDIR: "Give a path inside a directory.",
    errno.ENOSPC: "Free some space (a new file needs room beside the old one), or save somewhere else.",
    errno.EDQUOT: "Free some of your quota, or save somewhere else.",
    errno.EACCES: "Choose a directory that you may write in, or change its permissions.",
    errno.EPERM: "Choose a directory that you may write in, or change its permissions.",
    errno.EROFS: "Choose a directory on a file system that is not read-only.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
}
_POLL_SECONDS = 0.02
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_LOCKS_HERE = (errno.EBADF, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def write_tensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    *,
    make_folder: bool = False,
) -> None:
    """Write a safetensors file, whole or not at all: every one that the package writes.

    Tensors may be on any device. With ``make_folder`` the folder of the file is made if there is none.
    Raises a `ModelFileError` if the file cannot be written; a file that was there is unchanged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with replacing(path, make_folder=make_folder) as draft:
        try:
            save_file(stored, draft, metadata=dict(metadata))
        except SafetensorError as error:
            raise cannot_write(path, error) from error


@contextmanager
def replacing(
    path: str | os.PathLike[str], *, make_folder: bool = False, mode: int | None = None
) -> Iterator[Path]:
    """Write a file so that other processes see the old one or the new one, never a part.

    Yields where to write the new file: in a private folder beside the old one. It is flushed to the disk
    and renamed. A symbolic link is followed, and an existing file keeps its mode unless ``mode`` is
    given. On any failure, which is a `ModelFileError`, the folder goes and the old file stays. A killed
    process leaves its folder behind; the next one that writes in the same directory removes it.
    """
    target = _resolved(path)
    try:
        if make_folder:
            target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and not target.is_file():
            what = "a directory" if target.is_dir() else "not a regular file"
            raise ModelFileError(f"Cannot write {target}: it is {what}. Give the name of a file.")
        with _workspace(target.parent) as folder:
            draft = folder / "draft"
            # Creating it here tells which mode the umask gives; a library may create it again.
            draft.touch()
            permissions = (target if target.exists() else draft).stat().st_mode
            yield draft
            with _open(draft, os.O_RDWR) as descriptor:
                os.fchmod(descriptor, stat.S_IMODE(permissions) if mode is None else mode)
                os.fsync(descriptor)
                with _mutex:
                    if target in _held:
                        # Before it gets its name: nobody else can be waiting for it.
                        fcntl.flock(descriptor, fcntl.LOCK_EX)
                        _held[target].files.callback(_unlock, _noted(os.dup(descriptor)))
                    draft.replace(target)
            flush_name(target)
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: str | os.PathLike[str], error: Exception) -> ModelFileError:
    """Return the error that says why a file could not be written and what to do."""
    code = error.errno if isinstance(error, OSError) else None
    if code is None and (match := re.search(r"\(os error (\d+)\)", str(error))):
        code = int(match[1])  # as safetensors tells it
    reason = os.strerror(code) if code else str(error)
    hint = _HINTS.get(code or 0, "Save somewhere else.")
    return ModelFileError(f"Cannot write {path}: {reason}. {hint} An existing file was not changed.")


@contextmanager
def locked(path: str | os.PathLike[str], timeout: float | None = None) -> Iterator[None]:
    """Keep other processes and threads that do the same away from one file, which need not exist yet.

    For reading a model, changing it and saving it again. Readers need no lock. Others that have not
    finished in ``timeout`` seconds are a `ModelFileError`; by default it waits as long as it takes.

    Notes
    -----
    The lock is an flock on the file itself, or on its directory as long as there is no file, so it
    ends with its process and leaves nothing behind. `replacing` locks the new file before it takes the
    place of a locked one; whoever waited for the old file then waits for the new one. Locking the
    directory always would be simpler, but all models in it would wait for each other.
    """
    target, me = _resolved(path), threading.get_ident()
    with _mutex:
        if target in _held and _held[target].owner == me:
            raise InputError(f"This thread has already locked {path}. Lock each file once.")
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        while (lock := _try_lock(target, me)) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise ModelFileError(
                    f"{path} is being changed by another process (waited {timeout:g} s). Try again "
                    "when it has finished."
                )
            time.sleep(_POLL_SECONDS)
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
            lock.files.close()


@dataclass
class _Lock:
    """What a thread holds: the open files that it has locked, and the directory if that is one."""

    owner: int
    directory: Path | None = None
    files: ExitStack = field(default_factory=ExitStack)


_held: dict[Path, _Lock] = {}
_mutex = threading.Lock()
#: Open files with a lock that is this process's own.
_noted_files: set[int] = set()


def _noted(descriptor: int) -> int:
    _noted_files.add(descriptor)
    return descriptor


def _let_go() -> None:
    """Have no part in the locks of the process that this one is a fork of: they end with it."""
    for descriptor in _noted_files:
        os.close(descriptor)
    _noted_files.clear()
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


def _try_lock(target: Path, me: int) -> _Lock | None:
    """Return the lock of a path, None while somebody else has it."""
    lock = _Lock(me)
    try:
        # Network file systems lock exclusively only what is open for writing.
        descriptor = os.open(target, os.O_RDWR | os.O_NONBLOCK)
    except FileNotFoundError:
        with _mutex:
            if any(held.owner == me and held.directory == target.parent for held in _held.values()):
                _held[target] = lock
                return lock
        lock.directory = target.parent
        descriptor = os.open(target.parent, _DIRECTORY)
    except OSError as error:
        if error.errno not in _READ_ONLY:
            raise
        descriptor = os.open(target, os.O_RDONLY | os.O_NONBLOCK)
    with ExitStack() as files, suppress(BlockingIOError, FileNotFoundError):
        files.callback(_unlock, _noted(descriptor))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS_HERE:
                raise
            logger.warning("%s is on a file system without locks: not locked.", target)
            return lock
        # Whoever had the lock may have put another file there since we opened this one.
        now = target if target.exists() else target.parent
        if os.path.samestat(now.stat(), os.fstat(descriptor)):
            lock.files = files.pop_all()
            with _mutex:
                _held[target] = lock
                return lock
    return None


def _unlock(descriptor: int) -> None:
    if descriptor not in _noted_files:
        return  # in a fork, which has let go
    _noted_files.remove(descriptor)
    # Explicitly, because a child that runs another program may still have the same file open.
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _resolved(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path behind symbolic links, of a file that need not exist."""
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise ModelFileError(f"{os.fspath(path)!r} is not a usable path: {error}.") from error


def flush_name(path: Path) -> None:
    """Make the name of a new file durable, where the file system can: the file is in place anyway."""
    with suppress(OSError), _open(path.parent, _DIRECTORY) as directory:
        os.fsync(directory)


@contextmanager
def _open(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _workspace(parent: Path) -> Iterator[Path]:
    """Make a private folder, locked as long as its process lives, and remove it in the end."""
    for leftover in parent.glob(".acil-*.tmp"):
        # Locking fails while the process that made it lives, and where there are no locks.
        with suppress(OSError), _open(leftover, _DIRECTORY) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(leftover, ignore_errors=True)
    while True:
        folder = Path(tempfile.mkdtemp(suffix=".tmp", prefix=".acil-", dir=parent))
        # Another process may have taken it for a leftover before it was locked.
        with suppress(FileNotFoundError):
            descriptor = os.open(folder, _DIRECTORY)
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if folder.exists():
                break
            os.close(descriptor)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)
