"""Images a second of training from JPEG files, beside the same loop on tensors and beside bare decoding.

    python -m benchmarks.jpegs [--device cuda] [--workers N] [--seconds 8] [--out FILE]

Files are generated, of the size of ImageNet's (500 x 375 pixels, some 110 kB), into a temporary folder,
and stay in the page cache: what is measured is processors and the GPU, not a disk. In turns, so that all
meet the same machine:

- *bare*: N processes read, decode and cut out random parts, by the package's decoder; nobody takes them.
- *Pillow*: the same by Pillow alone, at full resolution, as torchvision's RandomResizedCrop does.
- *loader*: `ImageFiles.stream` with N workers, whose batches arrive in this process.
- *tensors*: the recipe's training on random tensors that are on the device.
- *files*: the same training from the files, by N workers.

Then a run of the benchmark on a tree of ImageNet's shape (hard links of the files), which tells how fast
its training and its features were. The ratio of each row is to the row named beside it.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import multiprocessing
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import acil.bench
from acil.bench.estimate import photograph
from acil.bench.orders import imagenet_classes
from acil.bench.training.loop import Batches, _numerics, _own_stream
from acil.bench.training.network import Network
from acil.bench.training.objectives import CrossEntropy
from acil.bench.training.recipes import Recipe, recipe
from acil.bench.training.settings import Training, changed
from acil.bench.training.step import Step
from acil.encoders.images.backbones import build
from acil.encoders.images.decode import decode_box
from acil.encoders.images.embedder import worker_threads
from acil.encoders.images.imagefiles import AHEAD, SHARED_MEMORY, ImageFiles, random_part
from acil.encoders.images.imageset import ImageSet
from benchmarks.timing import environment, synchronize

#: Images that a process of bare decoding takes at a time.
_PART = 32
#: Training steps that warm up: cuDNN chooses, a graph is recorded, workers fill their queues.
_WARM_UP = 20
#: Images of an epoch: the base of ImageNet-100 has 65,000.
_EPOCH = 65_000


def _write_photograph(path: Path) -> None:
    path.write_bytes(photograph(int(path.stem)))


def _decode_part(paths: Sequence[Path], size: int, seed: int, plain: bool) -> int:
    """Decode files and keep nothing."""
    for place, path in enumerate(paths):
        choose = random_part(random.Random(seed + place))
        if plain:
            with Image.open(path) as image:
                whole = image.convert("RGB")
            np.asarray(whole.resize((size, size), Image.Resampling.BILINEAR, choose(*whole.size)))
        else:
            decode_box(path, size, choose)
    return len(paths)


class Bare:
    """Processes that generate files, decode them, and keep nothing."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        # Threads of torch do not survive a fork.
        self.pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))

    def write(self, folder: Path, number: int) -> list[Path]:
        """Generate JPEG files."""
        paths = [folder / f"{k}.JPEG" for k in range(number)]
        list(self.pool.map(_write_photograph, paths, chunksize=8))
        return paths

    def rate(self, paths: Sequence[Path], size: int, seconds: float, plain: bool) -> float:
        """Return images a second of all processes together; plain is Pillow alone."""
        parts = [paths[k : k + _PART] for k in range(0, len(paths), _PART)]
        # The first ones wait for processes to start, and the last ones end alone.
        count = 8 * self.workers
        given = (list(itertools.islice(itertools.cycle(parts), count)), [size] * count, range(count))
        list(self.pool.map(_decode_part, *given, [plain] * count))
        started, done = time.perf_counter(), 0
        while True:
            done += sum(self.pool.map(_decode_part, *given, [plain] * count))
            elapsed = time.perf_counter() - started
            if elapsed >= seconds:
                return done / elapsed


