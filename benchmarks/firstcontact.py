r"""What a newcomer meets: the default, ``ACILClassifier()``, against what scikit-learn offers.

::

    python -m benchmarks.firstcontact --photos FOLDER --text FILE --cifar FOLDER --network FILE \
        --record docs/performance/firstcontact-after.json
    python -m benchmarks.firstcontact --sets --before docs/performance/firstcontact-before.json \
        --record docs/performance/firstcontact-after.json --page docs/first-contact.md

measures, and fills the page from two records. Run it whenever the rule that reads scores from the sums
changes; the record before the change is that of the commit before. Data that are not given are left out.
"""

from __future__ import annotations

import argparse
import json
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn import datasets
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from acil import ACILClassifier, __version__
from benchmarks.page import fill
from benchmarks.vectors import Vectors, long_tail, photographs, sentences

TABLES = ("iris", "wine", "breast_cancer", "digits")
#: Samples of each class of the newer half.
FEW = (1, 2, 5, 10)
#: How many times as far from the centre rows of a ray are.
RAY = (1, 2, 4, 6, 10)
DEFAULT, LINEAR = "default", "discriminants"
LOGISTIC, BALANCED, LDA = "logistic", "balanced logistic", "LDA"
OURS, REFERENCES = (DEFAULT, LINEAR), (LOGISTIC, BALANCED, LDA)
Figures = dict[str, Any]


class Split(NamedTuple):
    """Samples to learn and to be tested with; labels are 0, 1, …, the newer half last."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


class Data(NamedTuple):
    """A data set; ``test`` marks samples that are never learnt; vectors of a network are not scaled."""

    name: str
    X: np.ndarray
    y: np.ndarray
    test: np.ndarray | None = None

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return int(self.y.max()) + 1

    def split(self, seed: int, few: int | None = None) -> Split:
        """Learn 70 % of each class, or all that is not for testing; few of each of the newer half."""
        generator = np.random.default_rng(seed)
        order = generator.permutation(self.n_classes)
        learnt: list[np.ndarray] = []
        tested: list[np.ndarray] = []
        for place, label in enumerate(order):
            found = generator.permutation(np.flatnonzero(self.y == label))
            if self.test is None:
                n = int(0.7 * len(found))
                train, test = found[:n], found[n:]
            else:
                train, test = found[~self.test[found]], found[self.test[found]]
            newer = few is not None and place >= self.n_classes // 2
            learnt.append(train[: few if newer else None])
            tested.append(test)
        new = np.argsort(order)
        rows, held_out = np.concatenate(learnt), np.concatenate(tested)
        return Split(self.X[rows], new[self.y[rows]], self.X[held_out], new[self.y[held_out]])

    def model(self, name: str) -> Any:
        """Return a new model."""
        tables = self.test is None
        makers: dict[str, Callable[[], Any]] = {
            DEFAULT: lambda: ACILClassifier(),
            # What heads of images are; with scaled features, what this page recommended for tables
            LINEAR: lambda: ACILClassifier(
                expansion_size=None, scores="discriminant", standardize=tables
            ),
            LOGISTIC: lambda: make_pipeline(
                StandardScaler(), LogisticRegression(max_iter=1000, tol=1e-3)
            ),
            BALANCED: lambda: make_pipeline(
                StandardScaler(), LogisticRegression(max_iter=1000, tol=1e-3, class_weight="balanced")
            ),
            LDA: lambda: LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"),
        }
        return makers[name]()


def table(name: str) -> Data:
    """Return a table of scikit-learn."""
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return Data(name.replace("_", " "), X, y)


def recall(found: np.ndarray, y: np.ndarray, classes: Sequence[int] | np.ndarray) -> float:
    """Return the mean share of right answers of some classes, in percent."""
    return 100 * float(np.mean([np.mean(found[y == c] == c) for c in classes]))


def confidence(model: Any, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the highest probability of each row, and whether it was right, of shape (n, 2)."""
    probabilities = model.predict_proba(X)
    return np.column_stack([probabilities.max(1), model.classes_[probabilities.argmax(1)] == y])


def calibration_error(told: np.ndarray) -> float:
    """Return the expected calibration error over 15 bins of equal mass."""
    bins = np.array_split(told[np.argsort(told[:, 0], kind="stable")], 15)
    return float(sum(len(b) * abs(b[:, 0].mean() - b[:, 1].mean()) for b in bins) / len(told))


