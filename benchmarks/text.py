r"""Texts: new intents from few examples, out of scope, and phases, beside logistic regression.

::

    python -m benchmarks.text clinc150.json.gz --record docs/text/benchmark.json --page docs/text.md \
        --plot docs/text/few.png

The file is a gzipped JSON object of pairs of text and intent by split. Figures are those of its test
sentences; they go into the record, and from there to the page and the plot. What they say of the rule
that γ follows is not quite blind: `docs/first-contact.md`.
Widths of the expansion alone are compared by cross-validation within the training sentences: so
`acil.growing.texts.EXPANSION_SIZE` was chosen. ``--cache FOLDER`` keeps the vectors of the sentences,
``--only PART`` measures one part and keeps the others of the record. The splits ``oos_train``,
``oos_val`` and ``val`` are used by nobody.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold

from acil import ACILClassifier, TextClassifier
from acil.core.classifier import adopt, learnt_of
from acil.core.expansion import AnalyticModel
from acil.core.scores import Discriminants
from acil.encoders.samples import Samples
from acil.growing.texts import EXPANSION_SIZE
from benchmarks.firstcontact import calibration_error, confidence, recall
from benchmarks.page import fill, table

#: Examples of each of the newer intents, and draws of these, and of which are newer.
FEW, SEEDS = (1, 3, 5, 10), 5
WIDTHS, FOLDS = (1024, 2048, 3072), 2
#: Phases of ten intents each.
PHASE = 10
#: Sentences of a new intent whose time is measured.
NEW = 10
OURS, BALANCED, LOGISTIC = "acil", "logistic regression, balanced", "logistic regression"
#: The rule before γ heeded the rarest classes, and before features were among the units.
FORMER = "acil, former rule"
#: Columns of the tables: key, heading, form.
WHOLE = {
    "model": ("model", ""),
    "accuracy": ("accuracy, %", ".1f"),
    "calibration": ("calibration error", ".3f"),
    "area": ("out of scope: AUROC", ".3f"),
    "alarms": ("false alarms, %", ".1f"),
    "found": ("out of scope called unknown, %", ".1f"),
}
RECALLS = {
    "model": ("model", ""),
    **{f"new{k}": (f"k = {k}", ".1f") for k in FEW},
    **{f"old{k}": (f"older, k = {k}", ".1f") for k in FEW},
}


class Sentences:
    """Vectors of the sentences of each split, and their intents as numbers."""

    def __init__(self, file: Path, cache: Path | None) -> None:
        with gzip.open(file) as stream:
            self.parts = parts = json.load(stream)
        self.encoder = TextClassifier().embedder
        names, self.y = np.unique([intent for _, intent in parts["train"]], return_inverse=True)
        self.names = names.tolist()
        self.X = self._vectors(parts, "train", cache)
        self.X_test = self._vectors(parts, "test", cache)
        self.y_test = np.searchsorted(names, [intent for _, intent in parts["test"]])
        self.outside = self._vectors(parts, "oos_test", cache)

    def _vectors(self, parts: dict[str, Any], split: str, cache: Path | None) -> np.ndarray:
        file = None if cache is None else cache / f"{split}.npy"
        if file is not None and file.exists():
            stored: np.ndarray = np.load(file)
            return stored
        found: np.ndarray = self.encoder.encode([text for text, _ in parts[split]]).features
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            np.save(file, found)
        return found

    def learn(self, model: TextClassifier, rows: np.ndarray) -> None:
        """Teach a model training sentences by their vectors, as `acil learn` does."""
        labels = np.array([self.names[c] for c in self.y[rows]])
        called = tuple(map(str, rows))
        identity = self.encoder.identity
        model.learn(
            Samples(*(self.X[rows], labels, called, called, (), identity, "minilm", 0.0), encoder="text")
        )

    def few(self, seed: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return rows of the older half of the intents, k of each newer one, and which are newer."""
        generator = np.random.default_rng(seed)
        newer = generator.permutation(len(self.names))[len(self.names) // 2 :]
        drawn = [generator.permutation(np.flatnonzero(self.y == c))[: max(FEW)] for c in newer]
        old = np.flatnonzero(~np.isin(self.y, newer))
        return old, np.concatenate([rows[:k] for rows in drawn]), newer


def head_of(model: TextClassifier) -> ACILClassifier:
    """Return the head with everything that predictions need."""
    return model.snapshot.solved()


def logistic(balanced: bool) -> LogisticRegression:
    """Return the reference, which is refitted on all samples at each change."""
    weight = "balanced" if balanced else None
    return LogisticRegression(C=10, max_iter=1000, class_weight=weight)


def measured(data: Sentences, head: ACILClassifier) -> dict[str, Any]:
    """Return figures on all test sentences, and on those out of scope."""
    told = confidence(head, data.X_test, np.array(data.names)[data.y_test])
    inside, outside = (head.relative_novelty(X) for X in (data.X_test, data.outside))
    truth = np.repeat([0, 1], [len(inside), len(outside)])
    return {
        "accuracy": 100 * float(told[:, 1].mean()),
        "calibration": calibration_error(told),
        "area": float(roc_auc_score(truth, np.concatenate([inside, outside]))),
        "alarms": 100 * float(np.mean(inside > 1)),
        "found": 100 * float(np.mean(outside > 1)),
    }


def whole(data: Sentences) -> list[dict[str, Any]]:
    """Learn all training sentences at once, beside logistic regression."""
    model = TextClassifier()
    data.learn(model, np.arange(len(data.y)))
    # All intents have the same number of sentences, so that class weights would change nothing.
    reference = logistic(False).fit(data.X, data.y)
    told = confidence(reference, data.X_test, data.y_test)
    sure = [reference.predict_proba(X).max(axis=1) for X in (data.X_test, data.outside)]
    truth = np.repeat([1, 0], [len(part) for part in sure])
    figures = {
        "accuracy": 100 * float(told[:, 1].mean()),
        "calibration": calibration_error(told),
        "area": float(roc_auc_score(truth, np.concatenate(sure))),
    }
    return [{"model": OURS, **measured(data, head_of(model))}, {"model": LOGISTIC, **figures}]


def few(data: Sentences) -> list[dict[str, Any]]:
    """Learn half of the intents, then k examples of each of the others; recall of both, by draw.

    The former rule and logistic regression are fitted on the same sentences, all at once.
    """
    rows = []
    for seed in range(SEEDS):
        base = TextClassifier()
        data.learn(base, data.few(seed, 1)[0])
        for k in FEW:
            old, new, newer = data.few(seed, k)
            older = np.setdiff1d(np.arange(len(data.names)), newer)
            both = np.concatenate([old, new])
            head = base.snapshot.copy_head()
            head.partial_fit(data.X[new], np.array(data.names)[data.y[new]])
            answers = {
                OURS: np.searchsorted(data.names, head.predict(data.X_test)),
                FORMER: former(data.X[both], data.y[both]).predict(data.X_test),
                BALANCED: logistic(True).fit(data.X[both], data.y[both]).predict(data.X_test),
            }
            for name, found in answers.items():
                new_recall, old_recall = (recall(found, data.y_test, part) for part in (newer, older))
                rows.append({"model": name, "seed": seed, "k": k, "new": new_recall, "old": old_recall})
                print(rows[-1], flush=True)
    return rows


def former(X: np.ndarray, y: np.ndarray) -> ACILClassifier:
    """Return discriminants of before: γ by cross-validation alone, random units alone, means as long."""
    units: dict[str, Any] = {
        "expansion_size": EXPANSION_SIZE,
        "expansion_bias": 0.5,
        "standardize": False,
    }
    regression = ACILClassifier(scores="ridge", fit_intercept=True, **units).fit(X, y).solve()
    found = ACILClassifier(scores="discriminant", gamma=regression.gamma_, **units).fit(X, y)
    learnt = learnt_of(found)
    before = AnalyticModel(
        learnt.model.expansion,
        learnt.model.head,
        learnt.model.device,
        Discriminants(unseen=0.0, unseen_by_one=0.0),
    )
    adopt(found, replace(learnt, model=before))
    return found


def phases(data: Sentences) -> list[dict[str, Any]]:
    """Learn ten intents at a time, in a random order, and compare with all at once."""
    joint, phased = TextClassifier(), TextClassifier()
    data.learn(joint, np.arange(len(data.y)))
    order = np.random.default_rng(0).permutation(len(data.names))
    for start in range(0, len(order), PHASE):
        data.learn(phased, np.flatnonzero(np.isin(data.y, order[start : start + PHASE])))
    heads = [head_of(model) for model in (joint, phased)]
    scores = [head.decision_function(data.X_test) for head in heads]
    flags = [head.relative_novelty(data.X_test) > 1 for head in heads]
    both = {
        "difference": float(np.abs(scores[0] - scores[1]).max() / np.abs(scores[0]).max()),
        "condition": heads[0].condition_,
        "labels": int((scores[0].argmax(1) != scores[1].argmax(1)).sum()),
        "flags": int((flags[0] != flags[1]).sum()),
    }
    names = "all at once", "15 phases of ten intents"
    return [
        {"model": name, **measured(data, head), **both} for name, head in zip(names, heads, strict=True)
    ]


def widths(data: Sentences) -> list[dict[str, Any]]:
    """Compare widths within the training sentences: accuracy, and recall of newer intents."""
    rows = []
    for size in WIDTHS:
        before, right, recalls = _cpu(), [], []
        for train, held in StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(data.X, data.y):
            model = TextClassifier(expansion_size=size)
            data.learn(model, train)
            right.append(np.mean(_named(data, model, held) == data.y[held]))
            newer = np.arange(0, len(data.names), 2)
            scarce = np.isin(data.y[train], newer) & (np.arange(len(train)) % 16 > 0)
            model = TextClassifier(expansion_size=size)
            data.learn(model, train[~scarce])
            recalls.append(recall(_named(data, model, held), data.y[held], newer))
        seconds, file = (_cpu() - before) / FOLDS / 2, size * (size + 1) * 4 / 2**20
        rows.append(
            {
                "width": size,
                "accuracy": 100 * float(np.mean(right)),
                "recall": float(np.mean(recalls)),
                "seconds": seconds,
                "megabytes": file,
            }
        )
        print(rows[-1], flush=True)
    return rows


def _named(data: Sentences, model: TextClassifier, rows: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.searchsorted(data.names, model.snapshot.head.predict(data.X[rows]))
    return found


def speed(data: Sentences) -> dict[str, float]:
    """Measure CPU seconds: of the network alone, and of `acil learn` from its start to its end."""
    train = data.parts["train"]
    before = _cpu()
    data.encoder.encode([text for text, _ in train])
    found = {"texts": len(train), "network": _cpu() - before}
    with tempfile.TemporaryDirectory() as folder:
        for part, pairs in (("all", train), ("new", [(t, "new") for t, _ in data.parts["test"][:NEW]])):
            with (Path(folder) / f"{part}.csv").open("w", newline="") as file:
                csv.writer(file).writerows([("text", "label"), *pairs])
            before = _cpu(resource.RUSAGE_CHILDREN)
            command = [sys.executable, "-m", "acil", "learn", f"{part}.csv", "--model", "m.acil"]
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
            found[part] = _cpu(resource.RUSAGE_CHILDREN) - before
        found["mebibytes"] = (Path(folder) / "m.acil").stat().st_size / 2**20
    return found


def _cpu(of: int = resource.RUSAGE_SELF) -> float:
    used = resource.getrusage(of)
    return used.ru_utime + used.ru_stime


def averaged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each model of what `few` has measured, the mean of its draws."""
    found = []
    for name in (OURS, FORMER, BALANCED):
        own = [row for row in rows if row["model"] == name]
        cells = {
            f"{part}{k}": float(np.mean([row[part] for row in own if row["k"] == k]))
            for part in ("new", "old")
            for k in FEW
        }
        found.append({"model": name, **cells})
    return found


def paired(rows: list[dict[str, Any]]) -> dict[int, tuple[float, float]]:
    """Return the gains in recall of newer intents over the former rule: mean and standard error."""
    by_draw = {(row["model"], row["seed"], row["k"]): row["new"] for row in rows}
    found = {}
    for k in FEW:
        gains = [by_draw[OURS, seed, k] - by_draw[FORMER, seed, k] for seed in range(SEEDS)]
        found[k] = float(np.mean(gains)), float(np.std(gains, ddof=1) / len(gains) ** 0.5)
    return found


def page(record: dict[str, Any]) -> str:
    """Return the tables of a record as Markdown."""
    parts = []
    if "whole" in record:
        parts += ["All training sentences in one call:", table(record["whole"], WHOLE)]
    if "few" in record:
        text = (
            "75 intents with all their sentences, then k examples of each of the 75 others: recall of "
            f"the newer intents, and of the older ones then, in percent, means of {SEEDS} draws. The "
            "others are fitted on all sentences again; the former rule has γ by cross-validation alone."
        )
        pairs = paired(record["few"])
        told = ", ".join(f"k = {k} {mean:+.1f} ± {error:.1f}" for k, (mean, error) in pairs.items())
        parts += [
            text,
            table(averaged(record["few"]), RECALLS),
            f"Newer intents, acil less its former rule, draw by draw: {told} (mean, standard error).",
        ]
    if "phases" in record:
        joint, phased = record["phases"]
        parts.append(
            f"Ten intents at a time, in 15 calls, and all at once: scores differ by "
            f"{joint['difference']:.1e} of the largest (κ = {joint['condition']:.1e}), "
            f'{joint["labels"]} of the likeliest classes and {joint["flags"]} of the flags "unknown" '
            f"differ. False alarms {joint['alarms']:.1f} and {phased['alarms']:.1f} %, calibration "
            f"error {joint['calibration']:.3f} and {phased['calibration']:.3f}."
        )
    if "widths" in record:
        columns = {
            "width": ("width", "d"),
            "accuracy": ("accuracy, %", ".2f"),
            "recall": ("newer intents, about 4 examples: recall, %", ".2f"),
            "seconds": ("CPU s to learn and solve", ".1f"),
            "megabytes": ("sums in a file, MiB", ".0f"),
        }
        text = (
            f"The width of {EXPANSION_SIZE} was chosen within the training sentences, {FOLDS} folds "
            "(`--only widths`):"
        )
        parts += [text, table(record["widths"], columns)]
    if "speed" in record:
        found = record["speed"]
        parts.append(
            f"CPU seconds of one process: `acil learn` of {found['texts']:,} sentences "
            f"{found['all']:.1f}, of which the network alone takes {found['network']:.1f} "
            f"({found['all'] / found['network']:.2f} times as long); of {NEW} sentences of a new intent "
            f"{found['new']:.1f}, start and saving included. The file has {found['mebibytes']:.0f} MiB."
        )
    return "\n\n".join(parts) + "\n"


#: What is measured, in the order of the page.
PARTS: dict[str, Callable[[Sentences], Any]] = {
    "whole": whole,
    "few": few,
    "phases": phases,
    "widths": widths,
    "speed": speed,
}


def plot(record: dict[str, Any], path: Path) -> None:
    """Draw recall of the newer intents against the number of their examples."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for row in averaged(record["few"]):
        axes.plot(FEW, [row[f"new{k}"] for k in FEW], marker="o", label=row["model"])
    axes.set(xlabel="examples of each new intent", ylabel="recall of the new intents, %", xticks=FEW)
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measure, and fill the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0].removeprefix('r"""'))
    parser.add_argument("file", type=Path)
    parser.add_argument("--cache", type=Path, help="folder to keep vectors in")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--only", choices=PARTS)
    asked = parser.parse_args()
    record = json.loads(asked.record.read_text()) if asked.only and asked.record else {}
    data = Sentences(asked.file, asked.cache)
    for part in (asked.only,) if asked.only else PARTS:
        start = time.time()
        record[part] = PARTS[part](data)
        print(part, f"{time.time() - start:.0f} s", json.dumps(record[part])[:2000], flush=True)
        if asked.record:
            asked.record.write_text(json.dumps(record, indent=1) + "\n")
    if asked.page:
        fill(asked.page, {"text": page(record)})
    if asked.plot and "few" in record:
        plot(record, asked.plot)


if __name__ == "__main__":
    main()
