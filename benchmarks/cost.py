"""Fit the cost model on small sizes, check it on others, and say what large tasks would take.

    python -m benchmarks.cost --out cost-cpu.json --page docs/scale.md      # some minutes
    python -m benchmarks.cost --cpu-time --out cost-cpu.json                # on a machine that is busy
    python -m benchmarks.cost --device cuda --out cost-cuda.json            # under a minute
    python -m benchmarks.cost --from cost-cuda.json --page docs/scale.md    # only the page

Ends with an error if a prediction is off by more than 20 % at a size that the fit has not seen.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.costmodel import (
    Assumptions,
    CostModel,
    Size,
    Task,
    file_bytes,
    fitted,
    phase_sizes,
    plan,
)
from benchmarks.costpage import text
from benchmarks.measured import Steps, travelling
from benchmarks.page import fill
from benchmarks.timing import count_cpu_time, environment

#: How far off a prediction may be.
TOLERANCE = 0.2
#: What is measured of a step: adding rows, solving, and both in a new model.
STEPS = ("learn", "solve", "first")
PROCESSES = (1, 2, 4, 8, 16, 32, 64)
TASKS = {
    "imagenet": Task(rows=1_281_167, classes=1000, phases=50, f=512, d=16_384),
    "billion": Task(rows=1_000_000_000, classes=10_000, phases=100, f=512, d=16_384),
}


@dataclass(frozen=True)
class Plan:
    """Sizes that are measured for the fit, and others that check it.

    Attributes
    ----------
    steps : sequence of (n, f, d, c)
    runs : sequence of (rows, classes, phases, f, d)
        The check of learning, starting and solving together.
    memory, saving, travelling : (widths of the fit, width of the check)
    images : (network, number of images)
    """

    steps: Sequence[tuple[int, int, int, int]]
    runs: Sequence[tuple[int, int, int, int, int]]
    memory: tuple[tuple[int, ...], int]
    saving: tuple[tuple[int, ...], int]
    travelling: tuple[tuple[int, ...], int]
    images: tuple[str, int]
    rounds: int = 3


PLANS = {
    "cpu": Plan(
        steps=(
            *((n, 64, d, c) for d in (768, 1280, 2048) for n, c in ((3000, 10), (6000, 200))),
            *((4000, f, 1536, 100) for f in (64, 512)),
            (4000, 256, 3072, 50),
        ),
        runs=((16_000, 100, 4, 64, 1792), (12_000, 300, 2, 128, 2560), (20_000, 50, 3, 64, 4096)),
        memory=((1536, 2048, 3072), 4096),
        saving=((1024, 1792, 2560), 3072),
        travelling=((512, 1024, 2048), 3072),
        images=("resnet18", 16),
    ),
    "cuda": Plan(
        steps=(
            *((n, 64, d, c) for d in (2048, 4096, 8192) for n, c in ((20_000, 100), (60_000, 1000))),
            *((40_000, f, 6144, 500) for f in (64, 512)),
            (40_000, 512, 10_240, 500),
        ),
        runs=((200_000, 100, 4, 64, 7168), (200_000, 1000, 4, 512, 12_288)),
        memory=((4096, 6144, 8192), 12_288),
        saving=((2048, 4096, 6144), 8192),
        travelling=((512, 1024, 2048), 3072),
        images=("resnet18", 2048),
    ),
    # Tiny, for a test that everything still runs: too small for the model to hold.
    "quick": Plan(
        steps=[(n, 16, d, 10) for d in (96, 160, 224) for n in (300, 600)],
        runs=((600, 10, 2, 16, 192),),
        memory=((256, 512), 384),
        saving=((128, 256), 192),
        travelling=((64, 128), 96),
        images=("resnet32", 8),
        rounds=1,
    ),
}


@dataclass
class Taken:
    """What was measured: the fastest of several rounds, by kind and size; bytes of files and travel."""

    best: dict[Any, float] = field(default_factory=dict)
    file_bytes: dict[int, float] = field(default_factory=dict)
    moved: dict[int, list[tuple[Size, float]]] = field(default_factory=dict)

    def note(self, key: Any, taken: float) -> None:
        """Keep the fastest."""
        self.best[key] = min(taken, self.best.get(key, taken))


def measured(chosen: Plan, device: str, network: bool) -> dict[str, Any]:
    """Measure, fit and check; return coefficients, points of the fit and checks."""
    steps, taken = Steps(device), Taken()
    steps.learn_and_solve(Size(*chosen.steps[0]))
    # In turns, so that what is fitted and what checks it meet the same machine
    for _ in range(chosen.rounds):
        for step in chosen.steps:
            for kind, value in zip(STEPS, steps.learn_and_solve(Size(*step)), strict=True):
                taken.note((kind, step), value)
        for run in chosen.runs:
            taken.note(run, steps.run(*run))
        for d in (*chosen.saving[0], chosen.saving[1]):
            taken.file_bytes[d], value = steps.saving(Size(1000, 64, d, 100))
            taken.note(("save", d), value)
    for d in (*chosen.memory[0], chosen.memory[1]):
        taken.note(("memory", d), steps.memory(d))
    if network:
        widths = (*chosen.travelling[0], chosen.travelling[1])
        taken.moved = {count: travelling(count, widths) for count in (2, 4)}
    points = _points(chosen, taken)
    coefficients = {kind: fitted(kind, *zip(*found, strict=True)) for kind, found in points.items()}
    coefficients["start"] = _start(chosen, taken)
    return {
        "coefficients": coefficients,
        "points": {kind: [[asdict(s), t] for s, t in found] for kind, found in points.items()},
        "checks": _checked(chosen, taken, CostModel(coefficients)).rows,
        "rate": steps.images_per_second(*chosen.images),
        "network": chosen.images[0],
    }


def _points(chosen: Plan, taken: Taken) -> dict[str, list[tuple[Size, float]]]:
    """Return sizes and measurements for the fit."""
    best = taken.best
    points = {
        kind: [(Size(*step), best[kind, step]) for step in chosen.steps] for kind in ("learn", "solve")
    }
    points["memory"] = [(Size(d=d), best["memory", d]) for d in chosen.memory[0]]
    points["save"] = [(Size(d=d, bytes=taken.file_bytes[d]), best["save", d]) for d in chosen.saving[0]]
    return points | {f"reduce{count}": found[:-1] for count, found in taken.moved.items()}


def _start(chosen: Plan, taken: Taken) -> dict[str, float]:
    """Fit what the first step of a new model takes beyond the same step later: perhaps nothing."""
    best = taken.best
    beyond = [best["first", s] - best["learn", s] - best["solve", s] for s in chosen.steps]
    firsts = [best["first", step] for step in chosen.steps]
    return fitted("start", [Size(*step) for step in chosen.steps], beyond, firsts)


def _checked(chosen: Plan, taken: Taken, model: CostModel) -> Checks:
    """Compare with measurements that the fit has not seen."""
    best, checks = taken.best, Checks()
    for run in chosen.runs:
        rows, classes, phases, f, d = run
        name = f"{rows:,} rows of {f}, {classes} classes, {phases} phases, d = {d}"
        checks.add("learning, s", name, model.run(phase_sizes(*run)), best[run])
    d = chosen.memory[1]
    predicted = model.cost("memory", Size(d=d))
    checks.add("peak memory, GB", f"d = {d}", predicted / 1e9, best["memory", d] / 1e9)
    d = chosen.saving[1]
    name, size = f"d = {d}, 100 classes", taken.file_bytes[d]
    checks.add("model file, GB", name, file_bytes(d, 100, 64) / 1e9, size / 1e9)
    checks.add("writing it, s", name, model.cost("save", Size(d=d, bytes=size)), best["save", d])
    for count, found in taken.moved.items():
        moved, value = found[-1]
        name = f"{count} processes, d = {chosen.travelling[1]}"
        checks.add("reduction, s", name, model.cost(f"reduce{count}", moved), value)
    return checks


@dataclass
class Checks:
    """Predictions beside measurements."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, what: str, size: str, predicted: float, measured: float) -> None:
        """Note one."""
        row = {"what": what, "size": size, "predicted": predicted, "measured": measured}
        self.rows.append({**row, "ratio": predicted / measured})


