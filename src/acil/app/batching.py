"""Batches of images from several requests, for network and head."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch import Tensor

from acil.vision.embedder import Embedder

Question = TypeVar("Question")
Result = TypeVar("Result")


@dataclass(eq=False)
class _Job(Generic[Question, Result]):
    """The images of one request."""

    pixels: Sequence[Tensor]
    question: Question
    future: Future[Result]
    features: list[Tensor] = field(default_factory=list)
    taken: int = 0


class Batcher(Generic[Question, Result]):
    """Collect images of several requests into batches, in one thread.

    Parameters
    ----------
    embedder : Embedder
        Its features do not depend on the batch.
    answer : callable
        Called with the features and the question of each request that is complete, in one list, and
        returns as many results: so all of them can come from one state of the model.
    max_images : int
        Of a batch.
    wait_seconds : float
        How long a batch that is not full waits for requests that are on their way (`expecting`). When
        none is, it starts at once.

    Notes
    -----
    Requests take turns, image by image: one with many images does not hold up the others.
    """

    def __init__(
        self,
        embedder: Embedder,
        answer: Callable[[list[tuple[Tensor, Question]]], list[Result]],
        max_images: int = 32,
        wait_seconds: float = 0.003,
    ) -> None:
        self._embedder = embedder
        self._answer = answer
        self._max_images = max_images
        self._wait_seconds = wait_seconds
        self._waiting: deque[_Job[Question, Result]] = deque()
        self._n_waiting = 0
        self._expected = 0
        self._closed = False
        self._changed = threading.Condition()
        #: Number of batches and of images in them, for metrics.
        self.batches = 0
        self.images = 0
        self._thread = threading.Thread(target=self._run, name="acil-batcher", daemon=True)
        self._thread.start()

    @contextmanager
    def expecting(self) -> Iterator[None]:
        """Announce a request while its images are being read, so that a batch may wait for it."""
        with self._changed:
            self._expected += 1
        try:
            yield
        finally:
            with self._changed:
                self._expected -= 1
                self._changed.notify()

    def submit(self, pixels: Sequence[Tensor], question: Question) -> Future[Result]:
        """Return the future result of the images of one request, at least one.

        Parameters
        ----------
        pixels : sequence of Tensor of shape (channels, size, size), uint8
        question
            Handed to ``answer``.
        """
        job = _Job[Question, Result](pixels, question, Future())
        with self._changed:
            if self._closed:
                raise RuntimeError("The batcher is closed.")
            self._waiting.append(job)
            self._n_waiting += len(pixels)
            self._changed.notify()
        return job.future

    def close(self) -> None:
        """Answer the waiting requests, and stop."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._collect()
                if not self._waiting:
                    return
                batch = self._next_batch()
            self._process(batch)

    def _collect(self) -> None:
        """Wait until a batch is full, no request is announced, or the first has waited long enough."""
        while not self._waiting and not self._closed:
            self._changed.wait()
        deadline = time.monotonic() + self._wait_seconds
        while self._n_waiting < self._max_images and self._expected and not self._closed:
            left = deadline - time.monotonic()
            if left <= 0 or not self._changed.wait(left):
                return

    def _next_batch(self) -> list[tuple[_Job[Question, Result], Tensor]]:
        batch: list[tuple[_Job[Question, Result], Tensor]] = []
        while self._waiting and len(batch) < self._max_images:
            job = self._waiting.popleft()
            if job.future.cancelled():
                self._n_waiting -= len(job.pixels) - job.taken
                continue
            batch.append((job, job.pixels[job.taken]))
            job.taken += 1
            self._n_waiting -= 1
            if job.taken < len(job.pixels):
                self._waiting.append(job)
        return batch

    def _process(self, batch: list[tuple[_Job[Question, Result], Tensor]]) -> None:
        complete: list[_Job[Question, Result]] = []
        try:
            rows = self._embedder.embed(torch.stack([pixels for _, pixels in batch])) if batch else ()
            for (job, _), row in zip(batch, rows, strict=True):
                job.features.append(row)
                if len(job.features) == len(job.pixels):
                    complete.append(job)
            self.batches += 1
            self.images += len(batch)
            asked = [(torch.stack(job.features), job.question) for job in complete]
            results = self._answer(asked) if asked else []
        except Exception as error:  # whatever a network raises belongs to those who asked
            self._fail([job for job, _ in batch], error)
            return
        for job, result in zip(complete, results, strict=True):
            if job.future.set_running_or_notify_cancel():
                job.future.set_result(result)

    def _fail(self, jobs: list[_Job[Question, Result]], error: Exception) -> None:
        with self._changed:
            for job in jobs:
                if job in self._waiting:
                    self._waiting.remove(job)
                    self._n_waiting -= len(job.pixels) - job.taken
        for job in jobs:
            if not job.future.done() and job.future.set_running_or_notify_cancel():
                job.future.set_exception(error)
