"""What a run will need: memory of the heads and roughly the time; and what it will do, in words."""

from __future__ import annotations

import copy
import io
import math
import random
import shutil
import time
import timeit
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
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
from acil.encoders.images.decode import decode_box
from acil.encoders.images.extract import layer_outputs
from acil.encoders.images.imagefiles import AHEAD, SHARED_MEMORY, random_part
from acil.errors import InputError
from acil.machine import memory

#: Bytes of a number in the sums and in the factor.
_ITEM_BYTES = {"float64": (8, 8), "float32": (4, 4), "mixed": (8, 4)}
#: What Python, torch and the libraries take before the first sample.
_PROCESS_BYTES = 500 * 2**20
#: Most images of the trial step that tells how fast the network trains. A GPU needs many to be busy.
_TRIAL_IMAGES = {"cpu": 16, "cuda": 256}
#: Most pixels of them on a CPU: a plan should not take longer than reading it.
_TRIAL_PIXELS = 16 * 32**2
#: Seconds after which no more trials begin.
_TRYING = 0.3
#: A photograph of ImageNet's usual size, and the core that decodes it.
_PHOTOGRAPH = (500, 375)
#: What a worker process takes that decodes images.
_WORKER_BYTES = 150 * 2**20
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
    within = len(prepared.protocol.stops(0, n)) - 2  # tests on the way
    phases = len(job.grouping) + within + prepared.config.joint_check
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
    if prepared.device.type == "cpu":
        count = max(1, min(count, _TRIAL_PIXELS // needed.size**2))
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
    size = 512 if device.type == "cpu" else 4096
    matrix = torch.ones(size, size, dtype=torch.float64, device=device)
    return size**3 / _timed(lambda: (matrix @ matrix)[0, 0].item())


def _timed(action: Callable[[], object]) -> float:
    """Return the seconds of the fastest of some calls, after one that warms up."""
    action()
    best, until = math.inf, time.monotonic() + _TRYING
    for _ in range(_TRIALS):
        best = min(best, timeit.timeit(action, number=1))
        if time.monotonic() > until:
            break
    return best


def photograph(seed: int = 0) -> bytes:
    """Return a JPEG of some 110 kB, with large and small structures as photographs of ImageNet have."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)).resize(_PHOTOGRAPH)
    pixels = np.asarray(small, dtype=np.int16) + rng.integers(-24, 25, (*_PHOTOGRAPH[::-1], 3))
    held = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(held, "JPEG", quality=92)
    return held.getvalue()


@cache
def decode_seconds(size: int) -> float:
    """Return how long one core takes to decode a photograph and cut out a part of it for training."""
    held, choose = photograph(), random_part(random.Random(0))
    return _timed(lambda: decode_box(held, size, choose))


def read_images(prepared: PreparedRun, jobs: Sequence[Job], folder: Path | None = None) -> int:
    """Return how many images in files are decoded: by trainings, and once for features of a seed."""
    if prepared.data.train.files is None:
        return 0
    trained = base_inputs(prepared, jobs, folder)
    trained += sum(later_trained_images(prepared, job) for job in jobs)
    return trained + len({job.seed for job in jobs}) * (
        len(prepared.data.train) + len(prepared.data.test)
    )


def activation_bytes(prepared: PreparedRun) -> int:
    """Return roughly what a step of base training holds: outputs of layers, weights and momentum."""
    backbone = prepared.backbone or build(
        prepared.recipe.backbone, **dict(prepared.recipe.backbone_options)
    )
    settings, needed = prepared.recipe.training, backbone.preprocessing
    size = settings.crop_size or needed.size
    x = torch.zeros(1, len(needed.mean), size, size)
    outputs = layer_outputs(copy.deepcopy(backbone).cpu(), x)
    half = settings.precision in ("fp16", "bf16") and prepared.device.type == "cuda"
    images = settings.batch_size * settings.auxiliary.views
    weights = sum(parameter.numel() for parameter in backbone.parameters())
    return int(images * outputs * (2 if half else 4) + 16 * weights)


def disk_bytes(prepared: PreparedRun, jobs: Sequence[Job]) -> int:
    """Return roughly what a run writes: features of each seed, networks, states of heads."""
    images = len(prepared.data.train) + len(prepared.data.test)
    frozen = any(not resolve(job.method).trains_network for job in jobs)
    features = 4 * images * prepared.n_features * frozen if prepared.data.train.has_pixels else 0
    states = sorted((head_bytes(prepared, job) // 2 for job in jobs), reverse=True)
    return len({job.seed for job in jobs}) * features + sum(states[: prepared.config.jobs])


def check_room(
    prepared: PreparedRun, jobs: Sequence[Job], out: Path | None, training: int | None = None
) -> None:
    """Raise if a training of images or the files of a run cannot fit, before anything is computed.

    ``training`` is `training_bytes`, where that is known.
    """
    trains = prepared.data.train.has_pixels and (
        prepared.backbone is None or any(resolve(job.method).trains_network for job in jobs)
    )
    if trains and jobs:
        needed = training_bytes(prepared, jobs) if training is None else training
        there = machine_bytes(torch.device("cpu"))
        if needed > there:
            raise MemoryTooSmallError(
                f"Training needs about {needed / 2**30:.1f} GiB of this machine's memory, but there are "
                f"{there / 2**30:.1f} GiB. Choose fewer --set data.workers=N or a smaller --set "
                "recipe.training.batch_size=N."
            )
        if prepared.device.type == "cuda":
            needed, there = activation_bytes(prepared), machine_bytes(prepared.device)
            if needed > there:
                raise MemoryTooSmallError(
                    f"A step of training needs about {needed / 2**30:.1f} GiB, but {prepared.device} "
                    f"has {there / 2**30:.1f} GiB. Choose a smaller --set recipe.training.batch_size=N."
                )
    if out is not None:
        needed, free = disk_bytes(prepared, jobs), free_bytes(out)
        if needed > free:
            raise InputError(
                f"The run writes about {needed / 2**30:.1f} GiB into {out}, but there are only "
                f"{free / 2**30:.1f} GiB free. Free some space, or choose another directory with --out."
            )
    _check_shared_memory(prepared)


def training_bytes(prepared: PreparedRun, jobs: Sequence[Job]) -> int:
    """Return roughly what training takes of the machine's memory: images, workers, the network.

    Of images in files, a method holds exemplars; twice, while new ones join those of before.
    """
    data = prepared.data.train
    total = _PROCESS_BYTES
    if prepared.device.type == "cpu":
        total += activation_bytes(prepared)
    if data.files is None:
        # The pixels of the base classes are copied.
        n_base = int((prepared.data.train_labels < max(1, prepared.base)).sum())
        return total + n_base * math.prod(data.shape)
    held = max(
        resolve(job.method).held_images(
            prepared.context(job, None), prepared.phase_sizes(job), ends(job.grouping)
        )
        for job in jobs
    )
    total += 2 * held * math.prod(data.shape) * prepared.config.jobs
    return total + data.files.workers * _WORKER_BYTES + waiting_bytes(prepared)


def waiting_bytes(prepared: PreparedRun) -> int:
    """Return what the batches take that workers have decoded ahead, in memory that is shared."""
    files = prepared.data.train.files
    if files is None:
        return 0
    settings = prepared.recipe.training
    batch = settings.batch_size * settings.auxiliary.views * math.prod(prepared.data.train.shape)
    return (files.workers * AHEAD + 1) * batch


def _check_shared_memory(prepared: PreparedRun) -> None:
    if prepared.data.train.files is None or not SHARED_MEMORY.is_dir():
        return
    needed, free = waiting_bytes(prepared), shutil.disk_usage(SHARED_MEMORY).free
    if needed > free:
        raise InputError(
            f"Workers hand over decoded images in {SHARED_MEMORY}, which has {free / 2**20:.0f} MiB "
            f"free of the {needed / 2**20:.0f} MiB needed. Choose fewer --set data.workers=N, or start "
            "the container with more, such as docker run --shm-size=8g."
        )


def free_bytes(out: Path) -> int:
    """Return the free bytes where a directory is, or will be."""
    place = out.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def plan_of(
    config: RunConfig, folder: Path | None = None, out: Path | None = None
) -> tuple[str, InputError | None]:
    """Return what a run with these settings would do, need and take, and why it cannot fit.

    With a folder, what is left of the run in it; ``out`` is where a new one would be. No image is read
    where that can be.
    """
    prepared = prepare(config, outline=folder is None)
    planned, done = prepared.plan(), set()
    if folder is not None:
        started = RunDirectory(folder)
        started.check_resumable(config, prepared.resolved)
        done = finished(started.records.read())
    jobs = [job for job in planned if not prepared.is_finished(job, done)]
    if not jobs:
        return f"All {len(planned)} jobs are done.", None
    widest = max(head_width(prepared, job) for job in jobs)
    needed, there = needed_bytes(prepared, jobs), machine_bytes(prepared.device)
    trained = base_inputs(prepared, jobs, folder)
    later = [later_trained_images(prepared, job) for job in jobs]
    pace = seconds_per_image(prepared) if trained or any(later) else 0.0
    files, images = prepared.data.train.files, len(prepared.data.train) + len(prepared.data.test)
    spent = {
        "base training (all seeds)": pace * trained,
        "analytic heads": sum(head_seconds(prepared, job) for job in jobs),
        "what other methods train": pace * sum(later),
    }
    decoded = read_images(prepared, jobs, folder)
    if files is not None:
        seeds = len({job.seed for job in jobs})
        # A forward pass is a third of a step.
        spent["features"] = (pace or seconds_per_image(prepared)) / 3 * images * seeds
        spent["decoding"] = (
            decoded * decode_seconds(prepared.data.train.shape[-1]) / max(1, files.workers)
        )
    times = [f"{_duration(seconds)} for {what}" for what, seconds in spent.items() if seconds]
    lines = [
        f"{prepared.dataset}: {prepared.n_classes} classes, {len(prepared.data.train)} training and "
        f"{len(prepared.data.test)} test images, order {config.order}, base of {prepared.base} classes"
        + (f", protocol {config.protocol}" if config.protocol != RunConfig.protocol else ""),
        *prepared.data.notes,
        f"recipe {prepared.recipe.name}, device {prepared.device}",
        f"memory: at most {needed / 2**30:.2f} GiB for heads of width up to {widest}; there are "
        f"{there / 2**30:.1f} GiB",
    ]
    training = None
    if trained or any(later):
        training = training_bytes(prepared, jobs)
        taken = f"memory: about {training / 2**30:.2f} GiB for training"
        if prepared.device.type == "cuda":
            taken += f", and {activation_bytes(prepared) / 2**30:.2f} GiB of the GPU"
        if files is not None:
            taken += f" with {files.workers} workers that decode; only exemplars are kept in memory"
        lines.append(taken)
    if prepared.data.train.has_pixels:
        lines.append(f"disk: about {disk_bytes(prepared, jobs) / 2**30:.2f} GiB of features and states")
    lines.append(f"time, roughly, one after the other: {', '.join(times) or 'hardly any'}")
    if files is not None and prepared.device.type != "cpu":
        lines[-1] += "; decoding goes on beside the rest"
    if files is not None:
        each = 1e3 * decode_seconds(files.view.size)
        lines.append(
            f"images to decode: {decoded / 1e6:.3g} million, at {each:.1f} ms of a core each (measured "
            f"on one of 500 x 375 pixels), by {files.workers} processes"
        )
    if trained:
        plan = prepared.recipe.training
        lines.append(
            f"base training: {trained / 1e6:.3g} million network inputs (all seeds; {plan.epochs} "
            f"epochs, {plan.auxiliary.inputs_per_image} for an image and epoch)"
        )
    if prepared.data.skipped:
        lines.append(f"left out: {len(prepared.data.skipped)} images that cannot be read")
    if skipped := prepared.left_out:
        lines.append(told_left_out(skipped))
    described = [
        f"  {job.title}" + (f": {inputs / 1e6:.3g} million network inputs" if inputs else "")
        for job, inputs in zip(jobs, later, strict=True)
    ]
    more = f" ({len(planned) - len(jobs)} more done)" if len(jobs) < len(planned) else ""
    text = "\n".join([*lines, f"{len(jobs)} job{'s' * (len(jobs) > 1)}{more}:", *described])
    try:
        check_memory(prepared, jobs)
        check_room(prepared, jobs, folder or out, training)
    except InputError as error:
        return text, error
    return text, None


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
