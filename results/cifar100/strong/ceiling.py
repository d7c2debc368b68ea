"""The ceiling of `strong`: the same network trained on all 100 classes at once, by back-propagation.

    python ceiling.py --seed 0 --out ceiling.jsonl

Recipe `authors`, whose base training `strong` has, over all 50,000 images; accuracy of its own softmax
classifier on the test images, with and without averaging over mirror images, at the last epoch.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path

import torch

from acil.benchmark.datasets import load
from acil.training.loop import train
from acil.training.network import Network
from acil.training.recipes import recipe
from acil.vision.backbones import build, normalise, save_backbone
from acil.vision.exact import exact_inference


def main() -> None:
    """Train, and write one line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--recipe", default="authors")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    chosen, device = recipe(arguments.recipe), torch.device(arguments.device)
    settings = chosen.training
    if arguments.epochs is not None:
        settings = dataclasses.replace(settings, epochs=arguments.epochs, warmup=0)
    data = load("cifar100", None)
    generator = torch.Generator().manual_seed(arguments.seed)
    backbone = build(chosen.backbone, generator, **dict(chosen.backbone_options))
    network = Network(backbone, 100, generator=generator)
    started = time.perf_counter()
    train(
        network,
        data.train.pixels(),
        data.train_labels,
        settings,
        preprocessing=backbone.preprocessing,
        seed=arguments.seed,
        device=device,
    )
    seconds = time.perf_counter() - started
    hits, mirrored = 0, 0
    with exact_inference(network, device):
        for start in range(0, len(data.test), 1000):
            rows = slice(start, start + 1000)
            x = normalise(data.test.pixels()[rows].to(device), backbone.preprocessing)
            y = data.test_labels[rows].to(device)
            scores = network(x)
            hits += int((scores.argmax(1) == y).sum())
            mirrored += int(((scores + network(x.flip(3))).argmax(1) == y).sum())
    line = {
        "recipe": arguments.recipe,
        "seed": arguments.seed,
        "epochs": settings.epochs,
        "accuracy": 100 * hits / len(data.test),
        "accuracy_mirror": 100 * mirrored / len(data.test),
        "seconds": seconds,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
    }
    with arguments.out.open("a") as file:
        file.write(json.dumps(line) + "\n")
    save_backbone(network.backbone, arguments.out.with_suffix(f".{arguments.seed}.safetensors"), line)
    print(line)


if __name__ == "__main__":
    main()
