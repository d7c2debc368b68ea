"""Measure how fast features of images are extracted, against the package's own eager forward.

    python benchmarks/extraction.py [--images 48] [--rounds 9] [--folder FOLDER] [--out FILE]

*Ours* is `Embedder.embed`: pixels in, features out, normalisation included, in whatever batch they come.
*Eager* is what a user of the package writes: the pre-trained network in evaluation mode, without
gradients, on input that is normalised beforehand, in batches of one size. Every size of `BATCHES` is
measured, and all images in one batch.

A round goes through the eager sizes, and runs ours right after each of them, so that both meet the same
machine; every second round goes through them backwards. The *rate* of a row is the median over all
rounds, in images a second. The *ratio* of a row is ours to eager, of the two passes that follow one
another: the median over all rounds, with the smallest and the largest. No row is picked as the best of a
round, because the best of several noisy numbers is on average too good. Compare the ratios, not the
rates, and leave eager as many threads as there are cores: ours uses all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acil.encoders.images.architectures import Backbone
from acil.encoders.images.decode import normalise
from acil.encoders.images.embedder import Embedder
from acil.encoders.images.listing import list_images
from acil.encoders.images.networks import EfficientNetLite0, open_efficientnet

#: Batches of the eager forward; all images at once are measured too.
BATCHES = (1, 4, 8, 16, 30)
#: Batches in which our features are compared, bit for bit.
CHECKED = (1, 7, 30)


def rate(action: Callable[[Tensor], object], images: Tensor) -> float:
    """Return images a second of one pass."""
    start = time.perf_counter()
    action(images)
    return len(images) / (time.perf_counter() - start)


def eager(network: Backbone, batch_size: int) -> Callable[[Tensor], None]:
    """Return the plain forward in batches of a size."""

    def run(inputs: Tensor) -> None:
        with torch.no_grad():
            for batch in inputs.split(batch_size):
                network(batch)

    return run


def pixels(embedder: Embedder, number: int, folder: Path | None) -> Tensor:
    """Return images of a folder, or random ones."""
    size = embedder.preprocessing.size
    if folder is not None:
        paths = list_images(folder, None).paths
        chosen = paths[:: max(1, len(paths) // number)][:number]
        return torch.stack([embedder.decode(path) for path in chosen])
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (number, 3, size, size), dtype=torch.uint8, generator=generator)


def compared(network: Backbone, embedder: Embedder, images: Tensor, rounds: int) -> list[dict[str, Any]]:
    """Return the rates and ratios of all batch sizes, ours first."""
    inputs = normalise(images, network.preprocessing)
    sizes = sorted({size for size in BATCHES if size < len(images)} | {len(images)})
    pairs: dict[int, list[tuple[float, float]]] = {size: [] for size in sizes}
    # Memory and threads of the first pass are not what is measured.
    embedder.embed(images)
    for size in sizes:
        eager(network, size)(inputs)
    for number in range(rounds):
        for size in sizes if number % 2 == 0 else reversed(sizes):
            theirs = rate(eager(network, size), inputs)
            pairs[size].append((rate(embedder.embed, images), theirs))
    ours = [mine for found in pairs.values() for mine, _ in found]
    rows: list[dict[str, Any]] = [{"what": "ours", "images_a_second": statistics.median(ours)}]
    for size, found in pairs.items():
        ratios = [mine / theirs for mine, theirs in found]
        rows.append(
            {
                "what": f"eager, batches of {size}",
                "images_a_second": statistics.median(theirs for _, theirs in found),
                "ratio": statistics.median(ratios),
                "ratio_min": min(ratios),
                "ratio_max": max(ratios),
            }
        )
    return rows


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print a table and return it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", type=Path, help="photographs, one folder for each class")
    parser.add_argument("--out", type=Path, help="write the figures to this file, as JSON")
    options = parser.parse_args(argv)
    network, embedder = EfficientNetLite0().eval(), open_efficientnet()
    images = pixels(embedder, options.images, options.folder)
    whole = embedder.embed(images)
    same = all(
        torch.equal(whole, torch.cat([*map(embedder.embed, images.split(size))])) for size in CHECKED
    )
    result: dict[str, Any] = {
        "machine": f"{len(os.sched_getaffinity(0))} cores, {torch.get_num_threads()} threads of torch "
        f"{torch.__version__}, {embedder.engine}",
        "images": len(images),
        "rounds": options.rounds,
        "same_bits": same,
        "rows": compared(network, embedder, images, options.rounds),
    }
    print(f"{result['machine']}; {len(images)} images, median of {options.rounds} rounds")
    print(f"{'':24} {'images/s':>9} {'ours/eager':>11} {'min':>6} {'max':>6}")
    for row in result["rows"]:
        ratios = ""
        if "ratio" in row:
            ratios = f" {row['ratio']:11.2f} {row['ratio_min']:6.2f} {row['ratio_max']:6.2f}"
        print(f"{row['what']:24} {row['images_a_second']:9.1f}{ratios}")
    print(f"the same bits in batches of {', '.join(map(str, CHECKED))}: {'yes' if same else 'NO'}")
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return result


if __name__ == "__main__":
    main()
