"""The line of samples: requests take turns, threads decode images, all are classified in batches."""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from starlette.exceptions import HTTPException
from torch import Tensor

#: An image with a larger part of the pixels that may be decoded at a time leaves one thread to others.
_LARGE = 1 / 8
#: What is decoded beyond those pixels for a client of which nothing large is being decoded.
_RESERVE = 1 / 4
#: After which a client may ask again that was refused for a reason which may pass.
RETRY_SECONDS = "5"


class BusyError(HTTPException):
    """There is too much to do already; the client may ask again later."""

    def __init__(self, status: int) -> None:
        """Take 429 if this client has sent too much, 503 if all together have."""
        who = "This client has" if status == 429 else "Others have"
        detail = f"{who} sent more than this server can do now. Send it again later."
        super().__init__(status, detail, {"Retry-After": RETRY_SECONDS})


class Waiting(NamedTuple):
    """One image or text in the line."""

    read: Callable[[], Any]  # decodes it, in a thread
    pixels: int  # held in memory while it is decoded
    cost: int  # time and memory that it takes, in any unit that all have


@dataclass(eq=False)
class _Request:
    client: str
    size: int
    images: deque[tuple[int, Waiting]]
    #: Makes the result of the features of all its images.
    answer: Callable[[Tensor], Any]
    future: Future[Any]
    #: Cost of its images, and of those that have had their turn.
    cost: int
    served: int
    features: dict[int, Tensor] = field(default_factory=dict)


