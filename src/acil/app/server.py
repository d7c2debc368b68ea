"""Run the server: listen, serve, stop on a signal."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn

from acil.app.api import create_app
from acil.app.service import Service
from acil.app.settings import Settings
from acil.errors import InputError

#: Seconds that requests may take to end when the server stops.
_GRACE_SECONDS = 30
#: With more connections, new requests are answered with 503.
_MAX_CONNECTIONS = 4000
_BACKLOG = 2048


class _Server(uvicorn.Server):
    """A uvicorn server that ends normally on SIGINT and SIGTERM."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """At the first signal, stop after the open requests; at the second, at once."""

        def stop(number: int, frame: FrameType | None) -> None:
            self.force_exit = self.should_exit
            self.should_exit = True

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Parameters
    ----------
    host : str
    port : int
        0 takes any that is free.
    """
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


def address_of(listening: socket.socket) -> str:
    """Return the address of the page."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def serve(settings: Settings, ready: Callable[[str], None]) -> None:
    """Serve a model until a signal says stop.

    Parameters
    ----------
    settings : Settings
    ready : callable
        Called with the address of the page when it can be opened.
    """
    with contextlib.closing(listen(settings.host, settings.port)) as listening:
        service = Service(settings)
        config = uvicorn.Config(
            create_app(service),
            log_config=None,
            access_log=False,
            lifespan="on",
            server_header=False,
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        ready(address_of(listening))
        _Server(config).run(sockets=[listening])
