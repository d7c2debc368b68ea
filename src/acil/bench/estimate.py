"""What a run will need: memory of the heads and roughly the time; and what it will do, in words."""

from __future__ import annotations

import copy
import math
import timeit
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from torch.nn import functional

from acil.bench.config import RunConfig
from acil.bench.methods.base import SHARED_BASE
from acil.bench.methods.registry import resolve
from acil.bench.plan import Job, ends
from acil.bench.prepare import PreparedRun, digest, prepare, told_left_out
from acil.bench.records import finished
from acil.bench.rundir import RunDirectory
from acil.bench.training.network import Network
from acil.encoders.images.backbones import build
from acil.errors import InputError
from acil.machine import memory

#: Bytes of a number in the sums and in the factor.
_ITEM_BYTES = {"float64": (8, 8), "float32": (4, 4), "mixed": (8, 4)}
#: What Python, torch and the libraries take before the first sample.
_PROCESS_BYTES = 500 * 2**20
#: Most images of the trial step that tells how fast the network trains. A GPU needs many to be busy.
_TRIAL_IMAGES = {"cpu": 16, "cuda": 256}
#: How many times faster a GPU trains by recorded and compiled steps in half precision than in the trial
#: (by benchmarks/training.py on an H200; compiling takes longer than a dry run should).
_COMPILED_SPEED = 7
#: Trials, of which the fastest counts: the others met with something else on the machine.
_TRIALS = 3


class MemoryTooSmallError(InputError, MemoryError):
    """The run needs more memory than the machine has."""


def head_bytes(prepared: PreparedRun, job: Job) -> int:
    """Return the most bytes that the head of a job takes at a time; 0 for a method with a small one.

    Of an analytic one the sums, and one factor or what writing the state takes (measured: as much as the
    sums); with the comparison to joint learning the sums of a second head, too. A method of several
    heads has all of that at a time.
    """
    method, width = resolve(job.method), head_width(prepared, job)
    dtype = str(job.settings.get("dtype", prepared.recipe.dtype))
    sums, factor = _ITEM_BYTES.get(dtype, _ITEM_BYTES["float64"])
    copies = 2 if prepared.config.joint_check else 1
    heads = method.analytic_heads
    if not heads:
        return method.kept_bytes(prepared.n_classes, prepared.n_features)
    if heads == 1:
        return width * width * (copies * sums + max(sums, factor))
    return heads * width * width * (copies * (sums + factor) + sums)


def head_width(prepared: PreparedRun, job: Job) -> int:
    """Return the width d of a job's head, which without an expansion are the features."""
    if not resolve(job.method).analytic_heads:
        return prepared.n_features
    width = job.settings.get("expansion_size", prepared.recipe.expansion_size)
    return width if isinstance(width, int) else prepared.n_features


