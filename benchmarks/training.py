"""Images a second of base training, against plain eager PyTorch in the same run.

    python benchmarks/training.py --device cuda

Each variant trains the recipe's network on random images of CIFAR's size, augmentation included: one
epoch to warm up (where graphs are recorded and blocks compiled), then epochs until the time is spent.
Images are network inputs: the copies of an auxiliary task count. Distillation is not measured.
``--side-by-side N`` then trains N seeds in N processes at once with the recipe's own settings.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import torch

from acil.bench.training.loop import Batches, _numerics, _own_stream
from acil.bench.training.network import Network
from acil.bench.training.objectives import Assisted, AssistedLoss, CrossEntropy
from acil.bench.training.recipes import recipe
from acil.bench.training.settings import Training
from acil.bench.training.step import Step
from acil.encoders.images.backbones import build

#: Name → (changes of the recipe's training, whether steps may be recorded as a CUDA graph)
VARIANTS: dict[str, tuple[dict[str, object], bool]] = {
    "eager-float32": ({"precision": "float32", "compile": False}, False),
    "eager-tf32": ({"precision": "tf32", "compile": False}, False),
    "graph-float32": ({"precision": "float32", "compile": False}, True),
    "graph-tf32": ({"precision": "tf32", "compile": False}, True),
    "graph-bf16": ({"precision": "bf16", "compile": False}, True),
    "graph-fp16": ({"precision": "fp16", "compile": False}, True),
    "compiled-bf16": ({"precision": "bf16", "compile": True}, True),
    "compiled-fp16-cudnn": ({"precision": "fp16", "compile": True}, True),
    "compiled-fp16": ({"precision": "fp16", "compile": True}, True),
    "recipe": ({}, True),
}
#: Variants that leave all convolutions to cuDNN, to compare with our own.
ONLY_CUDNN = {"compiled-fp16-cudnn"}


def measure(settings: Training, captured: bool, arguments: argparse.Namespace) -> dict[str, float]:
    """Return images a second and seconds until the second epoch."""
    device = torch.device(arguments.device)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (arguments.images, 3, 32, 32), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 50, (arguments.images,), generator=generator)
    chosen = recipe(arguments.recipe)
    backbone = build(chosen.backbone, generator, **dict(chosen.backbone_options))
    network = Network(backbone, 50, generator=generator).to(device)
    trained, objective, views, draws = network, CrossEntropy(), 1, 0
    tasks = settings.auxiliary
    if tasks.active:
        trained, objective = Assisted(network, tasks, generator).to(device), AssistedLoss(tasks)
        views, draws = tasks.views, tasks.draws
    trained.to(memory_format=torch.channels_last).train()
    if not captured:
        object.__setattr__(objective, "capturable", False)
    started = time.perf_counter()
    with _numerics(device, settings), _own_stream(device):
        batches = Batches(images, labels, settings, backbone.preprocessing, 0, device, views, draws)
        step = Step(trained, objective, settings, device)
        seen, epoch, begin = 0, 0, started
        while epoch < 2 or time.perf_counter() - begin < arguments.seconds:
            for batch in batches.epoch(epoch):
                step(*batch)
                seen += len(batch[0])
            loss, _ = step.mean_loss_and_accuracy(seen)  # waits for the device
            epoch += 1
            if epoch == 1:
                seen, begin = 0, time.perf_counter()
        elapsed = time.perf_counter() - begin
        if arguments.profile:
            _profile(step, batches, arguments.profile)
        step.close()
    return {"images_per_second": seen / elapsed, "warm_up_seconds": begin - started, "loss": loss}


def _profile(step: Step, batches: Batches, target: Path) -> None:
    """Append the time of each kind of kernel over twenty steps."""
    taken = []
    for batch in batches.epoch(0):
        taken.append(batch)
        if len(taken) == 20:
            break
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for batch in taken:
            step(*batch)
        step.mean_loss_and_accuracy(1)
    table = profiler.key_averages().table(sort_by="self_device_time_total", row_limit=60)
    with target.open("a") as file:
        file.write(table + "\n")


def side_by_side(count: int, arguments: argparse.Namespace) -> float:
    """Return images a second of several processes together."""
    command = [sys.executable, __file__, "--variants", "recipe", "--json", "--recipe", arguments.recipe]
    command += ["--device", arguments.device, "--seconds", str(arguments.seconds)]
    command += ["--images", str(arguments.images)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    outputs = [process.communicate()[0] for process in running]
    return sum(json.loads(output)["recipe"]["images_per_second"] for output in outputs)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--recipe", default="paper")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--images", type=int, default=25_000)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--side-by-side", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profile", type=Path, help="append a table of kernels to this file")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    base = recipe(arguments.recipe).training
    results = {}
    for name in arguments.variants.split(","):
        changes, captured = VARIANTS[name]
        leave = mock.patch("acil.bench.training.step.use_fast_convolutions", return_value=0)
        with leave if name in ONLY_CUDNN else nullcontext():
            results[name] = measure(dataclasses.replace(base, **changes), captured, arguments)
        if not arguments.json:
            rate, first = results[name]["images_per_second"], results[name]["warm_up_seconds"]
            print(f"{name:20s} {rate:10,.0f} images/s   first epoch {first:6.1f} s", flush=True)
    if arguments.side_by_side:
        together = side_by_side(arguments.side_by_side, arguments)
        results[f"{arguments.side_by_side} processes"] = {"images_per_second": together}
    where = torch.cuda.get_device_name() if arguments.device == "cuda" else platform.processor()
    report = {"device": where, "torch": torch.__version__, "recipe": arguments.recipe, **results}
    if arguments.out:
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    if arguments.json:
        print(json.dumps(results))
    elif "eager-float32" in results:
        slow = results["eager-float32"]["images_per_second"]
        for name, row in results.items():
            print(f"{name:20s} {row['images_per_second'] / slow:6.2f} x eager float32")


if __name__ == "__main__":
    main()
