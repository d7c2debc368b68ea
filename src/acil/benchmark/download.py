"""Fetching a file over HTTP: resumed where it broke off, checked before it gets its name."""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from acil import __version__
from acil.errors import ACILError, InputError
from acil.locking import locked

logger = logging.getLogger(__name__)

#: Told what is being worked on, how much is done, and of how much (None when unknown).
ProgressCallback = Callable[[str, int, int | None], None]

_BLOCK = 1 << 20
#: Left free beside what a download needs.
_SPARE_BYTES = 64 << 20
_LONGEST_WAIT = 60.0
#: Answers after which the same question may get another one.
_PASSING = (408, 425, 429, 500, 502, 503, 504)


class DownloadError(ACILError, OSError):
    """A file could not be fetched, or is not what it should be."""


@dataclass(frozen=True)
class Checksum:
    """What a file must hash to."""

    algorithm: str
    digest: str

    def matches(self, path: Path) -> bool:
        """Tell whether a file has this checksum."""
        return self.of(path) == self.digest.lower()

    def of(self, path: Path) -> str:
        """Return the checksum of a file."""
        with path.open("rb") as file:
            return hashlib.file_digest(file, self._new).hexdigest()

    def _new(self) -> hashlib._Hash:
        # MD5 is what the publishers give; it guards against accidents, not against attackers.
        return hashlib.new(self.algorithm, usedforsecurity=False)


def download(
    url: str,
    target: Path,
    *,
    checksum: Checksum | None = None,
    replace: bool = False,
    progress: ProgressCallback | None = None,
    retries: int = 5,
    backoff: float = 1.0,
    timeout: float = 30.0,
) -> Path:
    """Fetch a file, unless it is there already and right.

    What has arrived waits in ``target`` + ``.part``; an interrupted download goes on from there, in this
    call or a later one. The file gets its name only when its checksum is right.

    Parameters
    ----------
    url : str
        http or https.
    target : Path
        Its folder must exist.
    checksum : Checksum, optional
    replace : bool
        Whether a file with a wrong checksum at ``target`` may be replaced.
    progress : callable, optional
    retries : int
        Attempts in a row that may bring nothing before giving up.
    backoff : float
        Seconds before the second attempt, doubled before each further one.
    timeout : float
        Seconds without an answer.

    Returns
    -------
    Path
        ``target``.

    Raises
    ------
    DownloadError
        With the steps to do by hand.
    """
    if not url.lower().startswith(("http://", "https://")):
        raise InputError(f"The address must begin with http:// or https://, got {url!r}.")
    with locked(target):  # a second process waits, and then finds the file
        if target.exists() and not _must_replace(target, checksum, replace):
            return target
        _Transfer(url, target, checksum, progress, timeout).run(retries, backoff)
    return target


def _must_replace(target: Path, checksum: Checksum | None, replace: bool) -> bool:
    found = None if checksum is None else checksum.of(target)
    if checksum is None or found == checksum.digest.lower():
        return False
    if replace:
        return True
    raise DownloadError(
        f"{target} has the {checksum.algorithm} {found}, but the official file has {checksum.digest}: "
        "it is incomplete or another file. Remove it, or use --force to fetch it again."
    )


