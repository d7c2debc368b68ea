"""Run the server: listen, answer until a signal says stop, let open requests end."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable

import granian.server.embed
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.net import SocketHolder  # type: ignore[attr-defined]
from granian.utils.proxies import wrap_asgi_with_proxy_headers
from starlette.types import ASGIApp, Receive, Scope, Send

from acil.errors import InputError
from acil.serve.api import create_app
from acil.serve.service import Service
from acil.serve.settings import Settings

#: Seconds in which the head of a request must have arrived, and in which some of an answer must be read.
HEAD_SECONDS = 20.0
READ_SECONDS = 60.0
#: When the server stops: seconds that uploads may still take to arrive, that requests may take to be
#: answered, and that clients may take to read the last answers.
_UPLOAD_SECONDS = 2.0
_GRACE_SECONDS = 30.0
_CLOSE_SECONDS = 1.0
_TICK_SECONDS = 0.05
_MAX_CONNECTIONS = 20_000
#: Files that a server may open beside its connections.
_OTHER_FILES = 256
#: Bytes of the head of a request, and of a body that are read before they are asked for.
_BUFFER = 2**18
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
    unlimited = soft == resource.RLIM_INFINITY
    return _MAX_CONNECTIONS if unlimited else min(_MAX_CONNECTIONS, max(soft // 2, soft - _OTHER_FILES))


class _Granian(granian.server.embed.Server):
    """A granian server on a socket that listens already."""

    def __init__(self, app: ASGIApp, listening: socket.socket) -> None:
        super().__init__(
            app,
            interface=Interfaces.ASGINL,
            http=HTTPModes.http1,
            http1_settings=HTTP1Settings(
                header_read_timeout=round(1000 * HEAD_SECONDS), max_buffer_size=_BUFFER
            ),
            websockets=False,
            backpressure=connection_limit(),
            # It says at each start that it is experimental.
            log_level=LogLevels.error,
            log_dictconfig={"incremental": True, "handlers": {}, "loggers": {}},
        )
        self._listening = listening

    def _init_shared_socket(self) -> None:
        # Its own can share a port with another server, and does not tell which port it has taken.
        descriptor = os.dup(self._listening.fileno())
        self._shd = SocketHolder(descriptor, False, _BACKLOG)  # type: ignore[assignment, call-arg]


class _Requests:
    """ASGI middleware that knows the requests which have begun."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.open: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        if task is not None:
            self.open.add(task)
            task.add_done_callback(self.open.discard)
        await self._app(scope, receive, send)


class Server:
    """Serves a service, on a socket that listens."""

    def __init__(self, service: Service, listening: socket.socket) -> None:
        self._service = service
        self._listening = listening
        self._stops = 0

    def stop(self) -> None:
        """Stop after the open requests; called again, at once. Any thread may call this."""
        self._stops += 1

    def run(self) -> None:
        """Serve until told to stop; in the main thread, SIGINT and SIGTERM tell so too."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self.stop)
        settings = self._service.settings
        app = create_app(self._service)
        requests = _Requests(app)
        # Behind a proxy on this machine, clients are those that the proxy names.
        proxied = settings.loopback and settings.hosts
        outermost = wrap_asgi_with_proxy_headers(requests, ["127.0.0.1", "::1"]) if proxied else requests
        async with app.router.lifespan_context(app):
            server = _Granian(outermost, self._listening)
            serving = asyncio.create_task(server.serve())
            while not self._stops and not serving.done():
                await asyncio.sleep(_TICK_SECONDS)
            server.stop()  # type: ignore[no-untyped-call]
            self._listening.close()
            app.state.inbox.hurry(_UPLOAD_SECONDS)
            end = loop.time() + _GRACE_SECONDS
            while requests.open and self._stops < 2 and loop.time() < end:
                await asyncio.sleep(_TICK_SECONDS)
            for task in requests.open:
                task.cancel()
            # Clients that do not read their answers would hold it up.
            await asyncio.wait({serving}, timeout=_CLOSE_SECONDS)
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections have these from the socket that takes them: an answer does not wait for the
        # acknowledgement of the one before, and who reads nothing of an answer is cut off.
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * READ_SECONDS))
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
        server = Server(Service(settings), listening)
        host, port = listening.getsockname()[:2]
        ready(f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/")
        server.run()


def _return_memory() -> None:
    """Have the C library give memory of images back when they are done with, instead of keeping it."""
    # Of glibc: the size above which memory is the system's own, which otherwise grows up to 32 MB.
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 2**20)
