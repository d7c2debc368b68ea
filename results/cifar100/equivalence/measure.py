"""How far learning in phases is from learning everything at once, on features of CIFAR-100.

    python measure.py --backbone ../paper/natural-0.safetensors --out phases.jsonl
    python measure.py --backbone ../paper/natural-0.safetensors --out drops.jsonl --drops 25000

The reference is one fit of all 50,000 images in float64 at the same γ. Each line has the relative
difference of the weights, of the scores of the 10,000 test images, and how many of them get another
label. With ``--drops`` the images of the later classes come one by one, in random order, and a
prediction is asked for after each.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from acil import ACILClassifier
from acil.bench.datasets import load
from acil.encoders.images.backbones import load_backbone
from acil.encoders.images.extract import FeatureExtractor
from acil.errors import ACILError

BASE = 50
#: (solver, dtype)
HEADS = (
    ("gram", "float64"),
    ("recursive", "float64"),
    ("gram", "mixed"),
    ("gram", "float32"),
    ("recursive", "float32"),
)


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the relative difference in the Frobenius norm."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def batches(labels: Tensor, phases: int, drops: int) -> list[Tensor]:
    """Return the rows of each call of ``partial_fit``."""
    base = torch.nonzero(labels < BASE).flatten()
    if drops:
        later = torch.nonzero(labels >= BASE).flatten()
        order = torch.randperm(len(later), generator=torch.Generator().manual_seed(0))
        return [base, *later[order[:drops]].split(1)]
    edges = np.linspace(BASE, 100, phases + 1).round().astype(int).tolist()
    pairs = itertools.pairwise(edges)
    return [base, *(torch.nonzero((labels >= a) & (labels < b)).flatten() for a, b in pairs)]


def learn(head: ACILClassifier, X: Tensor, y: Tensor, parts: list[Tensor], probe: Tensor) -> None:
    """Learn part by part, with weights after each."""
    for part in parts:
        head.partial_fit(X[part], y[part])
        head.decision_function(probe)


def main() -> None:
    """Measure, one line of JSON for each head."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backbone", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--phases", default="1,2,5,10,25,50")
    parser.add_argument("--drops", type=int, default=0)
    parser.add_argument("--width", type=int, default=8000)
    parser.add_argument("--gammas", default="0.1,1000000")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, help="only so many training images, for a trial")
    arguments = parser.parse_args()

    data = load("cifar100", None)
    extractor = FeatureExtractor(load_backbone(arguments.backbone)[0], device=arguments.device)
    train_images, test_images, y = data.train, data.test, data.train_labels
    if arguments.images:
        chosen = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[: arguments.images]
        train_images, y = train_images.subset(chosen), y[chosen]
        test_images = test_images.subset(torch.arange(arguments.images // 5))
    X, test = extractor.features(train_images), extractor.features(test_images)
    X, test = X.to(arguments.device), test.to(arguments.device)
    gpu = torch.cuda.get_device_name() if arguments.device == "cuda" else None
    plans = [0] if arguments.drops else [int(text) for text in arguments.phases.split(",")]
    for gamma in map(float, arguments.gammas.split(",")):
        common = {"expansion_size": arguments.width, "gamma": gamma, "device": arguments.device}
        parts = {phases: batches(y, phases, arguments.drops) for phases in plans}
        seen = torch.cat(next(iter(parts.values())))
        joint = ACILClassifier(**common).fit(X[seen], y[seen])
        expected = joint.decision_function(test).cpu().numpy()
        for solver, dtype in HEADS:
            for phases in plans:
                row = {"solver": solver, "dtype": dtype, "gamma": gamma, "width": arguments.width}
                row |= {"phases": arguments.drops or phases, "one_by_one": bool(arguments.drops)}
                row |= {
                    "condition": joint.condition_,
                    "device": gpu or "cpu",
                    "torch": torch.__version__,
                }
                started = time.perf_counter()
                try:
                    head = ACILClassifier(**common, solver=solver, dtype=dtype)
                    learn(head, X, y, parts[phases], test[:1])
                    found = head.decision_function(test).cpu().double().numpy()
                    row["weights"] = distance(np.asarray(head.coef_, np.float64), joint.coef_)
                    row["scores"] = distance(found, expected)
                    row["other_labels"] = int((found.argmax(1) != expected.argmax(1)).sum())
                except ACILError as error:
                    row["error"] = str(error)
                row["seconds"] = time.perf_counter() - started
                with arguments.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(row, flush=True)


if __name__ == "__main__":
    main()
