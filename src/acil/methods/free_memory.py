"""How much memory a device has left, asked before much of it is taken."""

from __future__ import annotations

from pathlib import Path

import torch

from acil.errors import InputError

_MEMINFO = Path("/proc/meminfo")


def free_bytes(device: torch.device) -> int | None:
    """Return the bytes that can still be had on a device; None where that is not known.

    Parameters
    ----------
    device : torch.device
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None


def require_free(needed: int, device: torch.device, what: str, remedy: str) -> None:
    """Raise unless a device has room for something large.

    Parameters
    ----------
    needed : int
        Bytes.
    device : torch.device
    what : str
        What takes the room, as the beginning of a sentence.
    remedy : str
        What to do instead, as a sentence.
    """
    free = free_bytes(device)
    if free is not None and needed > free:
        raise InputError(
            f"{what}: {needed / 2**30:.1f} GiB, but {device} has {free / 2**30:.1f} GiB free. {remedy}"
        )
