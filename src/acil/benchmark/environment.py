"""The environment record: what a run ran on, without anything that names the machine or its owner."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acil import __version__

if TYPE_CHECKING:
    import torch

#: Packages whose version may move a number.
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "safetensors", "pillow", "matplotlib")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_CPU_INFO = Path("/proc/cpuinfo")


def environment_record(device: str | torch.device = "cpu") -> dict[str, Any]:
    """Return the record of versions, device and threads that a run starts with.

    Parameters
    ----------
    device : str or torch.device
        Where the run computes.

    Returns
    -------
    dict
        A record of kind ``environment``. It has no path, host name, user or date, so that records can
        be published as they are.
    """
    import torch

    return {
        "kind": "environment",
        "acil": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: _version(name) for name in PACKAGES},
        "device": _device(torch.device(device)),
        "threads": {
            "torch": torch.get_num_threads(),
            "cores": os.cpu_count(),
            **{name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ},
        },
    }


def _device(device: torch.device) -> dict[str, Any]:
    import torch

    if device.type != "cuda":
        return {"type": device.type, "name": _cpu_name()}
    properties = torch.cuda.get_device_properties(device)
    return {
        "type": "cuda",
        "name": properties.name,
        "memory": properties.total_memory,
        "cuda": torch.version.cuda,
        "tf32": torch.backends.cuda.matmul.allow_tf32,
    }


def _cpu_name() -> str:
    try:
        text = _CPU_INFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
