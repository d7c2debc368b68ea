"""How long the sums of one phase travel between processes of this machine, by gloo.

python benchmarks/network.py --processes 2 --widths 512,1024,2048
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from acil.core.linalg import panels
from acil.core.sums import Sums
from acil.scale import Group, all_reduce_

# Run as a script, Python looks for modules in this folder, not in the one above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.timing import run_python

_CLASSES = 100
_ROUNDS = 6


def reduction_seconds(processes: int, widths: Sequence[int]) -> list[float]:
    """Return the seconds of one reduction for each width, in so many processes."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "out.json"
        launcher = ("torch.distributed.run", "--standalone", f"--nproc-per-node={processes}")
        mine = (__file__, "--child", str(target), "--widths", ",".join(map(str, widths)))
        run_python(*launcher, *mine, module=True, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
        return list(json.loads(target.read_text(encoding="utf-8")))


def child(widths: Sequence[int], target: Path) -> None:
    """Take part in the reductions; rank 0 writes the fastest of several rounds."""
    best = dict.fromkeys(widths, float("inf"))
    with Group.join(device="cpu") as group:
        # Widths take turns, so that all meet the same machine.
        for width in [*widths] * _ROUNDS:
            sums = Sums(width, _CLASSES, torch.float64)
            group.exchange()
            start = time.perf_counter()
            _reduce(sums, group)
            best[width] = min(best[width], time.perf_counter() - start)
        if group.leads:
            target.write_text(json.dumps([best[width] for width in widths]), encoding="utf-8")


def _reduce(sums: Sums, group: Group) -> None:
    """Add up the sums of all processes, as learning does."""
    for start, stop in panels(len(sums.gram)):
        sums.gram[start:stop, :stop] = all_reduce_(sums.gram[start:stop, :stop].contiguous(), group)
    for part in (sums.moment, sums.total, sums.target_total, sums.counts):
        all_reduce_(part, group)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--widths", default="512,1024,2048")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    widths = [int(width) for width in arguments.widths.split(",")]
    if arguments.child:
        child(widths, arguments.child)
        return
    for width, taken in zip(widths, reduction_seconds(arguments.processes, widths), strict=True):
        size = 8 * (width * (width + 1) / 2 + width * _CLASSES)
        print(f"d = {width:5}: {taken * 1e3:8.1f} ms, {size / taken / 1e9:6.2f} GB/s")


if __name__ == "__main__":
    main()
