"""The directory of a run: one owner at a time, settings, environment, records, checkpoints."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from acil import __version__
from acil.benchmark.config import (
    RunConfig,
    check_resumable,
    make_config,
    read_config,
    read_resolved,
    to_toml,
)
from acil.benchmark.records import Records
from acil.errors import InputError, ModelFileError
from acil.modelfile.writing import cannot_write, locked, replacing, write_tensors

#: How often the state of a method is written: learning a few phases again is cheaper.
STATE_SECONDS = 60.0
#: Seconds of gathering and writing it from which on that is done less often, in proportion.
_LONG = 6.0
#: Packages whose version may move a number.
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "safetensors", "pillow", "matplotlib")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_CPU_INFO = Path("/proc/cpuinfo")


class RunDirectory:
    """Files of one run; see `open_run`.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = Records(path / "records.jsonl")

    @property
    def config_file(self) -> Path:
        """The complete settings."""
        return self.path / "config.toml"

    def base_folder(self, key: str) -> Path:
        """Return the folder that all jobs with the same base network share."""
        return _made(self.path / "checkpoint" / f"base-{key}")

    def state(self, key: str) -> StateFile:
        """Return the file in which a job keeps the state of its method."""
        return StateFile(_made(self.path / "checkpoint") / f"state-{key}.safetensors")


class StateFile:
    """The state of a method between phases, written at most once a minute and in a tenth of the time.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last = self._asked = time.monotonic()
        self._taken = 0.0

    def load(self) -> tuple[int, dict[str, Any]] | None:
        """Return the last phase learnt and the state after it; None if there is none that is whole."""
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                values = json.loads(file.metadata()["acil_state"])
                state: dict[str, Any] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, KeyError, TypeError, ValueError):
            # Learning again gives the same state; a file that cannot be read is no reason to stop.
            return None
        return int(values["phase"]), {**state, **values["state"]}

    def due(self) -> bool:
        """Say whether it is time to write again."""
        self._asked = time.monotonic()
        return self._asked - self._last >= STATE_SECONDS * max(1.0, self._taken / _LONG)

    def save(self, phase: int, state: Mapping[str, Any]) -> None:
        """Write the state after a phase."""
        tensors = {k: v for k, v in state.items() if isinstance(v, Tensor)}
        others = {k: v for k, v in state.items() if not isinstance(v, Tensor)}
        text = json.dumps({"phase": phase, "state": others})
        write_tensors(self.path, tensors, {"acil_state": text})
        self._last = time.monotonic()
        # Gathering the state, after the question, counts too.
        self._taken = self._last - self._asked

    def remove(self) -> None:
        """Forget the state: the job has finished."""
        self.path.unlink(missing_ok=True)


def _made(folder: Path) -> Path:
    """Return a folder, made if there is none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error
    return folder


@contextmanager
def open_run(
    path: Path, config: RunConfig, resolved: Mapping[str, Any], resume: bool, force: bool
) -> Iterator[RunDirectory]:
    """Open the directory of a run for writing, or say why not.

    Parameters
    ----------
    path : Path
    config : RunConfig
    resolved : Mapping
        What followed from the settings, for readers of config.toml.
    resume : bool
        Go on with the run that is there (which may have barely started).
    force : bool
        Replace the run that is there.
    """
    _made(path)
    try:
        with locked(path / "config.toml", timeout=0):
            yield _prepared(path, config, resolved, resume, force)
    except ModelFileError as error:
        if "another process" not in str(error):
            raise
        raise InputError(
            f"Another process is writing into {path}. Wait for it, or choose another directory."
        ) from error


def _prepared(
    path: Path, config: RunConfig, resolved: Mapping[str, Any], resume: bool, force: bool
) -> RunDirectory:
    run = RunDirectory(path)
    exists = run.config_file.exists() or run.records.path.exists()
    if exists and force and not resume:
        for name in ("config.toml", "records.jsonl"):
            try:
                (path / name).unlink(missing_ok=True)
            except OSError as error:
                raise cannot_write(path / name, error) from error
        for name in ("checkpoint", "report"):
            shutil.rmtree(path / name, ignore_errors=True)
    elif exists and not resume:
        raise InputError(
            f"{path} holds a run already. Go on with it (--resume), replace it (--force), or choose "
            "another directory (--out)."
        )
    elif run.config_file.exists():
        stored = make_config(read_config(run.config_file))
        check_resumable(stored, config, read_resolved(run.config_file), resolved)
    with replacing(run.config_file) as draft:
        draft.write_text(to_toml(config, resolved), encoding="utf-8")
    return run


if TYPE_CHECKING:
    import torch


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
