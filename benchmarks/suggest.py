r"""How many labels `acil suggest` saves, against labelling samples at random.

::

    python -m benchmarks.suggest --text FILE --photos FOLDER --cache FOLDER \
        --record docs/performance/suggest.json
    python -m benchmarks.suggest --show --record docs/performance/suggest.json \
        --plot docs/performance/suggest.png --page docs/own-images.md

The first measures sentences (CLINC150, as vectors of MiniLM), photographs (as features of the default
network) and digits (pixels, which scikit-learn ships); without ``--text`` and ``--photos`` only digits.
The second shows what was recorded.

It begins with one label of each class, chosen at random. Then samples are labelled in steps: those that
a model of the labels so far suggests, or random ones. Test samples only tell the accuracy.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from acil import ImageClassifier, __version__
from acil.encoders.samples import Samples
from benchmarks.page import fill, table
from benchmarks.vectors import Vectors, photographs, sentences

#: Labels in a step, and in all, by data set; random choice goes on to the last number.
STEPS = {"sentences": (50, 600, 1500), "digits": (10, 150, 400), "photographs": (10, 100, 150)}
SUGGESTED, RANDOM = "suggested", "random"


def digits() -> Vectors:
    """Return the digits of scikit-learn: the pixels, and every third image for testing only."""
    found = load_digits()
    return Vectors(found.data / 16, found.target, np.arange(len(found.target)) % 3 == 0)


def samples(data: Vectors, places: np.ndarray) -> Samples:
    """Return rows as samples, which are called by their places."""
    names = tuple(map(str, places.tolist()))
    labels = np.array([f"class {label:03d}" for label in data.y[places]])
    rows = data.X[places].astype(np.float32)
    return Samples(rows, labels, names, names, (), None, None, 0.0)


def curve(data: Vectors, rule: str, seed: int, step: int, last: int) -> Iterator[tuple[int, float]]:
    """Yield numbers of labels, and the accuracy in percent of a model that has learnt them."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(np.flatnonzero(~data.test))
    begin = np.array([order[data.y[order] == label][0] for label in range(int(data.y.max()) + 1)])
    pool = order[~np.isin(order, begin)]
    held_out = samples(data, np.flatnonzero(data.test))
    model, chosen, labels = ImageClassifier(), begin, 0
    while True:
        model.learn(samples(data, chosen))
        labels += len(chosen)
        found = model.snapshot.solved().predict(held_out.features)
        yield labels, 100 * float((found == held_out.labels).mean())
        if labels + step > last or len(pool) < step:
            return
        chosen = pool[:step]
        if rule == SUGGESTED:
            chosen = np.array([int(p.image) for p in model.suggest(samples(data, pool), step)])
        pool = pool[~np.isin(pool, chosen)]


def measure(name: str, data: Vectors, seeds: int) -> dict[str, Any]:
    """Return the curves of both rules for each seed: the same first labels for both."""
    step, last, farthest = STEPS[name]
    found: dict[str, Any] = {"data": name, "classes": int(data.y.max()) + 1}
    for rule, end in ((SUGGESTED, last), (RANDOM, farthest)):
        curves = []
        for seed in range(seeds):
            labels, accuracies = zip(*curve(data, rule, seed, step, end), strict=True)
            curves.append([round(accuracy, 3) for accuracy in accuracies])
            print(
                f"{name}, {rule}, seed {seed}: {accuracies[-1]:.2f} % of {labels[-1]} labels", flush=True
            )
        found[rule] = {"labels": labels, "accuracy": curves}
    return found


def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the page shows of a data set: a row in the middle, and one at the end."""
    suggested, random = (np.array(found[rule]["accuracy"]) for rule in (SUGGESTED, RANDOM))
    labels, more = found[SUGGESTED]["labels"], np.array(found[RANDOM]["labels"])
    n = len(labels)
    gains = suggested - random[:, :n]
    shown = []
    for place in (n // 2, n - 1):
        reached = suggested[:, place].mean()
        mean = random.mean(axis=0)
        # Between two steps accuracy is taken to grow evenly.
        needed = float(np.interp(reached, mean, more)) if reached <= mean.max() else None
        shown.append(
            {
                "data": found["data"],
                "labels": labels[place],
                RANDOM: mean[place],
                SUGGESTED: reached,
                "gain": f"{gains[:, place].mean():+.1f} ± {_error(gains[:, place]):.1f}",
                "needed": f"more than {more[-1]}" if needed is None else f"{needed:.0f}",
            }
        )
    return shown


def _error(values: np.ndarray) -> float:
    """Return the standard error of a mean over seeds."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def draw(record: list[dict[str, Any]], path: Path) -> None:
    """Draw accuracy against labels, a panel a data set; the band is one standard error."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(record), 3.2), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(record)))
    for axes, found in zip(panels, record, strict=True):
        end = found[SUGGESTED]["labels"][-1]
        for rule, colour in ((RANDOM, "tab:gray"), (SUGGESTED, "tab:blue")):
            labels = np.array(found[rule]["labels"])
            accuracy = np.array(found[rule]["accuracy"])[:, labels <= end]
            labels = labels[labels <= end]
            mean = accuracy.mean(axis=0)
            error = accuracy.std(axis=0, ddof=min(1, len(accuracy) - 1)) / np.sqrt(len(accuracy))
            axes.plot(labels, mean, color=colour, label=rule)
            axes.fill_between(labels, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)
        axes.set(
            title=f"{found['data']}, {found['classes']} classes", xlabel="labels", ylabel="accuracy, %"
        )
        axes.grid(alpha=0.3)
    panels[0].legend(loc="lower right", frameon=False)
    figure.savefig(path, dpi=110)


COLUMNS = {
    "data": ("data", ""),
    "labels": ("labels", "d"),
    RANDOM: ("at random, %", ".1f"),
    SUGGESTED: ("suggested, %", ".1f"),
    "gain": ("gain, points", ""),
    "needed": ("labels that random choice needs for that", ""),
}


def main() -> None:
    """Measure, or show what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, what in (("text", "clinc150.json.gz"), ("photos", "a folder with train and test")):
        parser.add_argument(f"--{name}", type=Path, help=what)
    for name in ("cache", "record", "plot", "page"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--show", action="store_true", help="measure nothing: show the record")
    given = parser.parse_args()
    if given.show:
        found = json.loads(given.record.read_text())["data"]
    else:
        data = {"digits": digits()}
        if given.text is not None:
            data["sentences"] = sentences(given.text, given.cache)
        if given.photos is not None:
            data["photographs"] = photographs(given.photos)
        found = [measure(name, vectors, given.seeds) for name, vectors in data.items()]
        if given.record is not None:
            given.record.write_text(json.dumps({"acil": __version__, "data": found}) + "\n")
    shown = table([row for each in found for row in rows(each)], COLUMNS)
    print(shown)
    if given.plot is not None:
        draw(found, given.plot)
    if given.page is not None:
        fill(given.page, {"suggest": shown})


if __name__ == "__main__":
    main()