def learnt(data: Data, name: str, few: int | None, seeds: int) -> Figures:
    """Return recall of old and newer classes, accuracy and calibration error of a model.

    With few samples of newer classes, also the recall of old and of newer ones in each split.
    """
    recalls, told, half = [], [], data.n_classes // 2
    for seed in range(seeds):
        X, y, X_test, y_test = data.split(seed, few)
        model = data.model(name).fit(X, y)
        labels = model.predict(X_test)
        parts = range(half), range(half, data.n_classes)
        accuracy = 100 * float(np.mean(labels == y_test))
        recalls.append([accuracy, *(recall(labels, y_test, part) for part in parts)])
        told.append(confidence(model, X_test, y_test))
    accuracy, old, newer = np.mean(recalls, axis=0).tolist()
    error = calibration_error(np.concatenate(told))
    found = {"accuracy": accuracy, "old": old, "newer": newer, "calibration": error}
    return found if few is None else {**found, "splits": np.round(recalls, 3)[:, 1:].tolist()}


def unknown(data: Data, name: str, seeds: int) -> Figures:
    """Return what is called unknown: held-out rows, other classes, and rows along rays; in percent.

    A ray goes from the mean of the samples learnt through, or away from, a held-out row.
    """
    alarms, areas, rays = [], [], []
    for seed in range(seeds):
        X, y, X_test, y_test = data.split(seed)
        model = data.model(name).fit(X, y)
        alarms.append(100 * float(np.mean(model.relative_novelty(X_test) > 1)))
        centre = X.mean(axis=0)
        rays.append(
            [
                [
                    100
                    * float(np.mean(model.relative_novelty(centre + way * k * (X_test - centre)) > 1))
                    for k in RAY
                ]
                for way in (1, -1)
            ]
        )
        known = (data.n_classes + 1) // 2
        if known > 1:
            model = data.model(name).fit(X[y < known], y[y < known])
            areas.append(100 * float(roc_auc_score(y_test >= known, model.relative_novelty(X_test))))
    along, against = np.mean(rays, axis=0).tolist()
    area = float(np.mean(areas)) if areas else None
    return {"alarms": float(np.mean(alarms)), "area": area, "along": along, "against": against}


def tail(vectors: Vectors) -> dict[str, float]:
    """Return accuracies on the same number of test samples of each class, in percent."""
    X, y, X_test, y_test = (
        part[mask] for mask in (~vectors.test, vectors.test) for part in (vectors.X, vectors.y)
    )
    plain = ACILClassifier(scores="ridge").fit(X, y)
    # AIR: each class counts the same; with weights of mean 1, at the γ of ACIL
    counts = np.bincount(y)
    weights = len(y) / len(counts) / counts[y]
    models = {
        "ACIL": plain,
        "class_balance=1": ACILClassifier(scores="ridge", class_balance=1.0).fit(X, y),
        "exact AIR": ACILClassifier(scores="ridge", gamma=plain.gamma_).fit(X, y, sample_weight=weights),
        DEFAULT: ACILClassifier().fit(X, y),
    }
    return {
        name: 100 * float(np.mean(model.predict(X_test) == y_test)) for name, model in models.items()
    }


def measure(data: Data, models: list[str], seeds: int) -> Figures:
    """Return all figures of a data set, by model."""
    # What is tested on is fixed: only the order of classes is left to chance.
    many = seeds if data.test is None else min(seeds, 1 if data.n_classes > 50 else 2)
    found: Figures = {}
    for name in models:
        figures: Figures = {"all": learnt(data, name, None, seeds if data.test is None else 1)}
        figures |= {str(few): learnt(data, name, few, many) for few in FEW}
        if name in OURS:
            figures["unknown"] = unknown(data, name, many)
        found[name] = figures
        print(data.name, name, json.dumps(figures), flush=True)
    return found


