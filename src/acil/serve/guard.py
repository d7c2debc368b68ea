"""Checks before every request: host, origin, size, token; headers for browsers, metrics, a log line."""

from __future__ import annotations

import ipaddress
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from acil.serve.metrics import Metrics
from acil.serve.settings import Settings, address_of

logger = logging.getLogger(__name__)

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
#: Wrong tokens of one client that cost nothing; each further one doubles the wait, up to a minute.
_FREE_GUESSES = 5
_MAX_DOUBLINGS = 6
#: Clients whose guesses are remembered.
_MAX_GUESSERS = 10_000


def client_of(scope: Mapping[str, Any]) -> str:
    """Return the client that a request counts for: its IPv4 address, or its IPv6 network (/64)."""
    client = str((scope.get("client") or ("unknown",))[0])
    address = address_of(client)
    # A server on all addresses of IPv6 gets those of IPv4 as ::ffff:a.b.c.d.
    address = getattr(address, "ipv4_mapped", None) or address
    if address is None or address.version == 4:
        return str(address or client)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))


class TokenCheck:
    """Refuses requests without the token before their body is read, and slows down guessing."""

    def __init__(self, token: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._token = token
        self._clock = clock
        #: Number of wrong tokens of a client, and the time before which no other is looked at.
        self._wrong: dict[str, tuple[int, float]] = {}

    async def __call__(self, request: Request) -> None:
        """Let a request through, or raise the refusal."""
        if self._token is None:
            return
        client, now = client_of(request.scope), self._clock()
        count, until = self._wrong.get(client, (0, 0.0))
        if now < until:
            raise HTTPException(
                429,
                "There were too many wrong tokens. Wait before the next.",
                {"Retry-After": str(int(until - now) + 1)},
            )
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        # Constant time: it must not reveal how much of the token is right.
        same = secrets.compare_digest(token.strip().encode(), self._token.encode())
        if scheme.lower() == "bearer" and same:
            self._wrong.pop(client, None)
            return
        if token:
            count += 1
            wait = 0 if count < _FREE_GUESSES else 2 ** min(count - _FREE_GUESSES, _MAX_DOUBLINGS)
            self._wrong.pop(client, None)
            self._wrong[client] = (count, now + wait)
            if len(self._wrong) > _MAX_GUESSERS:
                del self._wrong[next(iter(self._wrong))]
        raise HTTPException(
            401,
            "Teaching and forgetting need the token of this server. Send it in the header "
            "'Authorization: Bearer TOKEN'.",
            {"WWW-Authenticate": "Bearer"},
        )


class Guard:
    """ASGI middleware: host and origin, size of the body, security headers, metrics, one log line."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500
        if scope["method"] == "HEAD":
            # The server leaves the body out.
            scope = {**scope, "method": "GET"}

        asked_for = Headers(scope=scope)
        unread = "transfer-encoding" in asked_for or asked_for.get("content-length", "0") != "0"

        async def receiving() -> Message:
            nonlocal unread
            message = await receive()
            unread = unread and bool(message.get("more_body"))
            return message

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status, headers = message["status"], MutableHeaders(scope=message)
                headers.update(HEADERS)
                if unread:
                    # The server closes the connection then: the client must not send its next request.
                    headers["connection"] = "close"
            await send(message)

        try:
            refusal = self._refusal(scope["method"], asked_for)
            answer = self._app if refusal is None else JSONResponse({"detail": refusal[1]}, refusal[0])
            await answer(scope, receiving, sending)
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
        # A foreign site could point a name of its own here (DNS rebinding), but not an address.
        address = address_of(name.removeprefix("[").removesuffix("]"))
        if name not in self._settings.names and not (address and self._settings.every_address):
            return 421, (
                "This server does not answer to that name. Start it with --allow-host if it should."
            )
        origin = headers.get("origin")
        foreign = origin is not None and origin.lower().partition("://")[2] != host
        if method not in _READING and (foreign or headers.get("sec-fetch-site") == "cross-site"):
            return 403, "Pages of other sites may not use this server."
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 18 or int(length) > self._settings.max_bytes:
            return 413, self._settings.too_many_bytes
        return None
