"""Telling a caller, now and then, how far a training is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

#: Seconds between two reports: reading the loss makes a GPU wait.
REPORT_SECONDS = 0.2


@dataclass(frozen=True)
class Progress:
    """How far a training is.

    Attributes
    ----------
    epoch : int
        The present one, counted from 1.
    epochs : int
    loss : float
        Mean over the images of this epoch so far.
    accuracy : float or None
        Training accuracy in percent over the same images, as augmented; None if the objective does
        not return scores.
    images_per_second : float
    seconds_left : float
    """

    epoch: int
    epochs: int
    loss: float
    accuracy: float | None
    images_per_second: float
    seconds_left: float


class Clock:
    """Decides when to report and how fast it goes.

    Parameters
    ----------
    images_left : int
        Images that this run still has to go through, epochs counted.
    """

    def __init__(self, images_left: int) -> None:
        self._started = self._reported = time.monotonic()
        self._left = images_left
        self._done = 0

    def add(self, n_images: int) -> None:
        """Count the images of one step."""
        self._done += n_images
        self._left -= n_images

    @property
    def moved(self) -> bool:
        """Whether this run has done a step."""
        return self._done > 0

    def due(self) -> bool:
        """Say whether it is time for a report."""
        return time.monotonic() - self._reported >= REPORT_SECONDS

    def report(
        self,
        callback: Callable[[Progress], None],
        epoch: int,
        epochs: int,
        loss: float,
        accuracy: float | None,
    ) -> None:
        """Call back with what was measured."""
        self._reported = time.monotonic()
        rate = self._done / max(self._reported - self._started, 1e-9)
        left = self._left / rate if rate else 0.0
        callback(Progress(epoch, epochs, loss, accuracy, rate, left))
