"""Run the server: listen, serve, stop on a signal."""

from __future__ import annotations

import contextlib
import ctypes
import socket
import sys
from collections.abc import Callable

import uvicorn

from acil.app.api import create_app
from acil.app.connections import Connection, Server, connection_limit
from acil.app.service import Service
from acil.app.settings import Settings
from acil.errors import InputError

#: Seconds that requests may take to end when the server stops.
_GRACE_SECONDS = 30
_BACKLOG = 2048
_SWITCH_SECONDS = 0.001
_M_MMAP_THRESHOLD = -3


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
    _return_memory()
    # The thread that answers is one of several: it must not wait long for its turn.
    sys.setswitchinterval(_SWITCH_SECONDS)
    with contextlib.closing(listen(settings.host, settings.port)) as listening:
        server = configured(Service(settings))
        ready(address_of(listening))
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
