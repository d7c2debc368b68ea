"""Run the server: listen, look after connections, stop on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import resource
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from acil.app.api import create_app
from acil.app.service import Service
from acil.app.settings import Settings
from acil.errors import InputError

#: Seconds in which the head of a request must have arrived, and in which some of an answer must be read.
HEAD_SECONDS = 20.0
READ_SECONDS = 60.0
_MAX_CONNECTIONS = 4000
#: Files that a server may open beside its connections.
_OTHER_FILES = 256
#: Seconds that requests may take to end when the server stops.
_GRACE_SECONDS = 30
_BACKLOG = 2048
_SWITCH_SECONDS = 0.001
_M_MMAP_THRESHOLD = -3


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

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """At the first signal, stop after the open requests; at the second, at once."""
        # uvicorn's own also remembers the signal, and raises it again in the end.
        self.force_exit = self.should_exit
        self.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is named. Otherwise each answer waits 40 ms for an
    # acknowledgement.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(_BACKLOG)
        return made
    except OSError as error:
        made.close()
        raise InputError(
            f"Cannot listen on {host}, port {port}: {error.strerror or error}. Choose another --port or "
            "--host."
        ) from error


def serve(settings: Settings, ready: Callable[[str], None]) -> None:
    """Serve a model until a signal says stop; ``ready`` is told the address of the page."""
    _return_memory()
    # The thread that answers is one of several: it must not wait long for its turn.
    sys.setswitchinterval(_SWITCH_SECONDS)
    with contextlib.closing(listen(settings.host, settings.port)) as listening:
        server = configured(Service(settings))
        host, port = listening.getsockname()[:2]
        ready(f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/")
        server.run(sockets=[listening])


def _return_memory() -> None:
    """Have the C library give memory of images back when they are done with, instead of keeping it."""
    # Of glibc: the size above which memory is the system's own, which otherwise grows up to 32 MB.
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 2**20)


def configured(service: Service) -> Server:
    """Return the server of a service, to be run with a listening socket."""
    Connection.limit = connection_limit()
    settings = service.settings
    config = uvicorn.Config(
        create_app(service),
        http=Connection,
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="on",
        server_header=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        # Behind a proxy on this machine, clients are those that the proxy names.
        proxy_headers=settings.loopback and bool(settings.hosts),
        forwarded_allow_ips=["127.0.0.1", "::1"],
    )
    return Server(config)
