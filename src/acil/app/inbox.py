"""Receive the files of requests: so many bytes of each, in so much time, and so many of all at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from acil.app.settings import Settings
from acil.app.uploads import TooLargeError
from acil.errors import InputError

FIELD = "images"
#: Largest requests that are held in memory at a time.
_FULL_REQUESTS = 4
#: Uploads larger than this share so many bytes a second: reading them must leave time for others.
_LARGE, _BYTES_PER_SECOND = 2**20, 100 * 2**20


class _Upload:
    """One request that is being received or worked on."""

    def __init__(self) -> None:
        self.size = 0
        self.deadline: asyncio.Timeout | None = None


class Inbox:
    """Uploads of all requests, in memory.

    When there are too many bytes, the upload that has taken longest so far is given up: a fast client
    does not wait for slow ones.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._limit = _FULL_REQUESTS * settings.max_bytes
        self._held = 0
        #: The oldest first.
        self._receiving: dict[_Upload, None] = {}

    @contextlib.asynccontextmanager
    async def files(self, request: Request) -> AsyncIterator[list[bytes]]:
        """Receive the files of a request; their bytes count until the end of the context."""
        if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
            raise HTTPException(415, f"Send images as multipart/form-data, in fields named '{FIELD}'.")
        upload = _Upload()
        try:
            async with asyncio.timeout(self._settings.read_seconds) as upload.deadline:
                self._receiving[upload] = None
                files = await self._received(request, upload)
            yield files
        finally:
            self._receiving.pop(upload, None)
            self._held -= upload.size

    async def _received(self, request: Request, upload: _Upload) -> list[bytes]:
        parser = MultiPartParser(
            request.headers,
            self._counted(request, upload),
            max_files=self._settings.max_images,
            max_fields=1,
        )
        # Bytes are counted, so none has to go to the disk.
        parser.spool_max_size = self._settings.max_bytes + 1
        try:
            form = await parser.parse()
        except MultiPartException as error:
            raise HTTPException(400, error.message) from None
        self._receiving.pop(upload, None)
        try:
            fields = form.multi_items()
            if not fields:
                raise InputError(f"There are no images. Send at least one, in a field named '{FIELD}'.")
            files = []
            for key, value in fields:
                if key != FIELD or not isinstance(value, UploadFile):
                    raise InputError(f"Send files in fields named '{FIELD}', and nothing else.")
                files.append(value.file.read())
            return files
        finally:
            await form.close()

    async def _counted(self, request: Request, upload: _Upload) -> AsyncGenerator[bytes, None]:
        async for chunk in request.stream():
            upload.size += len(chunk)
            self._held += len(chunk)
            if upload.size > self._settings.max_bytes:
                raise TooLargeError(self._settings.too_many_bytes)
            if self._held > self._limit:
                self._give_up_the_slowest()
            if upload.size > _LARGE:
                large = sum(other.size > _LARGE for other in self._receiving)
                await asyncio.sleep(len(chunk) * large / _BYTES_PER_SECOND)
            yield chunk

    def _give_up_the_slowest(self) -> None:
        slowest = next(iter(self._receiving), None)
        if slowest is None:
            return
        del self._receiving[slowest]
        self._held -= slowest.size
        slowest.size = 0
        if slowest.deadline is not None and not slowest.deadline.expired():
            slowest.deadline.reschedule(asyncio.get_running_loop().time())