def machine_bytes(device: torch.device) -> int:
    """Return the memory of a device, or of this machine as far as the process may use it."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    there = memory()
    return min(size for size in (there["total"], there["limit"]) if size is not None)


def needed_bytes(prepared: PreparedRun, jobs: Sequence[Job]) -> int:
    """Return what the jobs that run at the same time need at the worst."""
    largest = sorted((head_bytes(prepared, job) for job in jobs), reverse=True)[: prepared.config.jobs]
    extra = _PROCESS_BYTES if prepared.device.type == "cpu" else 0
    # Processes of a group share this machine's memory, and its GPUs if these are fewer.
    beside = prepared.group.local_size
    if beside > 1 and prepared.device.type == "cuda":
        beside = math.ceil(beside / torch.cuda.device_count())
    return (sum(largest) + extra * len(largest)) * beside


def check_memory(prepared: PreparedRun, jobs: Sequence[Job]) -> None:
    """Raise if the machine cannot hold what a run needs, before anything is computed."""
    needed, there = needed_bytes(prepared, jobs), machine_bytes(prepared.device)
    if needed <= there:
        return
    largest = max(jobs, key=lambda job: head_bytes(prepared, job))
    what = f"A head of width {head_width(prepared, largest)}"
    analytic = resolve(largest.method).analytic_heads > 0
    if not analytic:
        what = f"{largest.method} with {prepared.n_features} features of {prepared.n_classes} classes"
    cures = ["a smaller --expansion-size" if analytic else "fewer features (taps, grid)"]
    cures += ["fewer --jobs"] if prepared.config.jobs > 1 else []
    cures += ["fewer processes"] if prepared.group.size > 1 else []
    cures += ["--set joint_check=false"] if prepared.config.joint_check and analytic else []
    raise MemoryTooSmallError(
        f"{what} needs about {needed / 2**30:.1f} GiB, but {prepared.device} has "
        f"{there / 2**30:.1f} GiB. Choose {', '.join(cures)} or "
        f"{'--dtype float32' if analytic else 'another method'}."
    )


def head_seconds(prepared: PreparedRun, job: Job) -> float:
    """Return roughly how long the head of a job computes on this device."""
    if not resolve(job.method).analytic_heads:
        return 0.0
    width, n, features = head_width(prepared, job), len(prepared.data.train), prepared.recipe.features
    if features.rows and prepared.data.train.has_pixels:
        n *= len(features.views)
    # One triangle of XᵀX of all samples: n d² / 2; a Cholesky factor in each phase: d³ / 6; both once
    # more for joint learning
    phases = len(job.grouping) + prepared.config.joint_check
    work = n * width**2 / 2 * (1 + prepared.config.joint_check) + phases * width**3 / 6
    return resolve(job.method).analytic_heads * work / _flops(prepared.device)


def base_inputs(prepared: PreparedRun, jobs: Sequence[Job], folder: Path | None = None) -> int:
    """Return how many images training base networks sees, each as often as it is seen.

    A seed has the shared one, unless a run in the folder has trained it, and one of each method that
    trains its own: a wrapper takes its host's. Copies that an auxiliary task makes count, and so does
    the training of teachers.
    """
    if prepared.backbone is not None or not prepared.data.train.has_pixels or not prepared.base:
        return 0
    inputs: dict[tuple[int, str], int] = {}
    for job in {(job.seed, job.method): job for job in jobs}.values():
        owner, count = resolve(job.method).base_training(prepared.context(job, None))
        shared = f"checkpoint/base-{digest(prepared.base_identity(job.seed))}/backbone.safetensors"
        if owner != SHARED_BASE or folder is None or not (folder / shared).exists():
            inputs[job.seed, owner] = count
    return sum(inputs.values()) * int((prepared.data.train_labels < prepared.base).sum())


def later_trained_images(prepared: PreparedRun, job: Job) -> int:
    """Return the same of what the method of a job trains beside base networks."""
    context, sizes = prepared.context(job, None), prepared.phase_sizes(job)
    return resolve(job.method).trained_images(context, sizes, ends(job.grouping))


def longest_first(prepared: PreparedRun, jobs: Sequence[Job]) -> list[Job]:
    """Return jobs in the order of what they train, the most first; those that train nothing as given."""

    def images(job: Job) -> int:
        # A job that cannot even be made says so itself.
        with suppress(Exception):
            return later_trained_images(prepared, job)
        return 0

    return sorted(jobs, key=images, reverse=True)


def seconds_per_image(prepared: PreparedRun) -> float:
    """Return roughly how long training takes for one image, from trial steps in float32."""
    if not prepared.data.train.has_pixels:
        return 0.0
    settings, generator = prepared.recipe.training, torch.Generator().manual_seed(0)
    backbone = copy.deepcopy(prepared.backbone)
    if backbone is None:
        backbone = build(prepared.recipe.backbone, generator, **dict(prepared.recipe.backbone_options))
    network = Network(backbone, prepared.n_classes, generator=generator).to(prepared.device)
    needed = backbone.preprocessing
    count = min(_TRIAL_IMAGES.get(prepared.device.type, 16), settings.batch_size)
    x = torch.zeros(count, len(needed.mean), needed.size, needed.size, device=prepared.device)
    y = torch.zeros(count, dtype=torch.int64, device=prepared.device)

    def step() -> None:
        functional.cross_entropy(network(x), y).backward()  # type: ignore[no-untyped-call]
        if prepared.device.type == "cuda":
            torch.cuda.synchronize(prepared.device)

    compiled = prepared.device.type == "cuda" and settings.compile and settings.precision == "fp16"
    return _timed(step) / count / (_COMPILED_SPEED if compiled else 1)


@cache
def _flops(device: torch.device) -> float:
    """Return float64 operations a second of a matrix product, multiply and add counted as one."""
    size = 1024 if device.type == "cpu" else 4096
    matrix = torch.ones(size, size, dtype=torch.float64, device=device)
    return size**3 / _timed(lambda: (matrix @ matrix)[0, 0].item())


def _timed(action: Callable[[], object]) -> float:
    """Return the seconds of the fastest of some calls, after one that warms up."""
    action()
    return min(timeit.repeat(action, repeat=_TRIALS, number=1))


def describe_plan(config: RunConfig, folder: Path | None = None) -> str:
    """Return what a run with these settings would do, need and take.

    With a folder, what is left of the run in it.
    """
    prepared = prepare(config)
    planned, done = prepared.plan(), set()
    if folder is not None:
        started = RunDirectory(folder)
        started.check_resumable(config, prepared.resolved)
        done = finished(started.records.read())
    jobs = [job for job in planned if not prepared.is_finished(job, done)]
    if not jobs:
        return f"All {len(planned)} jobs are done."
    widest = max(head_width(prepared, job) for job in jobs)
    needed, there = needed_bytes(prepared, jobs), machine_bytes(prepared.device)
    trained = base_inputs(prepared, jobs, folder)
    later = [later_trained_images(prepared, job) for job in jobs]
    pace = seconds_per_image(prepared) if trained or any(later) else 0.0
    spent = {
        "base training (all seeds)": pace * trained,
        "analytic heads": sum(head_seconds(prepared, job) for job in jobs),
        "what other methods train": pace * sum(later),
    }
    times = [f"{_duration(seconds)} for {what}" for what, seconds in spent.items() if seconds]
    lines = [
        f"{prepared.dataset}: {prepared.n_classes} classes, {len(prepared.data.train)} training and "
        f"{len(prepared.data.test)} test images, order {config.order}, base of {prepared.base} classes",
        f"recipe {prepared.recipe.name}, device {prepared.device}",
        f"memory: at most {needed / 2**30:.2f} GiB for heads of width up to {widest}; there are "
        f"{there / 2**30:.1f} GiB",
        f"time, roughly, one after the other: {', '.join(times) or 'hardly any'}",
    ]
    if trained:
        training = prepared.recipe.training
        lines.append(
            f"base training: {trained / 1e6:.3g} million network inputs (all seeds; {training.epochs} "
            f"epochs, {training.auxiliary.inputs_per_image} for an image and epoch)"
        )
    if prepared.data.skipped:
        lines.append(f"left out: {len(prepared.data.skipped)} images that cannot be read")
    if skipped := prepared.left_out:
        lines.append(told_left_out(skipped))
    described = [
        f"  {job.title}" + (f": {images / 1e6:.3g} million network inputs" if images else "")
        for job, images in zip(jobs, later, strict=True)
    ]
    more = f" ({len(planned) - len(jobs)} more done)" if len(jobs) < len(planned) else ""
    return "\n".join([*lines, f"{len(jobs)} job{'s' * (len(jobs) > 1)}{more}:", *described])


def _duration(seconds: float) -> str:
    """Return seconds as people say them.

    Examples
    --------
    >>> _duration(0.2), _duration(90), _duration(9000)
    ('1 s', '90 s', '2.5 h')
    """
    if seconds < 300:
        return f"{max(1.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
