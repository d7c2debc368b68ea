r"""What a report of `acil evaluate` costs, and whether it finds labels that are wrong.

::

    python -m benchmarks.report --text FILE --photos FOLDER --cache FOLDER

Labels: a model learns training samples, and 2 % of the labels of the test samples are replaced by other
classes at random. How many of these are among the first 4 % that the report calls probably mislabelled?
Cost: a report of 6,000 images of 200 classes, each of 1280 x 960 pixels; half of them are confused. What
counts are seconds of the processor, and the memory that the process takes beyond what it had before.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from acil import ACILClassifier, ImageClassifier
from acil.encoders.images.decode import thumbnail
from acil.growing.results import Evaluation
from acil.growing.snapshot import Snapshot, Tracker
from benchmarks.page import table
from benchmarks.suggest import digits, samples
from benchmarks.vectors import Vectors, photographs, sentences

FLIPPED, LOOKED_AT = 0.02, 0.04
CLASSES, IMAGES, SIDES = 200, 6000, (1280, 960)


def mislabelled(name: str, data: Vectors, seeds: int) -> dict[str, Any]:
    """Return how many of the flipped labels the first few of a report have, in percent."""
    model = ImageClassifier()
    model.learn(samples(data, np.flatnonzero(~data.test)))
    held_out = samples(data, np.flatnonzero(data.test))
    classes = np.array(model.classes_)
    n = len(held_out.labels)
    shares = []
    for seed in range(seeds):
        generator = np.random.default_rng(seed)
        flipped = generator.choice(n, round(FLIPPED * n), replace=False)
        labels = held_out.labels.copy()
        for place in flipped:
            labels[place] = generator.choice(classes[classes != labels[place]])
        found = model.evaluate(replace(held_out, labels=labels))
        first = {p.image for _, p in found.wrong[: int(np.ceil(LOOKED_AT * n))]}
        shares.append(100 * np.mean([held_out.images[place] in first for place in flipped]))
    return {
        "data": name,
        "samples": n,
        "flipped": round(FLIPPED * n),
        "found": f"{np.mean(shares):.1f} ± {np.std(shares, ddof=1) / np.sqrt(seeds):.1f}",
    }


def cost() -> dict[str, Any]:
    """Return seconds, MiB in memory and MB of the file of a report of many images."""
    generator = np.random.default_rng(0)
    centres = 2 * generator.normal(size=(CLASSES, 64))
    y = np.arange(IMAGES) % CLASSES
    X, X_test = (centres[y] + 5.0 * generator.normal(size=(IMAGES, 64)) for _ in range(2))
    names = np.array([f"class {label:03d}" for label in range(CLASSES)])
    head = ACILClassifier(expansion_size=None, scores="discriminant").partial_fit(X, names[y])
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder, f"{number}.jpg") for number in range(50)]
        for place in places:
            coarse = generator.integers(0, 256, (30, 40, 3), dtype=np.uint8)
            Image.fromarray(coarse).resize(SIDES, Image.Resampling.BICUBIC).save(place, quality=90)
        state = Snapshot.of(head, Tracker(), None)
        images = [f"{number}.jpg" for number in range(IMAGES)]
        given = names[y].tolist()
        predictions = state.classify(X_test, images, 3, 1.0, given)
        found = Evaluation.of(
            list(state.totals), given, predictions, 1.0,
            lambda name: thumbnail(places[int(name.removesuffix(".jpg")) % len(places)], 160),
        )  # fmt: skip
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak begins anew
        before, start = _peak(), time.process_time()
        page = Path(folder, "report.html")
        found.to_html(page)
        seconds = time.process_time() - start
        return {
            "images": IMAGES,
            "classes": CLASSES,
            "right": found.accuracy,
            "seconds": seconds,
            "memory": _peak() - before,
            "file": page.stat().st_size / 1e6,
        }


def _peak() -> float:
    """Return the most memory that this process has taken since its peak began, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


COSTS = {
    "images": ("images", ",d"),
    "classes": ("classes", "d"),
    "right": ("right, %", ".1f"),
    "seconds": ("s", ".1f"),
    "memory": ("MiB in memory", ".0f"),
    "file": ("MB of the file", ".1f"),
}
FOUND = {
    "data": ("data", ""),
    "samples": ("samples", ",d"),
    "flipped": ("flipped", "d"),
    "found": ("found among the first 4 %, %", ""),
}


def main() -> None:
    """Measure and print two tables."""
    parser = argparse.ArgumentParser(
        description="What a report costs, and whether it finds wrong labels."
    )
    parser.add_argument("--text", type=Path, help="clinc150.json.gz")
    parser.add_argument("--photos", type=Path, help="a folder with train and test")
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    # First: what others took before would hide what it takes.
    print(table([cost()], COSTS), flush=True)
    data = {"digits": digits()}
    if given.photos is not None:
        data["photographs"] = photographs(given.photos)
    if given.text is not None:
        data["sentences"] = sentences(given.text, given.cache)
    rows = [mislabelled(name, vectors, given.seeds) for name, vectors in data.items()]
    print(table(rows, FOUND))


if __name__ == "__main__":
    main()
