"""Speed and memory of the closed-form head against the recursion as published, in one run.

    python benchmarks/head.py            # d = 4096, 100 classes, about 7 minutes on two cores
    python benchmarks/head.py --quick    # d = 1024, a few seconds
    python benchmarks/head.py --out results.json

A base of 25,000 rows of 50 classes, then 25 phases of 1,000 rows of two new classes, weights after each
phase. All learners see the same features and take turns phase by phase, in two rounds; of each phase the
faster counts. Compare ratios, not seconds: machines are noisy.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acil import ACILClassifier
from acil.core.classifier import learnt_of
from acil.core.expansion import Expansion

# Run as a script, Python looks for modules in this folder, not in the one above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.problem import GAMMA
from benchmarks.published import PublishedRecursion
from benchmarks.synthetic import Stream
from benchmarks.timing import fastest, run_python, seconds

FEATURES, BATCHES = 64, (256, 1024, 4096)


class Problem(Stream):
    """Features of 100 classes: a base of 50, then 25 phases of two."""

    def __init__(self, width: int, per_class: int) -> None:
        super().__init__(FEATURES, 50, 25, 2, per_class)
        self.width = width
        self.expansion = Expansion.draw(FEATURES, width, "relu", seed=0)


class Head:
    """One of our learners."""

    def __init__(self, problem: Problem, **settings: object) -> None:
        self.clf = ACILClassifier(
            scores="ridge", expansion_size=problem.width, random_state=0, gamma=GAMMA, **settings
        )

    def learn(self, features: Tensor, labels: Tensor) -> None:
        """Learn one phase, weights included."""
        self.clf.partial_fit(features, labels).coef_  # noqa: B018

    def scores(self, features: Tensor) -> Tensor:
        """Return scores of all classes."""
        return self.clf.decision_function(features.double())


def published(problem: Problem, batch: int) -> PublishedRecursion:
    """Return the recursion as published, before it has learnt anything."""
    return PublishedRecursion(problem.expansion, GAMMA, batch, torch.device("cpu"))


def published_estimates(problem: Problem) -> dict[int, float]:
    """Return the seconds that the published recursion should take here, by batch size."""
    estimates = {}
    base, phase = 50 * problem.rows_each, 2 * problem.rows_each
    for batch in [size for size in BATCHES if size <= base] or BATCHES[:1]:
        learner = published(problem, batch)
        learner.grow(100)

        def step(rows: int, learner: PublishedRecursion = learner) -> float:
            X = problem.expansion(torch.randn(rows, FEATURES, dtype=torch.float64).relu())
            Y = torch.zeros(rows, 100, dtype=torch.float64)
            return fastest(lambda: learner.step(X, Y), rounds=2)

        small = min(batch, phase)
        estimates[batch] = base / batch * step(batch) + 25 * phase / small * step(small)
    return estimates


def single_sample(problem: Problem, clf: ACILClassifier, repeats: int = 20) -> dict[str, float]:
    """Time one new sample with updated weights, and a factorization and solution anew."""
    x, y = problem.held_out()[:1], torch.tensor([3])
    clf.novelty(x)
    clf.solve()
    updates = sorted(seconds(lambda: clf.partial_fit(x, y).coef_) for _ in range(repeats))
    return {"update_seconds": updates[repeats // 2], "anew_seconds": anew_seconds(clf)}


def anew_seconds(clf: ACILClassifier) -> float:
    """Return the median time of factorizing the sums of a model and solving for all weights."""
    ridge = learnt_of(clf).model.ridge
    ridge.flush()
    return sorted(seconds(ridge.solve) for _ in range(5))[2]


def extra_memory(width: int, dtype: str) -> float:
    """Return the peak memory of learning and solving beyond the sums, in units of d² · 8 bytes."""
    return float(run_python("benchmarks.head", "--memory-child", str(width), dtype, module=True))


def memory_child(width: int, dtype: str) -> None:
    """Learn, solve, learn more, solve again; print the peak beyond the sums."""
    rows = torch.relu(torch.randn(3000, FEATURES))
    labels = torch.arange(3000) % 100
    # Once in small, so that code and buffers of the libraries are not counted
    ACILClassifier(scores="ridge", expansion_size=512, dtype=dtype, gamma=1e3).fit(rows, labels).predict(
        rows
    )
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    clf = ACILClassifier(scores="ridge", expansion_size=width, dtype=dtype, gamma=1e6)
    for start in range(0, 3000, 1000):
        for stop in (start + 1000, start + 10):
            clf.partial_fit(rows[start:stop], labels[start:stop]).predict(rows[:1])
    square = width * width * 8
    print((status("VmHWM") - before - square) / square)


def status(field: str) -> int:
    """Return a figure of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def learnt_in_turns(problem: Problem, learners: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the seconds of each phase; learners take turns, so that all meet the same machine."""
    times: dict[str, list[float]] = {name: [] for name in learners}
    for phase in problem:
        for name, learner in learners.items():
            times[name].append(seconds(lambda learner=learner, phase=phase: learner.learn(*phase)))
    return times


def measure(problem: Problem, rounds: int = 2) -> dict[str, Any]:
    """Return the figures of all heads on one problem; of each phase the fastest round counts."""
    estimates = published_estimates(problem)
    batch = min(estimates, key=lambda size: estimates[size])
    theirs = f"published recursion, batch {batch}"
    best: dict[str, list[float]] = {}
    for _ in range(rounds):
        learners = {
            "gram, float64": Head(problem),
            "gram, mixed": Head(problem, dtype="mixed"),
            "recursive, float64": Head(problem, solver="recursive"),
            theirs: published(problem, batch),
        }
        for name, times in learnt_in_turns(problem, learners).items():
            best[name] = [min(pair) for pair in zip(times, best.get(name, times), strict=True)]
    taken = {name: sum(times) for name, times in best.items()}
    ours = learners["gram, float64"]
    reference = ours.scores(problem.held_out())
    table = {}
    for name, learner in learners.items():
        difference = float((learner.scores(problem.held_out()).double() - reference).norm())
        table[name] = {
            "seconds": taken[name],
            "speed_up": taken[theirs] / taken[name],
            "difference": difference / float(reference.norm()),
        }
    single = single_sample(problem, ours.clf)
    return {
        "width": problem.width,
        "per_class": problem.rows_each,
        "condition": ours.clf.condition_,
        "heads": table,
        "published": {"batch": batch, "seconds": taken[theirs], "estimates": estimates},
        "single_sample": {**single, "ratio": single["anew_seconds"] / single["update_seconds"]},
    }


def show(figures: dict[str, Any]) -> None:
    """Print a table."""
    print(f"d = {figures['width']}, 100 classes, 50 + 25 x 2, {figures['per_class']} rows a class\n")
    print(f"{'head':32} {'seconds':>8} {'speed-up':>9} {'scores differ by':>17}")
    for name, row in figures["heads"].items():
        print(f"{name:32} {row['seconds']:8.2f} {row['speed_up']:8.2f}x {row['difference']:17.1e}")
    print(
        f"\nDifferences are relative to gram, float64; condition number {figures['condition']:.1e}.\n"
        "Published recursion by batch size, estimated: "
        + ", ".join(f"{b}: {s:.0f} s" for b, s in figures["published"]["estimates"].items())
    )
    single = figures["single_sample"]
    print(
        f"\nOne new sample, weights updated: {single['update_seconds'] * 1e3:.1f} ms, factorizing and "
        f"solving anew {single['anew_seconds'] * 1e3:.1f} ms: {single['ratio']:.1f}x"
    )
    if "extra_memory" in figures:
        memory = dict(figures["extra_memory"])
        print(
            f"\nd = {memory.pop('width')}: peak memory beyond the sums, in units of d² · 8 bytes: "
            + ", ".join(f"{dtype} {value:.2f}" for dtype, value in memory.items())
        )


def main(argv: Sequence[str] | None = None) -> None:
    """Run everything and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="d = 1024 and a tenth of the rows")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="write the figures to this file")
    parser.add_argument("--no-memory", action="store_true", help="leave out the memory test (d = 8192)")
    parser.add_argument("--memory-child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.memory_child:
        memory_child(int(arguments.memory_child[0]), arguments.memory_child[1])
        return
    figures = measure(Problem(1024, 50) if arguments.quick else Problem(4096, 500))
    figures["threads"] = (
        f"{torch.get_num_threads()} threads, torch {torch.__version__}, {platform.machine()}"
    )
    if not arguments.no_memory:
        width = 2048 if arguments.quick else 8192
        memory = {dtype: extra_memory(width, dtype) for dtype in ("float64", "mixed")}
        figures["extra_memory"] = {"width": width, **memory}
    show(figures)
    if arguments.out:
        arguments.out.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
