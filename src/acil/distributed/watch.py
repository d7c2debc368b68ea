"""Signs of life: how a process that waits tells a slow one from a dead one.

Rank 0 may train a network for hours while the others wait. So waiting has no end as long as the other
process beats; a process that has not beaten for the time-out is lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

from acil.errors import ProcessLostError

#: Beats in the time-out: some may be late.
_BEATS = 10
_MOST_SECONDS = 5.0


class Heartbeat:
    """Beats in a store from a thread, until it is stopped or the process ends.

    Parameters
    ----------
    store : torch.distributed.Store
    rank : int
    timeout : float
        Seconds after which others take a process without beats for lost.
    """

    def __init__(self, store: Any, rank: int, timeout: float) -> None:
        self.interval = min(_MOST_SECONDS, timeout / _BEATS)
        self._store, self._key = store, _beats_of(rank)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="acil heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join()

    def _beat(self) -> None:
        while True:
            try:
                self._store.add(self._key, 1)
            except RuntimeError:
                # The store is gone. Whoever uses it next says so; here nobody would hear it.
                return
            if self._stopped.wait(self.interval):
                return


class Watch:
    """Looks at the beats of others while this process waits for them.

    Parameters
    ----------
    store : torch.distributed.Store
    timeout : float
    """

    def __init__(self, store: Any, timeout: float) -> None:
        self._store, self._timeout = store, timeout
        self._seen: dict[int, tuple[int, float]] = {}
        self._next = 0.0

    def require_alive(self, ranks: Iterable[int]) -> None:
        """Raise if one of the ranks has left, or has not beaten for the time-out.

        Beats are counted, and time is measured here: the clocks of machines need not agree.
        """
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + min(1.0, self._timeout / _BEATS)
        for rank in ranks:
            if self._store.check([_farewell_of(rank)]):
                raise ProcessLostError(
                    f"Rank {rank} has ended: {self._store.get(_farewell_of(rank)).decode()} {CURE}"
                )
            beats = self._store.add(_beats_of(rank), 0)
            last, since = self._seen.setdefault(rank, (beats, now))
            if beats != last:
                self._seen[rank] = beats, now
            elif now - since > self._timeout:
                raise ProcessLostError(
                    f"Rank {rank} has given no sign of life for {self._timeout:g} s: its process or "
                    f"machine is down, or cannot be reached. {CURE}"
                )


def say_farewell(store: Any, rank: int, reason: str) -> None:
    """Tell those who wait that this process ends before its time, and why."""
    store.set(_farewell_of(rank), reason)


#: What to do about a lost process.
CURE = "Start all processes again; a run of the benchmark goes on with --resume."


def _beats_of(rank: int) -> str:
    return f"beats/{rank}"


def _farewell_of(rank: int) -> str:
    return f"farewell/{rank}"
