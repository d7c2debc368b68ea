"""The directory of a run: one owner at a time, settings, environment, records, checkpoints."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from acil import __version__
from acil.bench.config import RunConfig, check_resumable, make_config, read_config, to_toml
from acil.bench.records import FILE_NAME, Records
from acil.core.files.writing import cannot_write, locked, replacing
from acil.errors import InputError, ModelFileError
from acil.machine import cpu_name, thread_variables, version

#: Packages whose version may move a number.
_PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "safetensors", "pillow", "matplotlib")


class RunDirectory:
    """Files of one run; see `open_run`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = Records(path / FILE_NAME)
        self.config_file = path / "config.toml"

    def check_resumable(self, config: RunConfig, resolved: Mapping[str, Any]) -> None:
        """Raise if there is a run that was started with other settings."""
        if self.config_file.exists():
            stored = read_config(self.config_file)
            check_resumable(make_config(stored), config, stored.get("resolved", {}), resolved)

    def checkpoint(self) -> Path:
        """Return the folder of what a resumed run goes on from."""
        return made(self.path / "checkpoint")

    def base_folder(self, key: str) -> Path:
        """Return the folder that all jobs with the same base network share."""
        return made(self.path / "checkpoint" / f"base-{key}")


def made(folder: Path) -> Path:
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

    ``resolved`` is what followed from the settings, for readers of config.toml. ``resume`` goes on with
    the run that is there (which may have barely started), ``force`` replaces it.
    """
    made(path)
    try:
        with locked(path / "config.toml", timeout=0):
            yield _prepared(RunDirectory(path), config, resolved, resume, force)
    except ModelFileError as error:
        if "another process" not in str(error):
            raise
        raise InputError(
            f"Another process is writing into {path}. Wait for it, or choose another directory."
        ) from error


def _prepared(
    run: RunDirectory, config: RunConfig, resolved: Mapping[str, Any], resume: bool, force: bool
) -> RunDirectory:
    exists = run.config_file.exists() or run.records.path.exists()
    if exists and force and not resume:
        for file in (run.config_file, run.records.path):
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                raise cannot_write(file, error) from error
        for name in ("checkpoint", "report"):
            shutil.rmtree(run.path / name, ignore_errors=True)
    elif exists and not resume:
        raise InputError(
            f"{run.path} holds a run already. Go on with it (--resume), replace it (--force), or choose "
            "another directory (--out)."
        )
    else:
        run.check_resumable(config, resolved)
    with replacing(run.config_file) as draft:
        draft.write_text(to_toml(config, resolved), encoding="utf-8")
    return run


def environment_record(device: torch.device) -> dict[str, Any]:
    """Return the record of versions, device and threads that a run starts with.

    It has no path, host name, user or date, so that records can be published as they are.
    """
    facts: dict[str, Any] = {"type": device.type}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {"name": properties.name, "memory": properties.total_memory}
        facts |= {"cuda": torch.version.cuda, "tf32": torch.backends.cuda.matmul.allow_tf32}
    else:
        facts["name"] = cpu_name()
    return {
        "kind": "environment",
        "acil": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: version(name) for name in _PACKAGES},
        "device": facts,
        "threads": {"torch": torch.get_num_threads(), "cores": os.cpu_count(), **thread_variables()},
    }
