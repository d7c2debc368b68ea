"""Stands for `acil bench run`, but kills itself at the nth call of one of its own functions.

The call in question does half of its work first.
"""

import os
import signal
from pathlib import Path

import safetensors.torch
import torch

from acil.bench import job
from acil.bench.training import checkpoint
from acil.cli import app
from acil.encoders.images import backbones, cache
from acil.encoders.images.extract import FeatureExtractor
from support.forks import forks


def killed(place, nth, *arguments):
    """Run the command in a process of its own; return the signal that ended it."""
    process = forks().Process(target=_run, args=(place, nth, arguments))
    process.start()
    process.join(300)
    return -process.exitcode


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def at(nth, real, half):
    """Return a function that does its work, but at the nth call only half of it, and dies."""
    calls = []

    def wrapped(*arguments, **options):
        calls.append(1)
        if len(calls) == nth:
            half(real, *arguments, **options)
            die()
        return real(*arguments, **options)

    return wrapped


def half_file(real, *arguments, **options):
    whole = safetensors.torch.save_file

    def half(tensors, path, **metadata):
        whole(tensors, path, **metadata)
        os.truncate(path, Path(path).stat().st_size // 2)
        die()

    safetensors.torch.save_file = half
    real(*arguments, **options)


def half_line(nth):
    real, calls = os.write, []

    def write(descriptor, data):
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == "records.jsonl":
            calls.append(1)
            if len(calls) == nth:
                real(descriptor, data[: len(data) // 2])
                die()
        return real(descriptor, data)

    return write


def aim(place, nth):
    job.STATE_SECONDS = 0.0
    checkpoint.Checkpoint.due = lambda self: True
    if place == "records":
        os.write = half_line(nth)
    elif place == "extraction":
        real = FeatureExtractor._row_features
        FeatureExtractor._row_features = at(nth, real, lambda *a, **o: None)
    else:
        module = {"state": job, "checkpoint": checkpoint, "network": backbones, "features": cache}
        module[place].write_tensors = at(nth, module[place].write_tensors, half_file)


def _run(place, nth, arguments):
    torch.set_num_threads(1)
    aim(place, nth)
    app(["bench", "run", *map(str, arguments)], prog_name="acil")
