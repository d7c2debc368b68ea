"""Memory of all processes of a run on a tree of ImageNet's shape, for few and for many images.

    python -m benchmarks.footprint [--photos DIR] [--images 5000,50000] [--out FILE]

The trees are hard links of the photographs (or of generated ones) in the folders of ImageNet-100. Each
run goes from images to the last phase in a process of its own, with a tiny network and two workers that
decode; features go to disk. Counted is the PSS of the process and all that it has started, which divides
shared memory among those who share it, five times a second; told is the most. A step of training takes
its most for some milliseconds, which few steps may hide: all runs train on as many images, those of few
images in more epochs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acil.bench.estimate import photograph
from acil.bench.orders import imagenet_classes
from benchmarks.timing import ROOT, environment

#: Test images of a class; the others are for training.
_TEST = 5
_PSS = re.compile(rb"^Pss:\s+(\d+) kB", re.MULTILINE)
_SIZE = 64


def write_tree(root: Path, photographs: Sequence[Path], number: int) -> Path:
    """Make ImageNet-100's folders out of hard links, so many images in all."""
    found = itertools.cycle(photographs)
    for wnid in imagenet_classes()[:100]:
        for split, count in (("train", number // 100 - _TEST), ("val", _TEST)):
            folder = root / split / wnid
            folder.mkdir(parents=True)
            for k in range(count):
                os.link(next(found), folder / f"{wnid}_{k}.JPEG")
    return root


def pss(pid: int) -> int:
    """Return the bytes of a process and of those that it has started."""
    total = 0
    for process in (pid, *_descendants(pid)):
        try:
            total += 1024 * int(_PSS.findall(Path(f"/proc/{process}/smaps_rollup").read_bytes())[0])
        except (OSError, IndexError):  # it has ended meanwhile
            continue
    return total


def _descendants(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        found = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []
    return [one for child in found for one in (child, *_descendants(child))]


def peak_of_run(tree: Path, out: Path, workers: int, epochs: int, method: str) -> dict[str, Any]:
    """Run the benchmark on a tree and return the most memory, and the seconds."""
    settings = {
        "recipe.backbone": "smallcnn",
        "recipe.backbone_options.size": _SIZE,
        "recipe.backbone_options.channels": 3,
        "recipe.training.epochs": epochs,
        "data.size": _SIZE,
        "data.workers": workers,
        "settings.increment.epochs": epochs,
    }
    command = [sys.executable, "-m", "acil", "bench", "run", "--dataset", f"imagenet100:{tree}"]
    command += ["--phases", "5", "--seeds", "0", "--method", method, "--expansion-size", "256"]
    command += ["--device", "cpu", "--out", str(out), "--json"]
    command += [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    started, most = time.monotonic(), 0
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": paths}, stdout=told, stderr=told
        )
        while process.poll() is None:
            most = max(most, pss(process.pid))
            time.sleep(0.2)
        if process.returncode:
            told.seek(0)
            raise RuntimeError(f"{' '.join(command)} failed:\n{told.read().decode(errors='replace')}")
    return {"pss": most, "seconds": time.monotonic() - started}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print and return it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photos", type=Path, help="JPEG files, in folders of any depth")
    parser.add_argument("--images", default="5000,50000", help="numbers of images")
    parser.add_argument("--method", default="acil")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=1, help="of the most images")
    parser.add_argument("--folder", type=Path, help="where the trees go; on the disk of the photographs")
    parser.add_argument("--out", type=Path, help="write the figures to this file, as JSON")
    options = parser.parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory(prefix="footprint-", dir=options.folder) as name:
        folder = Path(name)
        found = sorted(options.photos.rglob("*.jp*g")) if options.photos else []
        originals = []
        # Links do not cross disks.
        for k, content in enumerate([path.read_bytes() for path in found] or map(photograph, range(8))):
            originals.append(folder / f"{k}.JPEG")
            originals[-1].write_bytes(content)
        numbers = [int(text) for text in options.images.split(",")]
        for number in numbers:
            epochs = options.epochs * max(numbers) // number
            tree = write_tree(folder / f"tree-{number}", originals, number)
            run = peak_of_run(tree, folder / f"run-{number}", options.workers, epochs, options.method)
            rows.append({"images": number, "epochs": epochs, **run})
            print(
                f"{number:7,} images: {run['pss'] / 2**20:6.0f} MiB in {run['seconds']:.0f} s",
                flush=True,
            )
    result = {"method": options.method, "rows": rows, "growth": rows[-1]["pss"] - rows[0]["pss"]}
    result["environment"] = environment(module="benchmarks.footprint")
    print(f"growth: {result['growth'] / 1e6:.0f} MB")
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return result


if __name__ == "__main__":
    main()