def main(argv: Sequence[str] | None = None) -> None:
    """Measure or read, print, write, and fail where the model does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="tiny sizes; nothing is checked")
    parser.add_argument("--no-network", action="store_true", help="leave out processes that talk")
    parser.add_argument("--cpu-time", action="store_true", help="for a CPU that others use, too")
    parser.add_argument("--out", type=Path, help="file of figures")
    parser.add_argument("--from", dest="source", type=Path, help="measure nothing, read this file")
    parser.add_argument("--page", type=Path, help="Markdown page whose marked part is filled")
    arguments = parser.parse_args(argv)
    if arguments.source:
        figures = json.loads(arguments.source.read_text(encoding="utf-8"))
    else:
        if arguments.cpu_time:
            count_cpu_time()
        chosen = PLANS["quick" if arguments.quick else arguments.device]
        figures = measured(chosen, arguments.device, not arguments.no_network)
        figures |= {"device": arguments.device, "quick": arguments.quick}
        figures["environment"] = environment(arguments.device, "benchmarks.cost")
    if arguments.out:
        content = json.dumps(figures, indent=1, ensure_ascii=False) + "\n"
        arguments.out.write_text(content, encoding="utf-8")
    model, assumed = CostModel(figures["coefficients"]), Assumptions()
    plans = {
        name: [plan(model, task, count, figures["rate"], assumed) for count in PROCESSES]
        for name, task in TASKS.items()
    }
    shown = text(figures, plans, TASKS, assumed)
    print(shown)
    if arguments.page:
        fill(arguments.page, {f"cost-{figures['device']}": shown})
    wrong = [row for row in figures["checks"] if abs(row["ratio"] - 1) > TOLERANCE]
    if wrong and not figures["quick"]:
        sys.exit(f"{len(wrong)} of {len(figures['checks'])} predictions are off by more than 20 %.")


if __name__ == "__main__":
    main()
