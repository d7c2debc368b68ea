"""The second stream of DS-AL on the networks of `best` in this folder, on held-out training images.

    python second_stream.py --out second_stream.jsonl

Splits, held-out images and width (8192) are those of `choose.sh`; γ is relative to trace(gram)/d of all
training images of a split.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from statistics import fmean

import torch
from acil.bench.metrics import accuracy

from acil.bench.choice import Search
from acil.bench.methods.base import Context, Phase
from acil.bench.methods.ds_al import DSAL
from acil.bench.training.recipes import recipe
from acil.encoders.images.backbones import load_backbone
from acil.encoders.images.cache import FeatureCache

WIDTH = 8192
NETWORK = "networks/60a2144f0625-{}/network.safetensors"
#: γ relative to trace(gram)/d, and the weight C of the second stream: 0 is ACIL, its authors have 0.6.
GAMMAS, COMPENSATIONS = (0.03, 0.1), (0.0, 0.3, 0.6, 1.0)

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--splits", type=int, nargs="+", default=[0, 1, 2])
parser.add_argument("--device", default="cpu")
options = parser.parse_args()

here, chosen = Path(__file__).parent, recipe("best")
search = Search(here, "cifar100", recipe="best", candidates={}, base=50, device=options.device)
for number in options.splits:
    split = search.split(number)
    backbone = load_backbone(here / NETWORK.format(number), device=search.torch_device)[0]
    cache = FeatureCache(None)  # of this network, for all heads
    learnt = int((~split.held_out).sum())
    for relative in GAMMAS:
        # Features have a mean square of 640, of which ReLU leaves half.
        own = dataclasses.replace(chosen, expansion_size=WIDTH, gamma=relative * learnt * 640 / 2)
        context = Context(own, number, search.torch_device, 50, backbone=backbone, cache=cache)
        head, seen = DSAL(context), 0
        curves: dict[float, list[float]] = {C: [] for C in COMPENSATIONS}
        for index, end in enumerate(split.ends):
            mine = (split.labels >= seen) & (split.labels < end) & ~split.held_out
            use = torch.nonzero(mine).flatten()
            classes = tuple(range(seen, end))
            head.learn(Phase(index, classes, search.images.subset(use), split.labels[use], end))
            judged = torch.nonzero((split.labels < end) & split.held_out).flatten()
            for C, curve in curves.items():
                # C only weighs the scores of the second stream.
                head.settings = dataclasses.replace(head.settings, ds_al_compensation=C)
                predicted = head.predict(search.images.subset(judged))
                curve.append(round(accuracy(predicted, split.labels[judged]), 4))
            seen = end
        for C, curve in curves.items():
            record = {"split": number, "gamma": relative, "compensation": C, "accuracy": curve}
            print(json.dumps(record), f"{fmean(curve):.2f}", flush=True)
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
