"""What the network reaches by back-propagation alone, with its own softmax classifier.

    python ceiling.py --seed 0 --out ceiling.jsonl                  # all 100 classes: the ceiling
    python ceiling.py --seed 0 --out base.jsonl --classes 50        # the base classes, order natural
    python ceiling.py --seed 0 --out base.jsonl --classes 50 --recipe authors

The training is that of `strong`, which differs from `authors` in that weight decay acts on all
parameters. Accuracy on the test images at the last epoch, with and without averaging over mirror images;
and, to compare with the authors' log, loss and accuracy on the augmented training images in evaluation
mode.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path

import torch
from torch.nn import functional

from acil.bench.datasets import load
from acil.bench.training.loop import Batches, train
from acil.bench.training.network import Network
from acil.bench.training.recipes import recipe
from acil.encoders.images.backbones import build, normalise, save_backbone
from acil.encoders.images.extract import exact_inference


def main() -> None:
    """Train, and write one line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--recipe", default="strong")
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    chosen, device = recipe(arguments.recipe), torch.device(arguments.device)
    settings = chosen.training
    if arguments.epochs is not None:
        warmup = min(settings.warmup, arguments.epochs - 1)
        settings = dataclasses.replace(settings, epochs=arguments.epochs, warmup=warmup)
    data = load("cifar100", None)
    chosen_train = torch.nonzero(data.train_labels < arguments.classes).flatten()
    chosen_test = torch.nonzero(data.test_labels < arguments.classes).flatten()
    images, labels = data.train.subset(chosen_train).pixels(), data.train_labels[chosen_train]
    test, test_labels = data.test.subset(chosen_test).pixels(), data.test_labels[chosen_test]
    generator = torch.Generator().manual_seed(arguments.seed)
    backbone = build(chosen.backbone, generator, **dict(chosen.backbone_options))
    network = Network(backbone, arguments.classes, generator=generator)
    started = time.perf_counter()
    train(
        network,
        images,
        labels,
        settings,
        preprocessing=backbone.preprocessing,
        seed=arguments.seed,
        device=device,
    )
    seconds = time.perf_counter() - started
    hits = mirrored = train_hits = loss = 0.0
    with exact_inference(network, device):
        for x, y in zip(test.split(1000), test_labels.split(1000), strict=True):
            x, y = normalise(x.to(device), backbone.preprocessing), y.to(device)
            scores = network(x)
            hits += float((scores.argmax(1) == y).sum())
            mirrored += float(((scores + network(x.flip(3))).argmax(1) == y).sum())
        batches = Batches(images, labels, settings, backbone.preprocessing, arguments.seed, device)
        for x, y, _ in batches.epoch(settings.epochs):
            scores = network(x)
            train_hits += float((scores.argmax(1) == y).sum())
            loss += float(functional.cross_entropy(scores, y, reduction="sum"))
    line = {
        "recipe": arguments.recipe,
        "seed": arguments.seed,
        "epochs": settings.epochs,
        "precision": settings.precision,
        "decay_all": settings.decay_all,
        "classes": arguments.classes,
        "accuracy": 100 * hits / len(test),
        "accuracy_mirror": 100 * mirrored / len(test),
        "training_accuracy": 100 * train_hits / len(images),
        "training_loss": loss / len(images),
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
