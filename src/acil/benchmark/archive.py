"""Unpacking an archive that somebody else made, without letting it out of its folder."""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import IO

from acil.benchmark.download import ProgressCallback
from acil.errors import InputError

_BLOCK = 1 << 20
_MOST_FILES = 2_000_000
_DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    LZMAError,
    EOFError,
    NotImplementedError,  # a compression that this Python lacks
)


def unpack(
    archive: Path,
    root: Path,
    folder: str,
    *,
    max_bytes: int,
    replace: bool = False,
    progress: ProgressCallback | None = None,
) -> Path:
    """Unpack a tar or zip file that holds one folder.

    Everything is written beside its place and moved there when it is whole. Only folders and plain files
    are taken; links, devices, absolute paths and paths that lead upwards refuse the whole archive.

    Parameters
    ----------
    archive : Path
    root : Path
        Where the folder will lie.
    folder : str
        Name of the folder, which must be all that the archive holds.
    max_bytes : int
        Most that the files may come to when unpacked.
    replace : bool
        Whether a folder that is there may be replaced.
    progress : callable, optional

    Returns
    -------
    Path
        ``root / folder``.
    """
    target, draft = root / folder, root / f".{folder}.unpacking"
    if target.exists() and not replace:
        raise InputError(f"{target} exists already. Remove it, or use --force to unpack again.")
    if draft.exists():
        shutil.rmtree(draft)  # of a process that was killed
    try:
        draft.mkdir()
        _extract(archive, draft, folder, max_bytes, progress)
        if not (draft / folder).is_dir():
            raise InputError(f"{archive} does not hold the folder {folder!r}. Is it another archive?")
        if target.exists():
            shutil.rmtree(target)
        (draft / folder).replace(target)
    except OSError as error:
        raise InputError(f"Cannot unpack {archive} into {root}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _extract(
    archive: Path, draft: Path, folder: str, max_bytes: int, progress: ProgressCallback | None
) -> None:
    written, seen = 0, 0
    try:
        for name, source in _members(archive):
            seen += 1
            if seen > _MOST_FILES:
                raise InputError(f"{archive} holds more than {_MOST_FILES:,} files: refused.")
            path = draft.joinpath(*_checked(name, archive, folder).parts)
            if source is None:
                path.mkdir(parents=True, exist_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            written += _write(source, path, archive, max_bytes - written)
            if progress is not None:
                progress(f"unpacking {archive.name}", written, None)
    except FileExistsError as error:
        raise InputError(f"{archive} holds the same path twice ({error.filename}): refused.") from error
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        LZMAError,
        NotImplementedError,
    ) as error:
        raise InputError(
            f"{archive} is damaged or incomplete: {error}. Remove it and fetch it again."
        ) from error


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    """Yield (name, contents) of every plain file, (name, None) of folders; refuse anything else."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as file:
            for entry in file.infolist():
                _check_zip_kind(entry, archive)
                if entry.is_dir():
                    yield entry.filename, None
                else:
                    with file.open(entry) as source:
                        yield entry.filename, source
        return
    with tarfile.open(archive) as file:
        for member in file:
            # A sparse file may claim any size with a few bytes; no data set needs one.
            if not (member.isdir() or member.isreg()) or member.issparse():
                raise InputError(
                    f"{archive} holds {member.name!r}, which is a link, a device or a sparse file: "
                    "refused. Only folders and plain files are unpacked."
                )
            yield member.name, file.extractfile(member) if member.isreg() else None


def _check_zip_kind(entry: zipfile.ZipInfo, archive: Path) -> None:
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or entry.flag_bits & 1:
        raise InputError(
            f"{archive} holds {entry.filename!r}, which is a link, a device or encrypted: refused. Only "
            "folders and plain files are unpacked."
        )


def _checked(name: str, archive: Path, folder: str) -> PurePosixPath:
    """Return the path of a member if it lies inside the expected folder."""
    path = PurePosixPath(name)
    unsafe = path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name
    if unsafe or path.parts[:1] != (folder,):
        raise InputError(
            f"{archive} holds the path {name!r}, which does not lie in {folder!r}: refused. Nothing was "
            "unpacked."
        )
    return path


def _write(source: IO[bytes], path: Path, archive: Path, room: int) -> int:
    written = 0
    # "x": a path that occurs twice must not be written through.
    with path.open("xb") as file:
        while block := source.read(_BLOCK):
            written += len(block)
            # Counted as it comes out, whatever the archive says about itself.
            if written > room:
                raise InputError(
                    f"{archive} unpacks to more than it should (stopped at {path.name}): refused. "
                    "Nothing was unpacked."
                )
            file.write(block)
        os.fsync(file.fileno())
    return written
