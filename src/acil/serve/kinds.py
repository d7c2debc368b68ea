"""Images or texts: how requests bring the samples of a model, and how they become features."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, ClassVar

import torch
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from torch import Tensor

from acil.core.linalg import threads_for
from acil.encoders.images.embedder import Embedder, digest_of, worker_threads
from acil.encoders.text import TextEncoder, clean_text
from acil.errors import InputError
from acil.serve.settings import Settings
from acil.serve.uploads import FIELD, Item, TooLargeError, check_image, shown_name

#: Cores that this process may use.
_CORES = worker_threads()
#: What an image costs beside its pixels, in pixels: the network, and each byte that waits in memory.
_IMAGE_COST, _BYTE_COST = 1_000_000, 16
#: What a text costs beside the tokens that the network reads of it, in tokens; and about what a token
#: is: a tokenizer would take longer.
_TEXT_COST, _TOKEN = 4, re.compile(r"[A-Za-z0-9]{1,4}|[^\sA-Za-z0-9]")
#: Bytes of a request with texts, at most: nothing else runs while JSON is taken apart.
_TEXTS_BYTES = 4 * 2**20


class _Kind:
    #: One, and several.
    one: ClassVar[str]
    many: ClassVar[str]
    #: Of a request, and what to say if it has another.
    content_type: ClassVar[str]
    wanted: ClassVar[str]

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def counted(self, number: int) -> str:
        """Return a number of samples in words."""
        return f"{number} {self.one if number == 1 else self.many}"

    def require_type(self, headers: Headers) -> None:
        """Raise unless a request says that it brings samples of this kind."""
        if headers.get("content-type", "").partition(";")[0].strip().lower() != self.content_type:
            raise HTTPException(415, f"This model is one of {self.many}. {self.wanted}")


class _Parser(MultiPartParser):
    """Refuses a form without its end; Starlette's own parser leaves out the part that is cut off.

    Too many images are a `TooLargeError`.
    """

    _ended = False

    def on_headers_finished(self) -> None:
        super().on_headers_finished()
        if len(self._files_to_close_on_error) == self.max_files:
            raise TooLargeError(f"A request may have {self.max_files - 1} images. Send fewer at a time.")

    def on_end(self) -> None:
        self._ended = True

    async def parse(self) -> FormData:
        form = await super().parse()
        if not self._ended:
            for file in self._files_to_close_on_error:
                file.close()
            raise InputError("The request ends before its last image does. Send it again.")
        return form


class Images(_Kind):
    """Image files, which are decoded in threads."""

    one, many = "image", "images"
    content_type = "multipart/form-data"
    wanted = f"Send images as multipart/form-data, in fields named '{FIELD}'."
    #: Schema of a request.
    schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "required": [FIELD],
        "properties": {
            FIELD: {
                "type": "array",
                "items": {"type": "string", "format": "binary"},
                "description": "Image files: JPEG, PNG, WEBP, GIF or BMP.",
            }
        },
    }
    #: Samples that go through the network together, and threads that decode.
    batch, decoders = 2 * _CORES, min(4, _CORES)
    #: Cost of these samples, at most, and samples that wait for the network when they are decoded.
    batch_cost, decoded = math.inf, batch

    def __init__(self, settings: Settings, embedder: Embedder) -> None:
        super().__init__(settings)
        self.embedder = embedder
        self.embed = stacked(embedder)

    @property
    def limits(self) -> dict[str, int]:
        """What a request may have: images in all, and pixels each."""
        return {"images": self.settings.max_images, "pixels": self.settings.max_pixels}

    @property
    def largest_cost(self) -> int:
        """Cost of all samples of a request, at most."""
        settings = self.settings
        return (
            settings.request_pixels + _IMAGE_COST * settings.max_images + _BYTE_COST * settings.max_bytes
        )

    async def receive(self, headers: Headers, chunks: AsyncGenerator[bytes, None]) -> list[Item]:
        """Return the samples of a request."""
        self.require_type(headers)
        # The first that is too many is told by our parser.
        parser = _Parser(headers, chunks, max_files=self.settings.max_images + 1, max_fields=1)
        # Bytes are counted, so none has to go to the disk.
        parser.spool_max_size = self.settings.max_bytes + 1
        try:
            form = await parser.parse()
        except MultiPartException as error:
            raise HTTPException(400, error.message) from None
        try:
            fields = form.multi_items()
            if not fields:
                raise InputError(f"There are no images. Send at least one, in a field named '{FIELD}'.")
            files = []
            for number, (key, value) in enumerate(fields, start=1):
                if key != FIELD or not isinstance(value, UploadFile):
                    raise InputError(f"Send files in fields named '{FIELD}', and nothing else.")
                files.append(Item(shown_name(value.filename, number), value.file.read()))
            return files
        finally:
            await form.close()

    def check(self, content: bytes) -> tuple[int, int]:
        """Return the pixels of a sample and what it costs, or raise if it cannot be used."""
        pixels = check_image(content, self.settings.max_pixels)
        return pixels, pixels + _IMAGE_COST + _BYTE_COST * len(content)

    def read(self, content: bytes) -> Tensor:
        """Return a sample as `embed` takes it, or raise."""
        return self.embedder.decode(content)

    def digest(self, read: Any) -> str:
        """Return by what a sample is told apart from others."""
        return digest_of(read)

    @property
    def blank(self) -> Tensor:
        """What `embed` takes in the place of a sample that cannot be read."""
        made = self.embedder.preprocessing
        return torch.zeros(len(made.mean), made.size, made.size, dtype=torch.uint8)

    def given(self, read: Sequence[Any]) -> list[Any]:
        """Return samples that have been read as `prepare` of a classifier takes them."""
        # As arrays; they have the size that the network takes, and keep their values.
        return [pixels.permute(1, 2, 0).squeeze(-1).numpy() for pixels in read]


class Texts(_Kind):
    """Texts, of which nothing is decoded."""

    one, many = "text", "texts"
    content_type = "application/json"
    wanted = f'Send texts as {content_type}, such as {{"texts": ["one", "two"]}}.'
    schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "required": [many],
        "properties": {many: {"type": "array", "items": {"type": "string"}}},
        "additionalProperties": False,
    }
    batch, decoders = 32, 1
    #: A sentence waits for those before it: for one long text on each core, not for 32. Texts take no
    #: more memory when they have been read.
    batch_cost, decoded = 300 * _CORES, math.inf

    def __init__(self, settings: Settings, encoder: TextEncoder) -> None:
        super().__init__(replace(settings, max_bytes=min(settings.max_bytes, _TEXTS_BYTES)))
        self.encoder = encoder
        #: That the network reads of a text.
        self._tokens = int(encoder.preprocessing["length"])

    def embed(self, batch: list[str]) -> Tensor:
        """Return features of texts."""
        return torch.from_numpy(self.encoder.encode(batch).features)

    @property
    def limits(self) -> dict[str, int]:
        """What a request may have: texts in all, and characters each; tokens that the network reads."""
        settings = self.settings
        return {
            "texts": settings.max_texts,
            "characters": settings.max_characters,
            "tokens": self._tokens,
        }

    @property
    def largest_cost(self) -> int:
        """Cost of all samples of a request, at most."""
        return (self._tokens + _TEXT_COST) * self.settings.max_texts

    async def receive(self, headers: Headers, chunks: AsyncGenerator[bytes, None]) -> list[Item]:
        """Return the samples of a request."""
        self.require_type(headers)
        content = b"".join([chunk async for chunk in chunks])
        texts = await asyncio.to_thread(self._texts, content)
        return [Item(f"text {number}", text) for number, text in enumerate(texts, start=1)]

    def _texts(self, content: bytes) -> list[str]:
        try:
            found = json.loads(content.decode("utf-8"))
        except UnicodeDecodeError:
            raise InputError("The request is not UTF-8. Save the texts as such.") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"The request is no JSON ({error}). {self.wanted}") from None
        texts = found.get(self.many) if isinstance(found, dict) and len(found) == 1 else None
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise InputError(f"The request is not a list of texts under '{self.many}'. {self.wanted}")
        if not texts:
            raise InputError(f"There are no texts. {self.wanted}")
        if len(texts) > self.settings.max_texts:
            raise TooLargeError(
                f"A request may have {self.settings.max_texts} texts. Send fewer at a time."
            )
        return texts

    def check(self, content: str) -> tuple[int, int]:
        """Return the pixels of a sample, none, and what it costs, or raise if it cannot be used."""
        most = self.settings.max_characters
        if len(content) > most:
            raise TooLargeError(
                f"It has {len(content):,} characters, more than {most:,}. Send a part of it."
            )
        tokens = sum(1 for _ in islice(_TOKEN.finditer(content), self._tokens))
        return 0, tokens + _TEXT_COST

    def read(self, content: str) -> str:
        """Return a sample as `embed` takes it, or raise."""
        try:
            return clean_text(content)
        except InputError as error:
            fault = str(error)
            raise InputError(fault[:1].upper() + fault[1:]) from None

    def digest(self, read: Any) -> str:
        """Return by what a sample is told apart from others."""
        return hashlib.blake2b(read.encode(), digest_size=32).hexdigest()

    @property
    def blank(self) -> str:
        """What `embed` takes in the place of a sample that cannot be read."""
        return "blank"

    def given(self, read: Sequence[Any]) -> list[Any]:
        """Return samples that have been read as `prepare` of a classifier takes them."""
        return list(read)


Kind = Images | Texts


def kind_of(settings: Settings, network: Embedder | TextEncoder) -> Kind:
    """Return what requests bring for a model with this network."""
    return Texts(settings, network) if isinstance(network, TextEncoder) else Images(settings, network)


def stacked(embedder: Embedder) -> Callable[[list[Tensor]], Tensor]:
    """Return what makes features of a batch of images, for a line."""

    def embed(batch: list[Tensor]) -> Tensor:
        with threads_for(sum(pixels.numel() for pixels in batch)):
            pixels = torch.stack(batch)
        return embedder.embed(pixels)

    return embed