def loader_rate(files: ImageFiles, batch_size: int, seconds: float) -> float:
    """Return images a second that arrive from the workers, after the first batches of each."""
    until: list[float] = []

    def tasks() -> Iterator[list[Any]]:
        places = itertools.count()
        while not until or time.perf_counter() < until[0]:
            yield [files.task(k % len(files), k) for k in itertools.islice(places, batch_size)]

    warm = 2 * max(1, files.workers)
    started = last = 0.0
    done = 0
    for place, batch in enumerate(files.stream(tasks(), _EPOCH, files.view.size)):
        if place == warm:
            started = time.perf_counter()
            until.append(started + seconds)
        elif place > warm:
            done += len(batch)
        last = time.perf_counter()
    return done / (last - started)


def training_rate(
    images: Tensor | ImageSet, chosen: Recipe, settings: Training, device: torch.device, seconds: float
) -> dict[str, float]:
    """Return images a second of the recipe's steps, and the seconds until the first batch was there."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 50, (len(images),), generator=generator)
    backbone = build(chosen.backbone, generator, **dict(chosen.backbone_options))
    network = Network(backbone, 50, generator=generator).to(device)
    network.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    # What workers have decoded meanwhile is used up before time counts.
    waiting = 2 * AHEAD * images.files.workers if isinstance(images, ImageSet) and images.files else 0
    with _numerics(device, settings), _own_stream(device):
        batches = Batches(images, labels, settings, backbone.preprocessing, 0, device)
        step = Step(network, CrossEntropy(), settings, device)
        begun, first, started, done = time.perf_counter(), 0.0, 0.0, 0
        with closing(_epochs(batches)) as stream:
            for place, batch in enumerate(stream):
                first = first or time.perf_counter() - begun
                step(*batch)
                if place < _WARM_UP + waiting:
                    continue
                if not started:
                    synchronize(device)
                    started = time.perf_counter()
                    continue
                done += len(batch[1])
                if time.perf_counter() - started >= seconds:
                    break
        synchronize(device)
        elapsed = time.perf_counter() - started
        step.mean_loss_and_accuracy(done)
        step.close()
    return {"images_per_second": done / elapsed, "first_batch_seconds": first}


def _epochs(batches: Batches) -> Generator[Any]:
    for epoch in itertools.count():
        yield from batches.epoch(epoch)


def write_tree(root: Path, paths: Sequence[Path], train: int, test: int) -> Path:
    """Make folders of ImageNet-100 out of hard links, so many images a class."""
    found = itertools.cycle(paths)
    for wnid in imagenet_classes()[:100]:
        for split, number in (("train", train), ("val", test)):
            folder = root / split / wnid
            folder.mkdir(parents=True)
            for k in range(number):
                os.link(next(found), folder / f"{wnid}_{k}.JPEG")
    return root


def run_benchmark(tree: Path, workers: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return what a run of the benchmark tells of its speed, base training to last phase."""
    speeds: dict[str, list[float]] = {"training": [], "features": []}

    def told(event: Any) -> None:
        if hasattr(event, "images_per_second"):
            speeds["training"].append(event.images_per_second)
        elif hasattr(event, "total"):
            speeds["features"].append(event.per_second)

    started = time.perf_counter()
    records = acil.bench.run(
        dataset=f"imagenet100:{tree}",
        phases=5,
        seeds=0,
        device=str(options.device),
        expansion_size=options.width,
        progress=told,
        set={
            "recipe.training.epochs": options.epochs,
            "data.workers": workers,
            "data.size": options.size,
            **options.changes,
        },
    )
    seconds = time.perf_counter() - started
    summary = next(record for record in records if record["kind"] == "summary")
    last = {f"{name}_per_second": found[-1] for name, found in speeds.items() if found}
    return {"seconds": seconds, "phases": summary["phases"], **last}


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return all rates."""
    device, workers = torch.device(options.device), options.workers
    waiting = (AHEAD * workers + 1) * options.batch_size * 3 * options.size**2
    free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else waiting
    if waiting > free:
        raise SystemExit(
            f"Decoded batches wait in {SHARED_MEMORY}, which has {free / 2**20:.0f} MiB free of the "
            f"{waiting / 2**20:.0f} MiB that {workers} workers need. Choose fewer --workers."
        )
    started = time.perf_counter()
    bare = Bare(workers)
    paths = bare.write(folder, options.files)
    result: dict[str, Any] = {
        "workers": workers,
        "files": len(paths),
        "file_bytes": statistics.fmean(path.stat().st_size for path in paths),
        "generating_seconds": time.perf_counter() - started,
    }
    changes = {name.removeprefix("recipe."): value for name, value in options.changes.items()}
    chosen = changed(recipe("imagenet"), changes)
    settings = dataclasses.replace(chosen.training, batch_size=options.batch_size)
    names = np.array([path.name.encode() for path in paths])
    repeated = np.resize(names, max(len(names), min(_EPOCH, options.epoch)))
    places = np.zeros(len(repeated), dtype=np.int32)
    files = ImageFiles([folder], places, repeated, "jpegs", size=options.size, workers=workers)
    rates: dict[str, list[float]] = {"bare": [], "Pillow": [], "loader": []}
    given = (paths, options.size, options.seconds)
    for _ in range(options.rounds):
        rates["bare"].append(bare.rate(*given, plain=False))
        rates["loader"].append(loader_rate(files, options.batch_size, options.seconds))
    rates["Pillow"].append(bare.rate(*given, plain=True))
    bare.pool.shutdown()
    result |= {name: statistics.median(found) for name, found in rates.items()}
    ratios = [ours / theirs for ours, theirs in zip(rates["loader"], rates["bare"], strict=True)]
    result |= {"loader_to_bare": statistics.median(ratios), "loader_to_bare_rounds": ratios}
    result["loader_to_pillow"] = result["loader"] / result["Pillow"]
    # As the loader hands them over: cut out already, the rest of the augmentation on the device
    cut = dataclasses.replace(
        settings, augment=tuple(name for name in settings.augment if name != "resizedcrop")
    )
    shape = (min(len(paths), 16 * options.batch_size), 3, options.size, options.size)
    tensors = torch.randint(0, 256, shape, dtype=torch.uint8).to(device)
    result["tensors"] = training_rate(tensors, chosen, cut, device, options.seconds)
    del tensors
    result["from_files"] = training_rate(ImageSet(files), chosen, settings, device, options.seconds)
    rate = result["from_files"]["images_per_second"]
    result["files_to_tensors"] = rate / result["tensors"]["images_per_second"]
    result["files_to_loader"] = rate / result["loader"]
    if options.train_images:
        tree = write_tree(folder / "tree", paths, options.train_images, options.test_images)
        result["run"] = run_benchmark(tree, workers, options)
    return result


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print and return it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=worker_threads(), help="by default one a core")
    parser.add_argument("--files", type=int, default=2048, help="JPEG files to generate")
    parser.add_argument("--epoch", type=int, default=_EPOCH, help="images of an epoch")
    parser.add_argument("--size", type=int, default=224, help="side in pixels of what the network sees")
    parser.add_argument("--batch-size", type=int, default=recipe("imagenet").training.batch_size)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=2, help="of bare decoding and of the loader")
    parser.add_argument("--train-images", type=int, default=130, help="of a class in the run; 0: no run")
    parser.add_argument("--test-images", type=int, default=10, help="of a class in the run")
    parser.add_argument("--epochs", type=int, default=3, help="of base training in the run")
    parser.add_argument("--width", type=int, default=4000, help="of the expansion in the run")
    parser.add_argument("--small", action="store_true", help="the tiny network, to try the script")
    parser.add_argument("--folder", type=Path, help="where temporary files go")
    parser.add_argument("--out", type=Path, help="write the figures to this file, as JSON")
    options = parser.parse_args(argv)
    options.changes = {}
    if options.small:
        options.changes = {
            "recipe.backbone": "smallcnn",
            "recipe.backbone_options.size": options.size,
            "recipe.backbone_options.channels": 3,
        }
    with tempfile.TemporaryDirectory(prefix="jpegs-", dir=options.folder) as folder:
        result = measure(options, Path(folder))
    where = str(torch.device(options.device).type)
    result["environment"] = environment(where, "benchmarks.jpegs")
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return result


if __name__ == "__main__":
    main()
