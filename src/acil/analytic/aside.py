"""Work beside other work, on a device that can do both at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor


class Aside:
    """Queue work next to what the device does from now on; on a CPU it is simply done.

    Small factorizations leave most of a GPU idle, which large products can use meanwhile.

    Parameters
    ----------
    device : torch.device
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._busy = False

    @contextmanager
    def work(self, *read: Tensor) -> Iterator[None]:
        """Queue what the body computes aside, after all that is queued already.

        Parameters
        ----------
        *read : Tensor
            What the body reads; its memory is not used again before that.
        """
        if self._device.type != "cuda":
            yield
            return
        stream = _side_stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        for tensor in read:
            tensor.record_stream(stream)
        self._busy = True
        with torch.cuda.stream(stream):
            yield

    def join(self) -> None:
        """Let all work from now on wait for what is aside; to be called before its results are used.

        Work aside itself has nothing to wait for, and does not take the waiting away from others.
        """
        if not self._busy:
            return
        here, aside = torch.cuda.current_stream(self._device), _side_stream(self._device)
        if here != aside:
            here.wait_stream(aside)
            self._busy = False


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of work aside, one for each device: libraries set up memory for each."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
