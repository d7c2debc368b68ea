"""What this machine is and what a process may use of it; known without torch."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path

#: Where Linux keeps what a container may use.
CGROUP = Path("/sys/fs/cgroup")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def version(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cpu_name() -> str:
    """Return the model of the processor."""
    match = re.search(r"^model name\s*:\s*(.+)$", _text(Path("/proc/cpuinfo")), re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def thread_variables() -> dict[str, str]:
    """Return the environment variables that limit threads, as far as they are set."""
    return {name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ}


def usable_cores(cgroup: Path = CGROUP) -> float:
    """Return the cores that this process may use, by affinity and container limit."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # Version 2 of control groups has "quota period" in one file, version 1 has two files.
    limit = _text(cgroup / "cpu.max").split() or [
        *_text(cgroup / "cpu" / "cpu.cfs_quota_us").split(),
        *_text(cgroup / "cpu" / "cpu.cfs_period_us").split(),
    ]
    if len(limit) != 2 or not limit[0].isdigit():  # "max" or -1: no limit
        return float(cores)
    return min(float(cores), int(limit[0]) / int(limit[1]))


def memory(cgroup: Path = CGROUP) -> dict[str, int | None]:
    """Return the bytes of this machine, those available now, and the limit of the container."""
    available = re.search(r"^MemAvailable:\s+(\d+) kB$", _text(Path("/proc/meminfo")), re.MULTILINE)
    limit = _text(cgroup / "memory.max") or _text(cgroup / "memory" / "memory.limit_in_bytes")
    # Version 1 writes "no limit" as a number of bytes that no machine has.
    limited = limit.strip().isdigit() and int(limit) < 2**60
    return {
        "total": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "available": int(available[1]) * 1024 if available else None,
        "limit": int(limit) if limited else None,
    }


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
