"""Hours of ImageNet's columns on one GPU and on eight, from what was measured on an H200.

    python -m benchmarks.imagenet [--page docs/imagenet.md]

Nothing of it is run. What a command trains, decodes and writes is what `--dry-run` counts, for an empty
folder, which stands for the images as published. Rates are those of `docs/performance/jpegs-cuda.json`
(steps of ResNet-18, decoding by a core) and `docs/performance/cost-cuda.json` (features, sums, weights).

- A training takes as long as its steps or as decoding its images, whichever is longer: both go on at the
  same time. So do features.
- One GPU comes with as many cores as the measurement had. Of eight GPUs with eight times the cores, one
  trains the base network, and all share features and sums (torchrun). Methods that go on training a
  network have a GPU with its cores each, and train their own base network.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from acil.bench import estimate
from acil.bench.config import make_config
from acil.bench.methods.registry import resolve
from acil.bench.plan import Job, ends
from acil.bench.prepare import PreparedRun, prepare
from benchmarks.costmodel import CostModel, Size
from benchmarks.page import fill, table
from benchmarks.timing import ROOT

#: What a row of the table is called, and the flags of `acil bench run`; "{}" is an empty folder.
ROWS: Mapping[str, Mapping[str, Any]] = {
    "subset, `acil`, all K": {"dataset": "imagenet100:{}", "phases": "5,10,25,50"},
    "subset, width figure": {
        "dataset": "imagenet100:{}",
        "suite": "width",
        "phases": "5",
        "joint_check": False,
    },
    "subset, the table": {"dataset": "imagenet100:{}", "suite": "table1"},
    "full, `acil`, all K": {"dataset": "imagenet:{}", "phases": "5,10,25,50"},
    "full, `imagenet-authors`, K = 25": {
        "dataset": "imagenet:{}",
        "recipe": "imagenet-authors",
        "phases": "25",
        "methods": "acil,ds-al,gkeal",
    },
    "full, the table": {"dataset": "imagenet:{}", "suite": "table1"},
}
_GPUS = 8
_HOUR = 3600


@dataclass(frozen=True)
class Rates:
    """What was measured: images a second, and the cost of a head."""

    steps: float
    decoded_by_core: float
    features: float
    cores: int
    heads: CostModel

    @classmethod
    def measured(cls) -> Rates:
        """Return the rates of the stored measurements."""
        jpegs, cost = (
            json.loads((ROOT / "docs" / "performance" / f"{name}-cuda.json").read_text(encoding="utf-8"))
            for name in ("jpegs", "cost")
        )
        return cls(
            steps=jpegs["tensors"]["images_per_second"],
            decoded_by_core=jpegs["loader"] / jpegs["workers"],
            features=cost["rate"],
            cores=jpegs["workers"],
            heads=CostModel(cost["coefficients"]),
        )

    def training(self, inputs: float, cores: int) -> float:
        """Return the seconds of training on so many images, on one GPU."""
        return inputs * max(1 / self.steps, 1 / (self.decoded_by_core * cores))

    def extraction(self, images: float, gpus: int) -> float:
        """Return the seconds of features, of GPUs that have their cores each."""
        return images / gpus * max(1 / self.features, 1 / (self.decoded_by_core * self.cores))


def hours(prepared: PreparedRun, rates: Rates, gpus: int) -> float:
    """Return the hours of a run on one GPU, or on several with as many cores each."""
    jobs = prepared.plan()
    images = len(prepared.data.train) + len(prepared.data.test)
    methods: dict[str, list[Job]] = {}
    for job in jobs:
        methods.setdefault(job.method, []).append(job)

    def taken(own: Sequence[Job], together: int) -> float:
        """Return the seconds of some jobs on the GPUs that work on them together."""
        later = sum(estimate.later_trained_images(prepared, job) for job in own)
        seconds = rates.training(estimate.base_inputs(prepared, own) + later, rates.cores * together)
        if any(not estimate.later_trained_images(prepared, job) for job in own):
            seconds += rates.extraction(images, together)
        return seconds + sum(_head(prepared, job, rates, together) for job in own)

    if gpus == 1 or not any(estimate.later_trained_images(prepared, job) for job in jobs):
        return taken(jobs, gpus) / _HOUR
    # The longest method first, each to the GPU that is free first
    free = [0.0] * gpus
    for seconds in sorted((taken(own, 1) for own in methods.values()), reverse=True):
        heapq.heapreplace(free, free[0] + seconds)
    return max(free) / _HOUR


def _head(prepared: PreparedRun, job: Job, rates: Rates, gpus: int) -> float:
    """Return the seconds of sums and weights of a job; 0 without an analytic head."""
    heads, width = resolve(job.method).analytic_heads, estimate.head_width(prepared, job)
    parts = zip(prepared.phase_sizes(job), ends(job.grouping), strict=True)
    sizes = [Size(n / gpus, prepared.n_features, width, classes) for n, classes in parts]
    return heads * rates.heads.run(sizes) if heads else 0.0


def row(name: str, flags: Mapping[str, Any], rates: Rates) -> dict[str, Any]:
    """Return what one command takes."""
    with tempfile.TemporaryDirectory() as folder:
        values = {**flags, "dataset": flags["dataset"].format(folder), "seeds": "0"}
        prepared = prepare(make_config({**values, "data.workers": str(rates.cores)}), outline=True)
        prepared = dataclasses.replace(prepared, device=torch.device("cuda"))
        jobs, step = prepared.plan(), estimate.activation_bytes(prepared)
        return {
            "what": name,
            "decoded": estimate.read_images(prepared, jobs) / 1e6,
            "disk": estimate.disk_bytes(prepared, jobs) / 1e9,
            "memory": estimate.training_bytes(prepared, jobs) / 1e9,
            "gpu": max(step, *(estimate.head_bytes(prepared, job) for job in jobs)) / 1e9,
            "one": hours(prepared, rates, 1),
            "eight": hours(prepared, rates, _GPUS),
        }


def text(rates: Rates) -> str:
    """Return the generated part of the page."""
    columns = {
        "what": ("one seed of", ""),
        "decoded": ("images decoded, million", ",.0f"),
        "disk": ("disk, GB", ".0f"),
        "memory": ("memory, GB", ".0f"),
        "gpu": ("GPU, GB", ".0f"),
        "one": ("hours, one GPU", ".1f"),
        "eight": ("hours, eight GPUs", ".1f"),
    }
    return "\n" + table([row(name, flags, rates) for name, flags in ROWS.items()], columns) + "\n"


def main(argv: Sequence[str] | None = None) -> str:
    """Print the table, and put it into the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", type=Path, help="page whose part `imagenet` is replaced")
    options = parser.parse_args(argv)
    found = text(Rates.measured())
    print(found)
    if options.page:
        fill(options.page, {"imagenet": found})
    return found


if __name__ == "__main__":
    main()