def report(before: Figures, after: Figures) -> dict[str, str]:
    """Return the tables of the page, by the name of their place, made from two records."""
    rules = [f"{DEFAULT} before", f"{LINEAR} before", f"{DEFAULT} now", f"{LINEAR} now"]
    parts = {
        "balanced": _row("set", *rules, *REFERENCES, "default now − best"),
        "few": _row("set", "k", *rules, BALANCED),
        "paired": _row("set", "k", "newer classes", "old classes", "mean of the two"),
        "calibration": _row("set", "k", *rules[1:], BALANCED),
        "unknown": _row(
            "set", *(f"{what}, {rule}" for what in ("alarms", "AUROC") for rule in rules[1:])
        ),
        "rays": _row("set", "rule", *(f"{way}{k}" for way in ("× ", "× −") for k in RAY)),
        "tail": _row("order", *next(iter(after.get("long tail", {}).values()), {})),
    }
    parts = {name: head + "|" + "---|" * (head.count("|") - 1) + "\n" for name, head in parts.items()}
    for name, now in after["sets"].items():
        past = before["sets"].get(name, {})
        found = [figures.get(model, {}) for figures in (past, now) for model in OURS]
        references = [now.get(model, {}) for model in REFERENCES]
        accuracies = [_of(one, "all", "accuracy") for one in (*found, *references)]
        best = [value for value in accuracies[len(found) :] if value is not None]
        lead = f"{accuracies[2] - max(best):+.1f}" if best and accuracies[2] is not None else ""
        parts["balanced"] += _row(name, *accuracies, lead)
        found.append(now.get(BALANCED, {}))
        for k in ("all", *map(str, FEW)):
            told = [_of(one, k, "calibration") for one in found[1:]]
            parts["calibration"] += _row(name, k, *("" if e is None else f"{e:.3f}" for e in told))
            if k != "all":
                pairs = [[_cell(_of(one, k, part)) for part in ("old", "newer")] for one in found]
                parts["few"] += _row(name, k, *map(" / ".join, pairs))
                gains = _paired(*(_of(found[place], k, "splits") for place in (1, 2)))
                parts["paired"] += _row(name, k, *gains) if gains else ""
        novel = [_of(one, "unknown", what) for what in ("alarms", "area") for one in found[1:4]]
        parts["unknown"] += _row(name, *novel)
        for rule, one in zip(rules[1:], found[1:4], strict=True):
            shares = [share for way in ("along", "against") for share in _of(one, "unknown", way) or ()]
            parts["rays"] += _row(name, rule, *(f"{share:.0f}" for share in shares)) if shares else ""
    for order, tails in after.get("long tail", {}).items():
        parts["tail"] += _row(order, *tails.values())
    return parts


def _paired(before: Any, now: Any) -> list[str]:
    """Return what newer and old classes gained, and both, with standard errors over the same splits."""
    if not before or not now or len(before) != len(now) or len(now) < 5:
        return []
    old, newer = (np.array(now) - np.array(before)).T
    gains = newer, old, (newer + old) / 2
    return [f"{gain.mean():+.1f} ± {gain.std(ddof=1) / len(gain) ** 0.5:.1f}" for gain in gains]


def _row(*cells: str | float | None) -> str:
    return "| " + " | ".join(map(_cell, cells)) + " |\n"


def _cell(value: str | float | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.1f}"


def _of(found: Any, *keys: str) -> Any:
    for key in keys:
        found = (found or {}).get(key)
    return found


def keep(record: Figures, file: Path | None) -> None:
    """Write a record, also between two sets."""
    if file is not None:
        text = json.dumps(record, indent=1)
        # A split a line
        text = re.sub(r"\[\s+([\d.]+),\s+([\d.]+)\s+\]", r"[\1, \2]", text)
        file.write_text(text + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, and fill the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--photos", type=Path, help="folder of train and test, each with a folder a class"
    )
    parser.add_argument("--text", type=Path, help="CLINC150, a gzipped JSON file")
    parser.add_argument("--cifar", type=Path, help="folder of the binary version of CIFAR-100")
    parser.add_argument("--network", type=Path, help="network for CIFAR-100, as acil bench writes it")
    parser.add_argument("--cache", type=Path, help="folder for vectors, to be used again")
    parser.add_argument("--sets", nargs="*", default=TABLES, choices=TABLES)
    parser.add_argument("--models", nargs="*", default=[*OURS, *REFERENCES])
    parser.add_argument("--seeds", type=int, default=20, help="random splits of each table")
    parser.add_argument("--record", type=Path, help="JSON file that figures are added to")
    parser.add_argument("--before", type=Path, help="record of the rule before")
    parser.add_argument("--page", type=Path)
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    warnings.filterwarnings("ignore", category=UserWarning)
    sets = [table(name) for name in options.sets]
    for name, given, make in (
        ("photographs", options.photos, lambda: photographs(options.photos)),
        ("CLINC150", options.text, lambda: sentences(options.text, options.cache)),
    ):
        if given is None:
            print(f"{name} are left out." if name == "photographs" else f"{name} is left out.")
        else:
            sets.append(Data(name, *make()))
    record: Figures = {"version": __version__, "sets": {}}
    if options.record is not None and options.record.exists():
        record = json.loads(options.record.read_text(encoding="utf-8"))
    for data in sets:
        found = measure(data, options.models, options.seeds)
        record["sets"].setdefault(data.name, {}).update(found)
        keep(record, options.record)
    if options.cifar is None or options.network is None:
        print("The long tail is left out: it needs --cifar and --network.")
    else:
        tails = long_tail(options.cifar, options.network, options.cache)
        record["long tail"] = {order: tail(vectors) for order, vectors in tails.items()}
        keep(record, options.record)
    before: Figures = (
        {"sets": {}} if options.before is None else json.loads(options.before.read_text("utf-8"))
    )
    parts = report(before, record)
    print("\n".join(parts.values()))
    if options.page is not None:
        fill(options.page, parts)


if __name__ == "__main__":
    main()
