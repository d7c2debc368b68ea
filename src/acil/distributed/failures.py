"""Errors that travel between processes, so that all of them raise the same."""

from __future__ import annotations

from typing import Any

from acil import errors
from acil.distributed.watch import CURE
from acil.errors import ACILError, ProcessLostError, RemoteError

#: Errors that every process can make from a text.
_KNOWN = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}


def described(error: BaseException) -> dict[str, str]:
    """Return an error as a message: its text, and the nearest of its classes that all processes have.

    Examples
    --------
    >>> described(errors.InputError("X has no rows."))
    {'error': 'X has no rows.', 'kind': 'InputError'}
    >>> described(MemoryError("too wide"))
    {'error': 'MemoryError: too wide', 'kind': 'RemoteError'}
    """
    names = [kind.__name__ for kind in type(error).__mro__ if kind in _KNOWN.values()]
    name = names[0] if names else ""
    text = str(error) if name else f"{type(error).__name__}: {error}"
    return {
        "error": text,
        "kind": name if name not in ("", ACILError.__name__) else RemoteError.__name__,
    }


def agreed(rank: int, message: dict[str, Any], own: Exception | None) -> Exception:
    """Return what this process raises for an error that all processes have heard of.

    Parameters
    ----------
    rank : int
        The lowest rank that failed.
    message : dict
        As `described` made it there.
    own : Exception or None
        What this process has failed with. One of a class that others do not have is raised as it is.
    """
    error = own
    if error is None or type(error) in _KNOWN.values():
        error = _KNOWN.get(message["kind"], RemoteError)(f"Rank {rank}: {message['error']}")
    error.__dict__["agreed"] = True
    return error


def is_agreed(error: BaseException) -> bool:
    """Say whether all processes have heard of an error."""
    return bool(error.__dict__.get("agreed"))


def lost(what: str, error: BaseException) -> ProcessLostError:
    """Return the error for processes that cannot reach each other."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return ProcessLostError(f"A process of the group is lost: {what} ({reason}). {CURE}")
