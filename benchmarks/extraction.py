"""Measure how fast features of images are extracted, against the package's own eager forward.

    python benchmarks/extraction.py [--images 16]

One run, one machine, the same images and threads: compare the ratio, not the seconds.
"""

import argparse
import time

import torch

from acil.vision.base import normalise
from acil.vision.efficientnet import EfficientNetLite0, open_efficientnet

#: Batches of the eager forward; its fastest counts.
BATCHES = (1, 8)


def rate(function, images):
    """Return images a second of one pass."""
    start = time.perf_counter()
    function(images)
    return len(images) / (time.perf_counter() - start)


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=16)
    number = parser.parse_args().images
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (number, 3, 224, 224), dtype=torch.uint8, generator=generator)
    network, embedder = EfficientNetLite0().eval(), open_efficientnet()

    def eager(batch_size):
        def run(pixels):
            with torch.no_grad():
                for start in range(0, len(pixels), batch_size):
                    network(normalise(pixels[start : start + batch_size], network.preprocessing))

        return run

    embedder.embed(images[:2])
    eager(1)(images[:2])
    eager_rates = {size: rate(eager(size), images) for size in BATCHES}
    ours = rate(embedder.embed, images)
    for size, speed in eager_rates.items():
        print(f"eager forward, batches of {size:2}  {speed:7.1f} images/s")
    print(f"acil ({embedder.engine}), one by one {ours:7.1f} images/s")
    print(f"ratio to the fastest eager forward: {ours / max(eager_rates.values()):.1f}")
    whole = embedder.embed(images)
    bits = all(
        torch.equal(whole, torch.cat([*map(embedder.embed, images.split(size))])) for size in (1, 7, 16)
    )
    print(f"the same bits in batches of 1, 7 and 16: {'yes' if bits else 'NO'}")


if __name__ == "__main__":
    main()