class _Interrupted(Exception):
    """The connection broke or the server is busy: worth another attempt, perhaps after a wait."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


class _Transfer:
    """One file on its way."""

    def __init__(
        self,
        url: str,
        target: Path,
        checksum: Checksum | None,
        progress: ProgressCallback | None,
        timeout: float,
    ) -> None:
        self.url, self.target, self.checksum, self.progress = url, target, checksum, progress
        self.timeout = timeout
        self.part = target.with_name(target.name + ".part")

    def run(self, retries: int, backoff: float) -> None:
        """Try until the file is whole and right."""
        failures, fresh = 0, not self._arrived()
        while True:
            before = self._arrived()
            try:
                self._attempt()
            except _Interrupted as error:
                failures = 1 if self._arrived() > before else failures + 1
                if failures > retries:
                    raise self._failed(f"{error} ({failures} attempts)") from error
                wait = min(_LONGEST_WAIT, error.wait or backoff * 2 ** (failures - 1))
                logger.warning("%s: %s; trying again in %.3g s", self.url, error, wait)
                time.sleep(wait)
                continue
            if self.checksum is None or self.checksum.matches(self.part):
                break
            found = self.checksum.of(self.part)
            self.part.unlink()
            if fresh:
                raise self._failed(
                    f"what arrived has the {self.checksum.algorithm} {found} and was removed"
                )
            # The beginning may have come from another file: once more, from nothing.
            logger.warning("%s: the resumed file is wrong; starting again", self.url)
            fresh = True
        self.part.replace(self.target)

    def _arrived(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _attempt(self) -> None:
        offset = self._arrived()
        headers = {"User-Agent": f"acil/{__version__}", "Accept-Encoding": "identity"}
        if offset:
            headers["Range"] = f"bytes={offset}-"
        request = urllib.request.Request(self.url, headers=headers)  # the scheme has been checked
        try:
            response = urllib.request.urlopen(request, timeout=self.timeout)
        except urllib.error.HTTPError as error:
            error.close()
            self._judge(error, offset)
            return
        except (OSError, http.client.HTTPException) as error:
            raise _Interrupted(f"no connection: {getattr(error, 'reason', None) or error}") from error
        with response:
            self._receive(response, offset)

    def _judge(self, error: urllib.error.HTTPError, offset: int) -> None:
        """Decide what an answer other than the file means."""
        if error.code == 416 and offset:
            # Nothing is left to send: the part is whole, or not the beginning of this file.
            if self.checksum is None or not self.checksum.matches(self.part):
                self.part.unlink()
                raise _Interrupted("the part of an earlier attempt does not fit") from error
            return
        reason = f"the server answered {error.code} {error.reason}"
        if error.code not in _PASSING:
            raise self._failed(reason) from error
        after = error.headers.get("Retry-After", "") if error.headers else ""
        raise _Interrupted(reason, float(after) if after.isdecimal() else None) from error

    def _receive(self, response: http.client.HTTPResponse, offset: int) -> None:
        length = response.headers.get("Content-Length")
        expected = int(length) if length is not None and length.isdecimal() else None
        if response.status == 206:
            begins = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
            if begins is None or int(begins[1]) != offset:
                self.part.unlink()
                raise _Interrupted("the server sent another part than was asked for")
        else:
            offset = 0  # the server knows no ranges, and sends everything again
        self._check_space(expected)
        try:
            with self.part.open("ab" if offset else "wb") as file:
                received = self._copy(response, file, offset, expected)
                os.fsync(file.fileno())
        except OSError as error:
            raise DownloadError(
                f"Cannot write {self.part}: {error.strerror or error}. What has arrived is kept: run "
                "the same command again when that is mended."
            ) from error
        if expected is not None and received < expected:
            raise _Interrupted(f"the connection broke after {received:,} of {expected:,} bytes")

    def _copy(
        self, response: http.client.HTTPResponse, file: BinaryIO, offset: int, expected: int | None
    ) -> int:
        received = 0
        total = None if expected is None else offset + expected
        while block := self._read(response):
            file.write(block)
            received += len(block)
            if self.progress is not None:
                self.progress(self.target.name, offset + received, total)
        return received

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        try:
            return response.read1(_BLOCK)
        except (OSError, http.client.HTTPException) as error:
            raise _Interrupted(f"the connection broke: {error}") from error

    def _check_space(self, needed: int | None) -> None:
        free = shutil.disk_usage(self.target.parent).free
        if needed is not None and needed + _SPARE_BYTES > free:
            raise DownloadError(
                f"{self.target.name} needs {needed:,} more bytes, but {self.target.parent} has only "
                f"{free:,} free. Free some space, or choose another folder."
            )

    def _failed(self, reason: str) -> DownloadError:
        proof = ""
        if self.checksum is not None:
            proof = f", check that its {self.checksum.algorithm} is {self.checksum.digest}"
        kept = " What has arrived is kept." if self._arrived() else ""
        return DownloadError(
            f"Cannot fetch {self.url}: {reason}.{kept} Try again later, or without a network: fetch it "
            f"on another machine{proof}, copy it to {self.target} and run the same command again."
        )
