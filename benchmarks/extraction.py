"""Measure how fast features of images are extracted, against the package's own eager forward.

    python benchmarks/extraction.py [--images 48] [--rounds 5] [--folder FOLDER]

The eager side is what a user of the package writes: the pre-trained network in evaluation mode, without
gradients, on input that is normalised beforehand. Both sides take turns on the same images and the same
cores; of all batch sizes of the eager side the fastest counts. Compare the ratio, not the seconds.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch

from acil.vision.base import normalise
from acil.vision.decode import decode
from acil.vision.efficientnet import EfficientNetLite0, open_efficientnet
from acil.vision.listing import list_images

#: Batches of the eager forward.
BATCHES = (1, 8, 30)
#: Batches in which our features are compared, bit for bit.
CHECKED = (1, 7, 30)


def rate(function, images):
    """Return images a second of one pass."""
    start = time.perf_counter()
    function(images)
    return len(images) / (time.perf_counter() - start)


def eager(network, batch_size):
    """Return the plain forward in batches of a size."""

    def run(inputs):
        with torch.no_grad():
            for batch in inputs.split(batch_size):
                network(batch)

    return run


def pixels(embedder, number, folder):
    """Return images of a folder, or random ones."""
    size = embedder.preprocessing.size
    if folder is not None:
        paths = list_images(folder, None).paths
        chosen = paths[:: max(1, len(paths) // number)][:number]
        return torch.stack([decode(path, size, embedder.mode, embedder.crop) for path in chosen])
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (number, 3, size, size), dtype=torch.uint8, generator=generator)


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="photographs, one folder for each class")
    options = parser.parse_args()
    network, embedder = EfficientNetLite0().eval(), open_efficientnet()
    images = pixels(embedder, options.images, options.folder)
    inputs = normalise(images, network.preprocessing)
    whole = embedder.embed(images)
    eager(network, max(BATCHES))(inputs)

    rates = {size: [] for size in (*BATCHES, "ours")}
    for _ in range(options.rounds):
        for size in BATCHES:
            rates[size].append(rate(eager(network, size), inputs))
        rates["ours"].append(rate(embedder.embed, images))
    ratios = [
        ours / max(others) for ours, *others in zip(rates["ours"], *map(rates.get, BATCHES), strict=True)
    ]
    print(f"{len(images)} images, median of {options.rounds} rounds, {torch.get_num_threads()} threads")
    for size in BATCHES:
        print(f"eager forward, batches of {size:2}  {statistics.median(rates[size]):7.1f} images/s")
    print(f"acil ({embedder.engine})          {statistics.median(rates['ours']):7.1f} images/s")
    print(f"ratio to the fastest eager forward of each round: {statistics.median(ratios):.2f}")
    print(f"from {min(ratios):.2f} to {max(ratios):.2f}")
    bits = all(
        torch.equal(whole, torch.cat([*map(embedder.embed, images.split(size))])) for size in CHECKED
    )
    print(f"the same bits in batches of {', '.join(map(str, CHECKED))}: {'yes' if bits else 'NO'}")


if __name__ == "__main__":
    main()
