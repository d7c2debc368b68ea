"""Writing files so that nobody ever sees a part of one."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from acil.errors import ModelFileError
from acil.locking import move_locked, resolved

_HINTS = {
    errno.ENOENT: "Create its directory first.",
    errno.ENOTDIR: "Give a path inside a directory.",
    errno.ENOSPC: "Free some space, or save somewhere else.",
    errno.EDQUOT: "Free some of your quota, or save somewhere else.",
    errno.EACCES: "Choose a directory that you may write in, or change its permissions.",
    errno.EPERM: "Choose a directory that you may write in, or change its permissions.",
    errno.EROFS: "Choose a directory on a file system that is not read-only.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
}


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Write a file so that other processes see the old one or the new one, never a part.

    The new file is written in a private folder beside the old one, flushed to the disk and renamed.
    On any failure the folder goes and the old file stays. A killed process leaves its folder behind;
    the next one that writes in the same directory removes it.

    Parameters
    ----------
    path : str or path-like
        File to replace or create. A symbolic link is followed. An existing file keeps its mode.

    Yields
    ------
    Path
        Where to write the new file.

    Raises
    ------
    ModelFileError
        If the file cannot be written.
    """
    target = resolved(path)
    try:
        before = _regular_mode(target)
        with _workspace(target.parent) as folder:
            draft = folder / "draft"
            # Creating it here tells which mode the umask gives; a library may create it again.
            created = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
            mode = stat.S_IMODE(os.fstat(created).st_mode) if before is None else before
            os.close(created)
            yield draft
            _put(draft, target, mode)
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: str | os.PathLike[str], error: Exception) -> ModelFileError:
    """Return the error that says why a file could not be written and what to do."""
    code = error.errno if isinstance(error, OSError) else None
    reason = os.strerror(code) if code else str(error)
    hint = _HINTS.get(code or 0, "Save somewhere else.")
    return ModelFileError(f"Cannot write {path}: {reason}. {hint} An existing file was not changed.")


def _regular_mode(target: Path) -> int | None:
    """Return the mode of an existing file, None if there is none; refuse anything else."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise ModelFileError(f"Cannot write {target}: it is a directory. Give the name of a file.")
    if not stat.S_ISREG(mode):
        raise ModelFileError(f"Cannot write {target}: it is not a regular file. Give another name.")
    return stat.S_IMODE(mode)


def _put(draft: Path, target: Path, mode: int) -> None:
    """Move a finished file to its place and make both file and name durable."""
    descriptor = os.open(draft, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
        kept = move_locked(draft, target, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    if not kept:
        os.close(descriptor)
    # The new file is in place: not being able to flush its name is no reason to report a failure.
    with suppress(OSError):
        directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


@contextmanager
def _workspace(parent: Path) -> Iterator[Path]:
    """Make a private folder, locked as long as its process lives, and remove it in the end."""
    _remove_leftovers(parent)
    while True:
        folder = parent / f".acil-{secrets.token_hex(8)}.tmp"
        folder.mkdir(mode=0o700)
        descriptor = _open_locked(folder)
        if descriptor is not None:
            break
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _remove_leftovers(parent: Path) -> None:
    for folder in parent.glob(".acil-*.tmp"):
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                # Fails while the process that made it lives, and where there are no locks.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def _open_locked(folder: Path) -> int | None:
    """Open and lock a folder just made; None if another process took it for a leftover."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    if folder.exists():
        return descriptor
    os.close(descriptor)
    return None
