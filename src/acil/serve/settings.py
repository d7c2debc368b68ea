"""The settings of `acil serve`, checked once."""

from __future__ import annotations

import ipaddress
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from acil.encoders.images.decode import MAX_PIXELS
from acil.errors import InputError
from acil.growing import UNKNOWN_ABOVE

TOKEN_VARIABLE = "ACIL_TOKEN"
#: Host names of a server that listens on this machine only.
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
_MIN_TOKEN = 16
#: Images of the largest size that a request may have.
_LARGEST_IMAGES = 8


@dataclass(frozen=True)
class Settings:
    """Where a server listens, what it serves and what it accepts."""

    model: Path  # need not exist yet
    backbone: str | None = None  # network, if not the one that the model names
    host: str = "127.0.0.1"
    port: int = 8000  # 0 takes any that is free
    token: str | None = field(default=None, repr=False)  # for teaching and forgetting
    held_out: Path | None = None  # folder of images on which accuracy is measured after each change
    max_drop: float | None = None  # points of it that a change may lose; None refuses no change
    hosts: tuple[str, ...] = ()  # further names by which the server is reached
    max_bytes: int = 64 * 2**20  # of a request
    max_images: int = 64  # of a request
    max_texts: int = 256  # of a request
    max_characters: int = 20_000  # of a text
    max_pixels: int = 50_000_000  # of an image; a request may have `request_pixels` in all
    read_seconds: float = 60.0  # in which a request must have arrived
    texts: bool = False  # whether a model that is not there yet is one of texts
    track: bool = True  # whether a new model notices what is taught again
    undo: bool = True  # whether states before changes are kept
    unknown_above: float = UNKNOWN_ABOVE  # novelty beyond which an image is unknown

    def __post_init__(self) -> None:
        if not self.model.absolute().parent.is_dir():
            raise InputError(f"There is no folder {self.model.absolute().parent}. Create it first.")
        if self.max_pixels > MAX_PIXELS:
            raise InputError(
                f"Images of more than {MAX_PIXELS // 10**6} megapixels are never decoded. Give less as "
                "--max-megapixels."
            )
        if not self.loopback and self.token is None:
            raise InputError(
                f"{self.host} is open to other machines, and without a token anybody there could teach "
                f"the model. Give one with --token-file or {TOKEN_VARIABLE}, or listen on 127.0.0.1."
            )

    @property
    def request_pixels(self) -> int:
        """Pixels of all images of a request."""
        return _LARGEST_IMAGES * self.max_pixels

    @property
    def too_many_bytes(self) -> str:
        """What a client with more bytes is told."""
        return f"A request may have {self.max_bytes:,} bytes. Send less at a time."

    @property
    def every_address(self) -> bool:
        """Whether the server listens on all addresses of this machine."""
        return self.host in ("0.0.0.0", "::")

    @property
    def names(self) -> tuple[str, ...]:
        """Host names that requests may use; a server on all addresses takes any IP address too."""
        address = f"[{self.host}]" if ":" in self.host else self.host
        local = LOOPBACK_NAMES if self.loopback or self.every_address else ()
        return tuple(dict.fromkeys(name.lower() for name in (*local, address, *self.hosts)))

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        address = address_of(self.host)
        return self.host == "localhost" if address is None else address.is_loopback


def address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that a text is, None if it is something else."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def read_token(path: Path | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the token from a file, or else from ``ACIL_TOKEN``; None if neither has one."""
    if path is None:
        token = environment.get(TOKEN_VARIABLE)
        return None if token is None else _checked(token.strip(), TOKEN_VARIABLE)
    try:
        if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            raise InputError(f"Others can read the token in {path}. Do: chmod 600 {path}")
        return _checked(path.read_text(encoding="utf-8").strip(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"Cannot read the token file {path}: {error}.") from error


def _checked(token: str, place: str) -> str:
    if len(token) < _MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(
            f"The token in {place} must be at least {_MIN_TOKEN} ASCII characters without spaces. Make "
            "one with: openssl rand -hex 24"
        )
    return token
