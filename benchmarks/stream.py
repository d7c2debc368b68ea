"""Samples that arrive one by one: learn and predict, against the recursion sample by sample.

    python benchmarks/stream.py                          # d = 64, 512 and 2048
    python benchmarks/stream.py --widths 64 --drops 25000
    python benchmarks/stream.py --device cuda --widths 4096,8192 --out stream.json

A model that has learnt some samples learns more in drops of 1, 10 and 100, and predicts one sample after
each. The published recursion, in batches of the same size, does the same on expanded features: without
checks of its input, labels or classes. Times are of the process on a CPU, so that others do not count.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from acil import ACILClassifier
from acil.core.classifier import learnt_of

# Run as a script, Python looks for modules in this folder, not in the one above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.published import PublishedRecursion
from benchmarks.synthetic import Stream
from benchmarks.timing import synchronize

SIZES = (1, 10, 100)
FEATURES, CLASSES, GAMMA = 64, 20, 1e3


def clock(device: torch.device) -> float:
    """Return seconds: of the process on a CPU, of the wall where a GPU works beside it."""
    synchronize(device)
    return time.process_time() if device.type == "cpu" else time.perf_counter()


def run(width: int, size: int, drops: int, device: torch.device) -> dict[str, float]:
    """Time drops of one size; compare the scores at the end with those of one solution of everything."""
    known = 2 * width
    samples = Stream(FEATURES, CLASSES, 0, 1, -(-(known + drops * size) // CLASSES))
    features, labels = next(iter(samples))
    features, labels = features.numpy(), labels.numpy()
    probe = features[:1]
    clf = ACILClassifier(scores="ridge", expansion_size=width, gamma=GAMMA, device=str(device))
    clf.fit(features[:known], labels[:known]).predict(probe)
    rival = PublishedRecursion(learnt_of(clf).model.expansion, GAMMA, size, device)
    rival.grow(CLASSES)
    taken = {"ours": 0.0, "published": 0.0}
    # The recursion costs the same at every step: a few of them tell.
    timed = min(drops, 50)
    for start in range(known, known + drops * size, size):
        X, y = features[start : start + size], labels[start : start + size]
        began = clock(device)
        clf.partial_fit(X, y)
        clf.predict(probe)
        taken["ours"] += clock(device) - began
        if start < known + timed * size:
            began = clock(device)
            rival.learn(torch.from_numpy(X), torch.from_numpy(y))
            rival.scores(torch.from_numpy(probe)).argmax()
            taken["published"] += clock(device) - began
    everything = slice(0, known + drops * size)
    joint = ACILClassifier(scores="ridge", expansion_size=width, gamma=GAMMA, device=str(device))
    expected = joint.fit(features[everything], labels[everything]).decision_function(features[:500])
    found = clf.decision_function(features[:500])
    ours, published = taken["ours"] / drops, taken["published"] / timed
    return {
        "microseconds_a_drop": 1e6 * ours,
        "published_microseconds": 1e6 * published,
        "times_as_fast": published / ours,
        "difference_to_one_solution": float(
            torch.from_numpy(found - expected).norm() / torch.from_numpy(expected).norm()
        ),
    }


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run all widths and sizes, print a table and return it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--widths", default="64,512,2048")
    parser.add_argument("--drops", type=int, default=300)
    parser.add_argument("--out", type=Path, help="write the figures to this file, as JSON")
    options = parser.parse_args(argv)
    device = torch.device(options.device)
    result: dict[str, Any] = {
        "machine": f"{torch.get_num_threads()} threads, torch {torch.__version__}, {device}",
        "drops": options.drops,
        "rows": [],
    }
    print(f"{'d':>6} {'samples':>8} {'µs a drop':>10} {'published':>10} {'ratio':>7} {'difference':>11}")
    for width in (int(part) for part in options.widths.split(",")):
        for size in SIZES:
            row = run(width, size, options.drops, device)
            result["rows"].append({"width": width, "samples": size, **row})
            numbers = list(row.values())
            print(
                f"{width:6} {size:8} {numbers[0]:10.0f} {numbers[1]:10.0f} {numbers[2]:6.1f}x", end=" "
            )
            print(f"{numbers[3]:11.1e}")
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")
    return result


if __name__ == "__main__":
    main()
