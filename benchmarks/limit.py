"""The head against the machine: a whole run beside the bare calls that it cannot avoid.

    python benchmarks/limit.py                            # CIFAR-100's size, d = 8192: minutes
    python benchmarks/limit.py --device cuda --published all --rounds 5
    python benchmarks/limit.py --device cuda --stages --blocks 512,1024,2048,4096
    python benchmarks/limit.py --preset imagenet --device cuda
    python benchmarks/limit.py --preset wide              # d = 65,536 on a GPU, 32,768 on a CPU
    python benchmarks/limit.py --width 1024 --scale 0.1   # a look, in seconds

A phase is learnt by ``partial_fit``, and its weights are used to score some rows. The bare calls of the
same phase follow at once, so that both see the same machine: XᵀX added to a triangle, and a Cholesky
factorization, in buffers that are there already. Code of the libraries is loaded before, by a short run.
On a CPU that others use, too, take ``--cpu-time``, which counts one thread's time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acil import ACILClassifier
from acil.core import blocked
from acil.core.blocked import BlockInverses
from acil.core.classifier import learnt_of
from acil.core.linalg import add_gram_, cholesky_in_place_, solve_lower

# Run as a script, Python looks for modules in this folder, not in the one above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.published import PublishedRecursion
from benchmarks.stages import timed_parts
from benchmarks.synthetic import Stream
from benchmarks.timing import count_cpu_time, environment, seconds

BATCHES = (256, 1024, 4096)
#: Features, base classes, phases, classes of a phase, rows of a class; width; γ. That of CIFAR-100
#: is the recipe "authors".
PRESETS = {
    "cifar100": ((64, 50, 25, 2, 500), 8192, 19.2),
    "imagenet": ((512, 500, 50, 10, 1281), 16384, 1e5),
    "wide": ((64, 5, 1, 5, 400), None, 1e3),
}
#: Widths of the preset "wide": what 139 GiB, and what 24 GiB can hold.
WIDE = {"cuda": 65536, "cpu": 32768}


class Bare:
    """Sums and a factor without a head: the calls that no solver of the normal equations can avoid."""

    def __init__(self, width: int, block: int, device: torch.device) -> None:
        self.device, self.block = device, block
        self.gram = torch.zeros(width, width, dtype=torch.float64, device=device)
        self.factor = torch.empty_like(self.gram)
        if device.type == "cuda":
            # By columns, as the head has it there
            self.factor = self.factor.mT
        generator = torch.Generator(device).manual_seed(0)
        rows = torch.randn(block, width, dtype=torch.float64, device=device, generator=generator)
        self.rows = rows.relu_()
        # Random rows fill all directions only in time.
        self.gram.diagonal().add_(float(width))

    def phase(self, n: int) -> tuple[float, float]:
        """Return the seconds of the products of n rows, and of a factorization."""
        sizes = [min(self.block, n - start) for start in range(0, n, self.block)]

        def products() -> None:
            for size in sizes:
                self._product(self.rows[:size])

        taken = seconds(products, self.device)
        self.factor.copy_(self.gram)
        return taken, seconds(lambda: cholesky_in_place_(self.factor), self.device)

    def _product(self, rows: Tensor) -> None:
        if self.device.type == "cpu":
            add_gram_(self.gram, rows)
        else:
            self.gram.addmm_(rows.T, rows)


def _warm_up(stream: Stream, gamma: float, device: torch.device) -> None:
    """Load what the libraries load when a size, or a kind of call, comes for the first time."""
    narrow = ACILClassifier(scores="ridge", expansion_size=256, gamma=gamma, device=str(device))
    narrow.fit(stream.held_out(), torch.arange(stream.n_classes).repeat(5)).predict(stream.held_out(1))
    if device.type == "cpu":
        return
    wide = ACILClassifier(scores="ridge", expansion_size=4096, gamma=gamma, device=str(device))
    for features, labels in itertools.islice(stream, 4):
        wide.partial_fit(features[:10_000], labels[:10_000])
        wide.decision_function(stream.held_out(1))


def run_head(
    stream: Stream, width: int, gamma: float, device: torch.device, bare: bool
) -> dict[str, Any]:
    """Time the phases of a run and, in turn with them, the bare calls."""
    clf = ACILClassifier(scores="ridge", expansion_size=width, gamma=gamma, device=str(device))
    probe, limit = stream.held_out(1), None
    rows: list[dict[str, float]] = []
    for features, labels in stream:

        def learn(features: Tensor = features, labels: Tensor = labels) -> None:
            clf.partial_fit(features, labels)
            clf.decision_function(probe)

        row = {"rows": len(labels), "head": seconds(learn, device)}
        if bare:
            limit = limit or Bare(width, learnt_of(clf).model.block_rows, device)
            row["gram"], row["factor"] = limit.phase(len(labels))
        rows.append(row)
    total = {name: sum(row[name] for row in rows) for name in rows[0]}
    result: dict[str, Any] = {"head_seconds": total["head"], "phases": rows}
    if bare:
        result["bare_gram_seconds"], result["bare_factor_seconds"] = total["gram"], total["factor"]
        result["bare_seconds"] = total["gram"] + total["factor"]
        result["ratio_to_bare"] = total["head"] / result["bare_seconds"]
    return result


def run_published(
    stream: Stream, width: int, gamma: float, device: torch.device, whole: bool
) -> dict[str, Any]:
    """Time the published recursion, at the batch size that is fastest here."""
    clf = ACILClassifier(scores="ridge", expansion_size=width, gamma=gamma, device=str(device))
    clf.fit(*(part[:2] for part in next(iter(stream))))
    expansion = learnt_of(clf).model.expansion
    if whole:
        taken = {}
        for batch in BATCHES:
            learner = PublishedRecursion(expansion, gamma, batch, device)
            taken[batch] = 0.0
            for phase in stream:
                taken[batch] += seconds(lambda p=phase, own=learner: own.learn(*p), device)
        return {"whole": True, "batches": taken, "seconds": min(taken.values())}
    estimates = {}
    for batch in BATCHES:
        learner = PublishedRecursion(expansion, gamma, batch, device)
        learner.grow(stream.n_classes)
        estimates[batch] = 0.0
        # One step of each size that occurs, times how often it occurs
        counts: dict[int, int] = {}
        for n in stream.sizes:
            for start in range(0, n, batch):
                size = min(batch, n - start)
                counts[size] = counts.get(size, 0) + 1
        for size, count in counts.items():
            X = torch.rand(size, width, dtype=torch.float64, device=device)
            Y = torch.zeros(size, stream.n_classes, dtype=torch.float64, device=device)
            one = seconds(lambda x=X, y=Y, own=learner: own.step(x, y), device)
            estimates[batch] += one * count
    return {"whole": False, "batches": estimates, "seconds": min(estimates.values())}


def block_table(width: int, blocks: list[int], device: torch.device) -> dict[str, float]:
    """Time solutions for 100 columns, by the library and by inverses of diagonal blocks."""
    bare = Bare(width, 4096, device)
    bare.phase(4096)
    lower, right = bare.factor, bare.rows[:100].T.contiguous()

    def library() -> Tensor:
        return solve_lower(lower, solve_lower(lower, right), transposed=True)

    def blockwise(block: int) -> Tensor:
        inverses = BlockInverses(lower, block)
        return inverses.solve_transposed(inverses.solve(right))

    taken = {"library": min(seconds(library, device) for _ in range(4))}
    for block in blocks:
        taken[str(block)] = min(seconds(lambda b=block: blockwise(b), device) for _ in range(4))
    return taken


def memory(device: torch.device) -> dict[str, float]:
    """Return the peak of the process, and of the GPU, in GiB."""
    found = {"peak_rss_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}
    if device.type == "cuda":
        found["peak_device_gib"] = torch.cuda.max_memory_allocated(device) / 2**30
    return found


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run what is asked for, print it and return it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=PRESETS, default="cifar100")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--width", type=int, help="width d of the expansion")
    parser.add_argument("--gamma", type=float)
    parser.add_argument("--phases", type=int, help="fewer phases than the preset has")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rows of each class")
    parser.add_argument("--published", choices=["none", "some", "all"], help="how much of it to run")
    parser.add_argument("--no-bare", action="store_true", help="leave out the bare calls")
    parser.add_argument("--stages", action="store_true", help="time by part, waiting for each")
    parser.add_argument("--blocks", help="sizes of diagonal blocks to try, such as 512,1024")
    parser.add_argument("--block", type=int, help="size of diagonal blocks to run with")
    parser.add_argument("--rounds", type=int, default=1, help="runs, of which the median counts")
    parser.add_argument("--cpu-time", action="store_true", help="count time of this process alone")
    parser.add_argument("--out", type=Path, help="write the figures to this file, as JSON")
    options = parser.parse_args(argv)
    if options.cpu_time:
        count_cpu_time()
    device = torch.device(options.device)
    sizes, width, gamma = PRESETS[options.preset]
    width = options.width or width or WIDE[device.type]
    gamma = gamma if options.gamma is None else options.gamma
    features, base, phases, each, rows = sizes
    phases = phases if options.phases is None else options.phases
    on_device = str(device) if options.preset == "imagenet" else "cpu"
    stream = Stream(features, base, phases, each, max(1, int(rows * options.scale)), on_device)
    blocked.BLOCK = options.block or blocked.BLOCK
    # Of the wide preset, neither a second set of sums nor R fits beside the head.
    alone = options.preset == "wide" or options.no_bare
    result: dict[str, Any] = {
        "preset": options.preset,
        "settings": {"width": width, "gamma": gamma, "rows": sum(stream.sizes), "phases": phases},
    }
    if options.blocks:
        numbers = [int(number) for number in options.blocks.split(",")]
        result["solution_by_block"] = block_table(width, numbers, device)
    _warm_up(stream, gamma, device)
    if options.stages:
        with timed_parts(device) as parts:
            in_parts = run_head(stream, width, gamma, device, bare=False)
        result["stages_total"] = in_parts["head_seconds"]
        result["stages"] = dict(parts)
    rounds = [run_head(stream, width, gamma, device, not alone) for _ in range(options.rounds)]
    rounds.sort(key=lambda one: float(one["head_seconds"]))
    result |= rounds[len(rounds) // 2] | memory(device)
    result["rounds"] = [one["head_seconds"] for one in rounds]
    how = options.published or ("none" if options.preset != "cifar100" else "some")
    if how != "none":
        result["published"] = run_published(stream, width, gamma, device, how == "all")
        result["times_as_fast_as_published"] = result["published"]["seconds"] / result["head_seconds"]
    result["environment"] = environment(options.device, "benchmarks.limit")
    print(json.dumps({name: value for name, value in result.items() if name != "phases"}, indent=2))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")
    return result


if __name__ == "__main__":
    main()
