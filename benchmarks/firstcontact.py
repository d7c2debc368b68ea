"""What a newcomer meets: defaults on small tables and photographs, against what scikit-learn offers.

``python -m benchmarks.firstcontact --photos FOLDER --page docs/first-contact.md`` fills the page. FOLDER
has ``train`` and ``test``, each with one folder for each class; without it photographs are left out.
``--choice`` compares rules of scoring instead, by which ``scores="discriminant"`` was chosen.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn import datasets
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, RidgeClassifierCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from acil import ACILClassifier
from acil.scores import Discriminant
from benchmarks.page import fill

TABLES = ("digits", "wine", "breast_cancer", "iris")
#: Samples of each class of the newer half.
FEW = (2, 5, 10)
OURS, WIDE, PAPER = "discriminant", "discriminant, 2048 wide", "ridge (paper)"
MODELS: dict[str, Callable[[], Any]] = {
    OURS: lambda: ACILClassifier(expansion_size=None, scores="discriminant", standardize=True),
    WIDE: lambda: ACILClassifier(scores="discriminant", standardize=True),
    PAPER: lambda: ACILClassifier(),
    "logistic": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
    "LDA": lambda: LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"),
    "ridge CV": lambda: make_pipeline(StandardScaler(), RidgeClassifierCV(np.logspace(-3, 5, 17))),
}
REFERENCES = ("logistic", "LDA", "ridge CV")


class Split(NamedTuple):
    """Samples to learn and to be tested with; labels are 0, 1, …, the newer half last."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


class Data(NamedTuple):
    """A data set; ``test`` marks samples that are never learnt; features of images are not scaled."""

    name: str
    X: np.ndarray
    y: np.ndarray
    test: np.ndarray | None = None
    images: bool = False

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


def table(name: str) -> Data:
    """Return a table of scikit-learn."""
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return Data(name.replace("_", " "), X, y)


def photographs(folder: Path) -> Data:
    """Return photographs as features of the default network."""
    from acil import ImageClassifier

    model = ImageClassifier()
    parts = [model.prepare(folder / part) for part in ("train", "test")]
    labels = np.concatenate([part.labels for part in parts])
    test = np.repeat([False, True], [len(part.labels) for part in parts])
    features = np.concatenate([part.features for part in parts]).astype(np.float64)
    return Data("photographs", features, np.unique(labels, return_inverse=True)[1], test, True)


def recall(found: np.ndarray, y: np.ndarray, classes: range) -> float:
    """Return the mean share of right answers of some classes, in percent."""
    return 100 * float(np.mean([np.mean(found[y == c] == c) for c in classes]))


def model_for(name: str, data: Data) -> Any:
    """Return a new model; photographs are not standardized, as in `ImageClassifier`."""
    model = MODELS[name]()
    ours = name in (OURS, WIDE)
    return model.set_params(standardize=False) if ours and data.images else model


def balanced(data: Data, seeds: int) -> tuple[dict[str, float], np.ndarray]:
    """Return the accuracy of each model, and confidence and success of our predictions."""
    found: dict[str, list[float]] = {name: [] for name in MODELS}
    told = []
    for seed in range(seeds):
        X, y, X_test, y_test = data.split(seed)
        for name, accuracies in found.items():
            model = model_for(name, data).fit(X, y)
            accuracies.append(100 * float(np.mean(model.predict(X_test) == y_test)))
            if name == OURS:
                told.append(confidence(model, X_test, y_test))
    return {name: float(np.mean(values)) for name, values in found.items()}, np.concatenate(told)


