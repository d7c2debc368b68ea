"""Microseconds of each 3 x 3 convolution of ResNet-32, ours against cuDNN in the same run.

    python benchmarks/convolution.py
    python benchmarks/convolution.py --tune

Each number is one call in a recorded graph of twenty, replayed; inputs stay in the GPU's cache as far as
it holds them, for both alike. ``--tune`` tries cuts of the work and prints the best lines for
``acil/training/kernels.py``; other processes compile them first, and ``--budget`` bounds the seconds.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import math
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from pathlib import Path

import torch
from torch import Tensor

from acil.bench.training import kernels
from acil.bench.training.kernels import SplitTiling, Tiling

#: (channels, outputs, size of the input, stride) → how often ResNet-32 has it
SHAPES = {
    (16, 16, 32, 1): 10,
    (16, 32, 32, 2): 1,
    (32, 32, 16, 1): 9,
    (32, 64, 16, 2): 1,
    (64, 64, 8, 1): 9,
}
KINDS = ("forward", "input gradient", "weight gradient")
CALLS = 20

Shape = tuple[int, int, int, int]
Cut = Tiling | SplitTiling
Job = tuple[str, Shape, int, Cut]


def tensors(shape: Shape, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return input, weight and gradient of the map, in float16 and channels last."""
    channels, outputs, size, stride = shape
    sizes = (batch, channels, size, size), (outputs, channels, 3, 3)
    after = (batch, outputs, size // stride, size // stride)
    made = (torch.randn(s, device="cuda", dtype=torch.float16) for s in (*sizes, after))
    x, weight, gradient = (tensor.to(memory_format=torch.channels_last) for tensor in made)
    return x, weight, gradient


def ours(kind: str, shape: Shape, batch: int, cut: Cut | None = None) -> Callable[[], None]:
    """Return one call of our kernel."""
    x, weight, gradient = tensors(shape, batch)
    stride = shape[-1]
    if kind == "weight gradient":
        target = torch.empty_like(weight)
        return lambda: kernels.correlate(gradient, x, target, stride, tiling=cut)
    transposed = kind == "input gradient"
    source, target = (gradient, torch.empty_like(x)) if transposed else (x, torch.empty_like(gradient))
    return lambda: kernels.convolve(source, weight, target, stride, transposed=transposed, tiling=cut)


def cudnn(kind: str, shape: Shape, batch: int) -> Callable[[], None]:
    """Return the same call of PyTorch."""
    x, weight, gradient = tensors(shape, batch)
    stride = [shape[-1]] * 2
    if kind == "forward":
        return lambda: torch.nn.functional.conv2d(x, weight, stride=stride, padding=1)
    mask = [kind == "input gradient", kind == "weight gradient", False]
    return lambda: torch.ops.aten.convolution_backward(
        gradient, x, weight, None, stride, [1, 1], [1, 1], False, [0, 0], 1, mask
    )


def microseconds(call: Callable[[], None], replays: int = 10) -> float:
    """Return the time of one call: the best of several replays of a recorded graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(CALLS):
                call()
        graph.replay()
        best = math.inf
        for _ in range(replays):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            best = min(best, begin.elapsed_time(end))
    return best * 1000 / CALLS


def candidates(kind: str, shape: Shape, batch: int) -> Iterator[Cut]:
    """Yield the cuts worth trying: enough programs to fill a GPU, not too much shared memory."""
    channels, outputs, size, stride = shape
    if kind == "weight gradient":
        pixels = batch * (size // stride) ** 2
        for block, rows, programs, (warps, stages) in itertools.product(
            (64, 128), (64, 128), (264, 528, 1056), ((4, 1), (4, 3), (4, 4), (8, 3))
        ):
            splits = max(1, programs // -(-9 * channels // rows))
            if splits * block <= pixels and not (warps == 8 and rows == 64):
                yield SplitTiling(block, rows, splits, warps, stages)
        return
    if kind == "input gradient":
        channels, outputs, pixels = outputs, channels, batch * size**2
    else:
        pixels = batch * (size // stride) ** 2
    halves = {outputs, max(16, outputs // 2)}
    for block, depth, columns, (warps, stages) in itertools.product(
        (32, 64, 128, 256), (16, 32, 64, 128), halves, ((4, 1), (4, 3), (4, 5), (8, 3))
    ):
        programs = pixels // block * (outputs // columns)
        fits = block * depth * stages * 2 <= 96 * 1024
        if programs >= 120 and fits and not (warps == 8 and block < 128) and depth >= min(channels, 32):
            yield Tiling(block, depth, columns, warps, stages)


def compile_one(job: Job) -> bool:
    """Compile into Triton's cache on disk; False where the GPU cannot hold such a program."""
    try:
        ours(*job)()
        torch.cuda.synchronize()
    except Exception:
        return False
    return True


def compiled(jobs: list[Job], seconds: float) -> list[Job]:
    """Return the jobs that could be compiled, by several processes, in the given time."""
    context = multiprocessing.get_context("spawn")
    workers = max(1, min(14, (os.cpu_count() or 2) - 1))
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures = {pool.submit(compile_one, job): job for job in jobs}
        done, _ = wait(futures, timeout=seconds)
        pool.shutdown(wait=True, cancel_futures=True)
    return [job for future, job in futures.items() if future in done and future.result()]


def tune(batch: int, budget: float) -> list[str]:
    """Return the fastest cut of each kernel, as lines of the table with their times."""
    started = time.perf_counter()
    rows: list[list[Job]] = []
    for shape, count in SHAPES.items():
        for kind in KINDS:
            row = [(kind, shape, batch, cut) for cut in candidates(kind, shape, batch)]
            random.Random(0).shuffle(row)
            # What occurs once is worth less of the time.
            rows.append(row if count > 1 else row[:20])
    # In turn, so that every kernel gets its share of the trials even if the time runs out.
    jobs = [job for turn in itertools.zip_longest(*rows) for job in turn if job is not None]
    ready = compiled(jobs, 0.6 * budget)
    best: dict[tuple[str, Shape], tuple[float, Cut]] = {}
    tried = 0
    for kind, shape, _, cut in ready:
        if time.perf_counter() - started > budget:
            break
        taken = microseconds(ours(kind, shape, batch, cut), replays=4)
        tried += 1
        if taken < best.get((kind, shape), (math.inf, cut))[0]:
            best[kind, shape] = taken, cut
    lines = [f"# {tried} of {len(jobs)} cuts in {time.perf_counter() - started:.0f} s"]
    for (kind, shape), (taken, cut) in sorted(best.items(), key=lambda item: item[0]):
        channels, outputs = shape[:2]
        pair = (outputs, channels) if kind == "input gradient" else (channels, outputs)
        lines.append(f"{pair}: {cut},  # {kind}, size {shape[2]}, stride {shape[3]}: {taken:.1f} us")
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--budget", type=float, default=80.0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    gc.freeze()  # some versions of torch collect garbage before each recording
    report: dict[str, object] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    saved = 0.0
    for shape, count in SHAPES.items():
        for kind in KINDS:
            own = microseconds(ours(kind, shape, arguments.batch))
            theirs = microseconds(cudnn(kind, shape, arguments.batch))
            saved += count * (theirs - own)
            report[f"{kind} {shape}"] = {"ours": own, "cudnn": theirs, "count": count}
            row = f"{kind:16s} {shape!s:18s} ours {own:6.1f} us   cuDNN {theirs:6.1f} us   x {count}"
            print(row, flush=True)
    print(f"a step of ResNet-32 saves {saved / 1000:.2f} ms")
    if arguments.tune:
        report["tuned"] = tune(arguments.batch, arguments.budget)
        print(*report["tuned"], sep="\n")
    if arguments.out:
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
