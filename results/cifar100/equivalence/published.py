"""What the recursion loses as published: from R = I / γ, whole batches, Eq. (9) and (10) in float64.

    python published.py --backbone ../paper/natural-0.safetensors --out published.jsonl

Each line compares it with the joint solution after every phase: Ā of both, and the relative difference
of the weights at the end. γ = 0.1 and d = 2000, where batches have more rows than the matrix.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from acil.bench.datasets import load
from acil.core.expansion import Expansion
from acil.encoders.images.backbones import load_backbone
from acil.encoders.images.extract import FeatureExtractor

BASE, CLASSES, WIDTH, GAMMA = 50, 100, 2000, 0.1
#: (phases, rows in a batch)
RUNS = ((25, 4096), (5, 2048))
#: How the rows of a phase follow each other: at random, or class by class.
ORDERS = ("random", "by class")
#: Standard deviation of W_fe: the paper's, and that of the authors' code for 64 features.
SCALES = (1.0, 1 / math.sqrt(3 * 64))


def step(R: Tensor, W: Tensor, X: Tensor, Y: Tensor) -> None:
    """Learn one batch, in place."""
    K = torch.inverse(torch.eye(len(X), dtype=X.dtype) + X @ R @ X.T)
    # Eq. (10)
    R -= R @ X.T @ K @ X @ R
    # Eq. (9), for classes old and new
    W += R @ X.T @ (Y - X @ W)


def main() -> None:
    """Measure, one line of JSON for each run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backbone", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--root", type=Path, help="where CIFAR-100 is")
    arguments = parser.parse_args()
    data = load("cifar100", arguments.root)
    extractor = FeatureExtractor(load_backbone(arguments.backbone)[0])
    expansion = Expansion.draw(extractor.backbone.num_features, WIDTH, "relu", seed=0)
    features, test = extractor.features(data.train), expansion(extractor.features(data.test).double())
    generator, eye = torch.Generator().manual_seed(0), torch.eye(WIDTH, dtype=torch.float64)

    def accuracy(W: Tensor, seen: int) -> float:
        rows = data.test_labels < seen
        right = (test[rows] @ W[:, :seen]).argmax(dim=1) == data.test_labels[rows]
        return 100 * float(right.double().mean())

    for (phases, batch), order, scale in itertools.product(RUNS, ORDERS, SCALES):
        R, gram = eye / GAMMA, torch.zeros_like(eye)
        W, moment = (torch.zeros(WIDTH, CLASSES, dtype=torch.float64) for _ in range(2))
        found, expected, start = [], [], 0
        for end in np.linspace(BASE, CLASSES, phases + 1).round().astype(int).tolist():
            rows = torch.nonzero((data.train_labels >= start) & (data.train_labels < end)).flatten()
            shuffled = rows[torch.randperm(len(rows), generator=generator)]
            rows, start = (
                shuffled if order == "random" else rows[data.train_labels[rows].argsort(stable=True)],
                end,
            )
            for part in rows.split(batch):
                X = scale * expansion(features[part].double())
                Y = one_hot(data.train_labels[part], CLASSES).double()
                step(R, W, X, Y)
                gram, moment = gram + X.T @ X, moment + X.T @ Y
            joint = torch.cholesky_solve(moment, torch.linalg.cholesky(gram + GAMMA * eye))
            found.append(accuracy(W, end))
            expected.append(accuracy(joint, end))
        line = {"phases": phases, "batch": batch, "order": order, "scale": scale}
        line |= {"width": WIDTH, "gamma": GAMMA}
        line |= {"average_accuracy": np.mean(found), "joint_average_accuracy": np.mean(expected)}
        line["weights"] = float((W - joint).norm() / joint.norm())
        with arguments.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
