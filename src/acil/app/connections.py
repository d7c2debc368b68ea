"""Connections: a limit on their number, and on the time that a client may keep one waiting."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

#: Seconds in which the head of a request must have arrived, and in which some of an answer must be read.
HEAD_SECONDS = 20.0
READ_SECONDS = 60.0
_MAX_CONNECTIONS = 4000
#: Files that a server may open beside its connections.
_OTHER_FILES = 256


def connection_limit() -> int:
    """Return how many connections this process may have, after asking the system for enough files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_CONNECTIONS + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return _MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(_MAX_CONNECTIONS, soft // 2)


class Connection(H11Protocol):
    """A connection that knows since when it has waited for its client.

    When there are too many, those that have waited longest make room for new ones: idle clients keep
    nobody out. Requests that have been received are never among them.
    """

    limit = _MAX_CONNECTIONS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room if there are too many connections."""
        super().connection_made(transport)
        self.since = self.loop.time()
        self._seen: Any = None
        if len(self.connections) > self.limit:
            waiting = [c for c in self.connections if isinstance(c, Connection) and c.waiting]
            waiting.sort(key=lambda connection: connection.since)
            # Several at a time, or each new connection would look at all others.
            for connection in waiting[: 1 + self.limit // 16]:
                connection.transport.abort()
                # Closing takes a while, in which others would count it again.
                self.connections.discard(connection)

    @property
    def idle(self) -> bool:
        """Whether no request is being received or answered."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def waiting(self) -> bool:
        """Whether the client is to act: ask, send the rest of its request, or read the answer."""
        return self.idle or self.cycle.more_body or self.flow.write_paused

    def check(self) -> None:
        """Close the connection if its client has taken too long."""
        now, seen = self.loop.time(), (self.cycle, self.idle, self.flow.write_paused)
        if seen != self._seen or not self.waiting:
            self._seen, self.since = seen, now
        # Bodies have a time-out of their own, which is answered.
        elif (self.idle or self.flow.write_paused) and now - self.since > (
            HEAD_SECONDS if self.idle else READ_SECONDS
        ):
            self.transport.abort()


class Server(uvicorn.Server):
    """A uvicorn server that looks after its connections, and ends normally on SIGINT and SIGTERM."""

    async def on_tick(self, counter: int) -> bool:
        """Check all connections, once a second."""
        if counter % 10 == 0:
            for connection in list(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.check()
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """At the first signal, stop after the open requests; at the second, at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: FrameType | None) -> None:
            self.force_exit = self.should_exit
            self.should_exit = True

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