def confidence(model: ACILClassifier, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the highest probability of each row, and whether it was right, of shape (n, 2)."""
    probabilities = model.predict_proba(X)
    return np.column_stack([probabilities.max(1), model.classes_[probabilities.argmax(1)] == y])


def calibration_error(told: np.ndarray) -> float:
    """Return the expected calibration error over 15 bins of equal mass."""
    bins = np.array_split(told[np.argsort(told[:, 0])], 15)
    return float(sum(len(b) * abs(b[:, 0].mean() - b[:, 1].mean()) for b in bins) / len(told))


def few_samples(data: Data, few: int, seeds: int) -> dict[str, tuple[float, float]]:
    """Return the recall of old classes, and of those with few samples, by each model."""
    half, found = data.n_classes // 2, {name: [] for name in (OURS, *REFERENCES)}
    for seed in range(seeds):
        X, y, X_test, y_test = data.split(seed, few)
        for name, recalls in found.items():
            labels = model_for(name, data).fit(X, y).predict(X_test)
            parts = range(half), range(half, data.n_classes)
            recalls.append([recall(labels, y_test, part) for part in parts])
    return {name: tuple(np.mean(values, axis=0)) for name, values in found.items()}


def unknown(data: Data, seeds: int) -> list[float]:
    """Return how many samples are called unknown, in percent: of classes learnt, of others, far ones."""
    rates = []
    for seed in range(seeds):
        X, y, X_test, y_test = data.split(seed)
        half = data.n_classes // 2
        model = model_for(OURS, data).fit(X[y < half], y[y < half])
        far = np.random.default_rng(seed).permuted(X_test, axis=0)  # each feature from another sample
        rows = X_test[y_test < half], X_test[y_test >= half], far
        rates.append([100 * np.mean(model.relative_novelty(part) > 1) for part in rows])
    return np.mean(rates, axis=0).tolist()


def rules(data: Data, few: int | None, seed: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield the predictions of rules that all follow from the same sums; only training samples."""
    X, y, X_test, y_test = data.split(seed, few)
    model = model_for(OURS, data).fit(X, y)
    found, state = Discriminant.of(model._state.model), model._state
    rows = torch.cat(list(state.features(model._check_query(X_test))))
    scores = rows @ state.model.ridge.coefficients()[0]
    inner = scores / found.n.sqrt() @ found.inverse / found.n.sqrt()
    yield "ridge", scores.argmax(1).numpy(), y_test
    yield "ridge / √n", (scores / found.n.sqrt()).argmax(1).numpy(), y_test
    yield "ridge / n", (scores / found.n).argmax(1).numpy(), y_test
    yield "LDA", (inner - found.products.diagonal() / 2).argmax(1).numpy(), y_test
    yield "discriminant", model.predict(X_test), y_test


def choice(sets: list[Data], seeds: int) -> str:
    """Return a table of rules on training samples: recall of old classes and of classes with few."""
    lines, means = [], {}
    for data in sets:
        half = data.n_classes // 2
        for few in (None, *FEW):
            found: dict[str, list[list[float]]] = {}
            for seed in range(seeds):
                # Other splits than those of the report
                for name, labels, y in rules(data, few, 100 + seed):
                    parts = range(half), range(half, data.n_classes), range(data.n_classes)
                    found.setdefault(name, []).append([recall(labels, y, part) for part in parts])
            cells = []
            for name, values in found.items():
                old, new, every = np.mean(values, axis=0)
                means.setdefault(name, []).append(every)
                cells.append(f"{old:.1f} / {new:.1f}")
            lines.append(f"| {data.name} | {few or 'all'} | {' | '.join(cells)} |")
    head = [f"| set | k | {' | '.join(means)} |", "|---" * (len(means) + 2) + "|"]
    mean = " | ".join(f"{np.mean(values):.1f}" for values in means.values())
    return "\n".join([*head, *lines, f"| mean over all classes | | {mean} |"]) + "\n"


def report(sets: list[Data], seeds: int) -> dict[str, str]:
    """Return the tables of the page, by the name of their place."""
    names = list(MODELS)
    head = f"| set | {' | '.join(names)} | calibration error |\n|{'---|' * (len(names) + 2)}\n"
    parts, pooled, bars = {"balanced": head}, [], {}
    for data in sets:
        accuracies, told = balanced(data, 1 if data.test is not None else seeds)
        pooled.append(told)
        bars[data.name] = [accuracies[OURS] - max(accuracies[name] for name in REFERENCES)]
        cells = [f"{accuracies[name]:.1f}" for name in names]
        parts["balanced"] += f"| {data.name} | {' | '.join(cells)} | {calibration_error(told):.3f} |\n"
    every = np.concatenate(pooled)
    blank = " | " * len(names)
    parts["balanced"] += f"| all {len(every)} predictions {blank}| {calibration_error(every):.3f} |\n"
    names = [OURS, *REFERENCES]
    parts["few"] = f"| set | k | {' | '.join(names)} |\n|{'---|' * (len(names) + 2)}\n"
    for data in sets:
        for few in FEW:
            recalls = few_samples(data, few, seeds)
            if few == 5:
                old, new = (max(recalls[name][i] for name in REFERENCES) for i in (0, 1))
                bars[data.name] += [recalls[OURS][1] / new, recalls[OURS][0] - old]
            cells = ["{:.1f} / {:.1f}".format(*recalls[name]) for name in names]
            parts["few"] += f"| {data.name} | {few} | {' | '.join(cells)} |\n"
    parts["unknown"] = "| set | classes learnt | other classes | far |\n|---|---|---|---|\n"
    for data in sets:
        if data.n_classes > 3:
            cells = [f"{rate:.1f} %" for rate in unknown(data, seeds)]
            parts["unknown"] += f"| {data.name} | {' | '.join(cells)} |\n"
    parts["bars"] = "| set | accuracy | newer classes, k = 5 | old classes, k = 5 |\n|---|---|---|---|\n"
    for name, (accuracy, ratio, old) in bars.items():
        parts["bars"] += f"| {name} | {accuracy:+.1f} | {ratio:.2f} | {old:+.1f} |\n"
    return parts


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, and fill the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=Path, default=os.environ.get("ACIL_PHOTOS"))
    parser.add_argument("--page", type=Path)
    parser.add_argument("--seeds", type=int, default=50, help="random splits of each set")
    parser.add_argument("--sets", nargs="*", default=TABLES, choices=TABLES)
    parser.add_argument("--choice", action="store_true")
    parser.add_argument("--features", type=Path, nargs="*", default=[], help="npz of X and y, of images")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    sets = [table(name) for name in options.sets]
    for file in options.features:
        with np.load(file) as arrays:
            labels = np.unique(arrays["y"], return_inverse=True)[1]
            sets.append(Data(file.stem, arrays["X"].astype(np.float64), labels, images=True))
    if options.photos is not None:
        sets.append(photographs(Path(options.photos)))
    else:
        print("Photographs are left out: give --photos FOLDER, or ACIL_PHOTOS.")
    if options.choice:
        # Photographs for testing are not looked at.
        kept = [np.ones(len(d.y), bool) if d.test is None else ~d.test for d in sets]
        sets = [Data(d.name, d.X[k], d.y[k], None, d.images) for d, k in zip(sets, kept, strict=True)]
        parts = {"choice": choice(sets, options.seeds)}
    else:
        parts = report(sets, options.seeds)
    print("\n".join(parts.values()))
    if options.page is not None:
        fill(options.page, parts)


if __name__ == "__main__":
    main()
