"""Checks before every request: host, origin and size; headers for browsers, metrics, one log line."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from acil.app.metrics import Metrics
from acil.app.settings import LOOPBACK_NAMES, Settings

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADERS = {
    # Nothing from other sites, no inline code; blob: previews images before they are sent.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_READING = ("GET", "HEAD", "OPTIONS")


class TooMuchError(Exception):
    """The body of a request is larger than the server takes."""


class Guard:
    """ASGI middleware: host and origin, size of the body, security headers, metrics, one log line."""

    def __init__(self, app: App, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._max_bytes = settings.max_bytes
        # On loopback the host name must be ours, or a foreign site could use DNS rebinding.
        names = (*LOOPBACK_NAMES, settings.host) if settings.loopback else ()
        self._names = frozenset(name.lower() for name in (*names, *settings.hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", ()), *extra]
            await send(message)

        try:
            headers = {
                name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
            }
            refusal = self._refusal(scope["method"], headers)
            if refusal is not None:
                await _answer(sending, *refusal)
            else:
                await self._app(scope, self._limited(receive), sending)
        finally:
            seconds = time.perf_counter() - start
            path = getattr(scope.get("route"), "path", "other")
            self._metrics.answered(scope["method"], path, status, seconds)
            # Undecoded, so that it cannot add lines to the log.
            asked = scope.get("raw_path", b"").decode("ascii", "replace")
            logger.info("%s %s %d %.0f ms", scope["method"], asked, status, 1000 * seconds)

    def _refusal(self, method: str, headers: Mapping[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "").lower()
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if self._names and name not in self._names:
            return 421, (
                "This server does not answer to that name. Start it with --allow-host if it should."
            )
        origin = headers.get("origin")
        foreign = origin is not None and origin.lower().partition("://")[2] != host
        if method not in _READING and (foreign or headers.get("sec-fetch-site") == "cross-site"):
            return 403, "Pages of other sites may not use this server."
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 18 or int(length) > self._max_bytes:
            return 413, f"A request may have {self._max_bytes:,} bytes. Send fewer or smaller images."
        return None

    def _limited(self, receive: Receive) -> Receive:
        received = 0

        async def receiving() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise TooMuchError
            return message

        return receiving


async def _answer(send: Send, status: int, detail: str) -> None:
    body = json.dumps({"detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