class Line:
    """Decode and classify the samples of many requests: images, or texts, of which nothing is decoded.

    All clients together may have twice the cost that one may have. Beyond these limits the client with
    most in the line loses its largest request (`BusyError`).

    The next image is one of the client that has had least (by cost), and of the request that has had
    least among those of this client. So neither many images nor large ones hold up another request. One
    whose future is cancelled takes no more time. Batches are chosen in the same order, and while a full
    one waits, only the first images of requests are decoded.
    """

    def __init__(
        self,
        embed: Callable[[list[Any]], Tensor],  # decoded samples to features
        *,
        max_pixels: int,  # of one image, and that are decoded at a time beside `_RESERVE`
        limit: int,  # cost of the images of one client
        max_images: int = 8,  # of a batch
        batch_cost: float = math.inf,  # of a batch, unless one image has more
        max_decoded: float | None = None,  # images that wait for the network; None: those of a batch
        decoders: int = 2,  # threads for images of any size; one more decodes small ones only
        on_batch: Callable[[int], None] = lambda images: None,  # told the size of each batch
    ) -> None:
        self._embed = embed
        self._max_pixels = max_pixels
        self._limit = limit
        self._max_images = max_images
        self._batch_cost = batch_cost
        self._max_decoded = max_images if max_decoded is None else max_decoded
        self._on_batch = on_batch
        self._requests: dict[_Request, None] = {}
        #: What each client has had since it joined the line.
        self._served: dict[str, int] = {}
        #: Whose images are being decoded.
        self._decoding: list[tuple[str, Waiting]] = []
        #: Request, place in it, content and cost of images that wait for the network.
        self._decoded: list[tuple[_Request, int, Any, int]] = []
        self._closed = False
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._decode, args=(i > 0,), name=f"acil-decode-{i}", daemon=True)
            for i in range(decoders + 1)
        ]
        self._threads.append(threading.Thread(target=self._classify, name="acil-classify", daemon=True))
        for thread in self._threads:
            thread.start()

    def submit(
        self, client: str, images: Sequence[Waiting], answer: Callable[[Tensor], Any]
    ) -> Future[Any]:
        """Return the future result of the images of one request, at least one, in turn with others.

        The result is what ``answer`` returns for the features of all its images.
        """
        with self._changed:
            if self._closed:
                raise RuntimeError("The line is closed.")
            # Who joins starts level with those that have had least.
            self._served.setdefault(client, min(self._had().values(), default=0))
            served = min((r.served for r in self._requests if r.client == client), default=0)
            request = _Request(
                client,
                len(images),
                deque(enumerate(images)),
                answer,
                Future(),
                sum(image.cost for image in images),
                served,
            )
            self._requests[request] = None
            refused = self._overload()
            self._changed.notify_all()
        for other, status in refused:
            _answer(other.future, BusyError(status))
        return request.future

    def close(self) -> None:
        """Answer the waiting requests, and stop."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _overload(self) -> list[tuple[_Request, int]]:
        """Take requests out until the rest is within the limits; return them, with what to tell them."""
        refused: list[tuple[_Request, int]] = []
        while True:
            self._drop_cancelled()
            costs = Counter[str]()
            for request in self._requests:
                costs[request.client] += request.cost
            client, most = max(costs.items(), key=lambda item: item[1], default=("", 0))
            if most <= self._limit and sum(costs.values()) <= 2 * self._limit:
                return refused
            # Of requests that are equal the last one: others have waited longer.
            theirs = [request for request in reversed(self._requests) if request.client == client]
            heaviest = max(theirs, key=lambda request: request.cost)
            refused.append((heaviest, 429 if most > self._limit else 503))
            self._remove(heaviest)

    def _had(self) -> Counter[str]:
        """Return what each client has had without what is not yet classified.

        With it, a client that always has something large here would be as early as a new one.
        """
        had = Counter(self._served)
        for request, _, _, cost in self._decoded:
            if request in self._requests:
                had[request.client] -= cost
        for client, image in self._decoding:
            if client in had:
                had[client] -= image.cost
        return had

    def _remove(self, request: _Request) -> bool:
        """Take a request out of the line; say whether it was there: who removes it answers it."""
        if request not in self._requests:
            return False
        del self._requests[request]
        if all(other.client != request.client for other in self._requests):
            del self._served[request.client]
        return True

    def _drop_cancelled(self) -> None:
        for request in [r for r in self._requests if r.future.cancelled()]:
            self._remove(request)

    def _next(self, large: bool) -> tuple[_Request, int, Waiting] | None:
        """Return the image whose turn it is, None if none can be decoded now."""
        self._drop_cancelled()
        full = len(self._decoded) >= self._max_decoded
        ready = [
            r
            for r in self._requests
            if r.images
            and r.images[0][1].pixels <= self._most(r.client, large)
            and not (full and len(r.images) < r.size)
        ]
        if not ready:
            return None
        request = min(ready, key=lambda r: (self._served[r.client], r.served + r.images[0][1].cost))
        place, image = request.images.popleft()
        request.served += image.cost
        self._served[request.client] += image.cost
        return request, place, image

    def _most(self, client: str, large: bool) -> float:
        """Return the pixels of the largest image of a client that can be decoded now."""
        small = _LARGE * self._max_pixels
        if not large:
            return small
        others = [(other, image.pixels) for other, image in self._decoding if image.pixels > small]
        reserve = 0.0 if any(other == client for other, _ in others) else _RESERVE
        return max((1 + reserve) * self._max_pixels - sum(pixels for _, pixels in others), small)

    def _decode(self, large: bool) -> None:
        while True:
            with self._changed:
                while (taken := self._next(large)) is None:
                    if self._closed and not any(request.images for request in self._requests):
                        return
                    self._changed.wait()
                request, place, image = taken
                entry = (request.client, image)
                self._decoding.append(entry)
            try:
                content = image.read()
            except Exception as error:  # whatever a decoder raises belongs to who asked
                self._finish(request, error)
            with self._changed:
                self._decoding.remove(entry)
                if request in self._requests:
                    self._decoded.append((request, place, content, image.cost))
                self._changed.notify_all()

    def _classify(self) -> None:
        while True:
            with self._changed:
                while not self._decoded:
                    self._drop_cancelled()
                    if self._closed and not self._requests:
                        return
                    self._changed.wait()
                waiting = [entry for entry in self._decoded if entry[0] in self._requests]
                had = self._had()
                waiting.sort(key=lambda entry: (had[entry[0].client], entry[0].served))
                costs = accumulate(cost for *_, cost in waiting[: self._max_images])
                number = max(1, sum(cost <= self._batch_cost for cost in costs))
                batch, self._decoded = waiting[:number], waiting[number:]
                self._changed.notify_all()
            if batch:
                self._process(batch)

    def _process(self, batch: list[tuple[_Request, int, Any, int]]) -> None:
        requests = list(dict.fromkeys(request for request, *_ in batch))
        try:
            rows = self._embed([content for _, _, content, _ in batch])
        except Exception as error:  # whatever a network raises belongs to those who asked
            for request in requests:
                self._finish(request, error)
            return
        self._on_batch(len(batch))
        for (request, place, *_), row in zip(batch, rows, strict=True):
            request.features[place] = row
        for request in requests:
            if len(request.features) == request.size:
                features = torch.stack([request.features[place] for place in range(request.size)])
                try:
                    self._finish(request, request.answer(features))
                except Exception as error:
                    self._finish(request, error)

    def _finish(self, request: _Request, outcome: Any) -> None:
        with self._changed:
            mine = self._remove(request)
            self._changed.notify_all()
        if mine:
            _answer(request.future, outcome)


def _answer(future: Future[Any], outcome: Any) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
