"""How benchmarks measure: several rounds, taking turns, the fastest of each counts."""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
#: What measures time. `time.process_time`, on one thread, tells more where others use the machine.
_clock: Callable[[], float] = time.perf_counter


def count_cpu_time() -> None:
    """Measure the time of the processor in this process, on one thread, from now on."""
    global _clock
    torch.set_num_threads(1)
    _clock = time.process_time


def seconds(action: Callable[[], object], device: str | torch.device = "cpu") -> float:
    """Return the seconds that an action takes, until the device has finished it.

    As with `timeit`, Python collects no garbage meanwhile.
    """
    synchronize(device)
    gc.disable()
    try:
        start = _clock()
        action()
        synchronize(device)
        return _clock() - start
    finally:
        gc.enable()


def fastest(action: Callable[[], object], rounds: int = 3, device: str = "cpu") -> float:
    """Return the fewest seconds of several rounds: what others do on a machine only adds time."""
    return min(seconds(action, device) for _ in range(rounds))


def alternating(actions: Mapping[str, Callable[[], object]], rounds: int = 3) -> dict[str, float]:
    """Return the fewest seconds of each action; they take turns, so that all meet the same machine."""
    best = dict.fromkeys(actions, float("inf"))
    for _ in range(rounds):
        for name, action in actions.items():
            best[name] = min(best[name], seconds(action))
    return best


def run_python(*arguments: str, module: bool = False, **variables: str) -> str:
    """Run Python in a process of its own, with this tree first on the path; return what it prints.

    ``variables`` are set in its environment.
    """
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, *(["-m"] if module else []), *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


def clock_name() -> str:
    """Return whose time is measured."""
    return "wall" if _clock is time.perf_counter else "processor"


def environment(device: str = "cpu", module: str = "benchmarks") -> dict[str, Any]:
    """Return where and when figures were measured, and by which command."""
    # Without folders of this machine
    arguments = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return {
        "machine": _processor() if device == "cpu" else torch.cuda.get_device_name(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "clock": clock_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": " ".join(["python -m", module, *arguments]),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def synchronize(device: str | torch.device) -> None:
    """Wait for the work that is queued on a GPU."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
