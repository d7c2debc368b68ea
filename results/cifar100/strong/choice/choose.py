"""How the `strong` recipe was chosen: class-incremental learning played inside the base classes.

Only training images of the 50 base classes (order natural) are looked at. Each split draws 25 or 40 of
them as a base of its own; the others arrive in five phases. Of every class 50 of the 500 images are held
out: networks and heads never see them, and accuracy is counted on them alone. Candidates are ranked by
the mean of A_0 … A_5 over the splits (pseudo-Ā).

    python choose.py train --out DIR --variant authors --splits 0,1,2,3
    python choose.py heads --out DIR --variant authors --splits 0,1,2,3 --group taps
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from acil.bench.datasets import load
from acil.bench.training.checkpoint import Checkpoint
from acil.bench.training.loop import train
from acil.bench.training.network import Network
from acil.bench.training.recipes import recipe
from acil.core.cholesky import cholesky_
from acil.core.linalg import add_gram_, solve_lower
from acil.encoders.images.backbones import build, load_backbone, normalise, save_backbone
from acil.encoders.images.extract import exact_inference

BASE = 50
HELD_OUT = 50
#: (seed of the permutation of the base classes, classes of the pseudo-base)
SPLITS = ((0, 25), (1, 25), (2, 25), (3, 40))
#: Variant of base training → changes of the training that `strong` now has
TRAININGS: dict[str, dict[str, object]] = {
    "authors": {},
    "decay2e-4": {"weight_decay": 2e-4},
    "nearest": {"augment": ("crop", "flip", "trivialaugment")},
}
GAMMAS = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)


@dataclasses.dataclass(frozen=True)
class Head:
    """A way from the network's maps to scores.

    Attributes
    ----------
    parts : tuple of (tap, grid)
    power : float
        Each pooled value is raised to it.
    length : bool
        Whether each part is scaled to length 8.
    standard : bool
        Whether each dimension is centred and scaled by what the pseudo-base has.
    width : int
    activations : tuple of str
        The width is shared out evenly among them.
    bias : float
        Standard deviation of a random constant in each expanded feature.
    views : int
        Training images are seen as themselves and as ``views - 1`` shifted copies, each with weight
        1 / views.
    before : bool
        Whether the expansion comes before pooling: 1 x 1 random maps of each tap, ReLU, then the grid.
    """

    parts: tuple[tuple[str, int], ...]
    power: float = 1.0
    length: bool = True
    standard: bool = False
    width: int = 8192
    activations: tuple[str, ...] = ("relu",)
    bias: float = 0.0
    views: int = 1
    before: bool = False


_DEEP = (("stage1.4", 2), ("stage2.2", 2), ("stage2.4", 2), ("stage3.2", 2), ("stage3.4", 2))
_ALL = tuple((f"stage{s}.{b}", 2) for s in (1, 2, 3) for b in range(5))
_LATE = tuple((f"stage{s}.{b}", 2) for s in (2, 3) for b in range(5))
GROUPS: dict[str, dict[str, Head]] = {
    "taps": {
        "last": Head((("stage3.4", 1),)),
        "two": Head((("stage2.4", 2), ("stage3.4", 2))),
        "deep": Head(_DEEP),
        "deep+grid1": Head((*_DEEP, ("stage3.4", 1), ("stage2.4", 1))),
        "deep+grid4": Head((*_DEEP, ("stage3.4", 4), ("stage2.4", 4))),
        "deep3": Head(tuple((tap, 3) for tap, _ in _DEEP)),
        "deep4": Head(tuple((tap, 4) for tap, _ in _DEEP)),
        "late": Head(_LATE),
        "all": Head(_ALL),
        "stage3": Head(tuple((f"stage3.{b}", 2) for b in range(5))),
        "stage23": Head(
            (("stage2.2", 2), ("stage2.4", 2), ("stage3.1", 2), ("stage3.3", 2), ("stage3.4", 2))
        ),
    },
    "forms": {
        "deep sqrt": Head(_DEEP, power=0.5),
        "deep unscaled": Head(_DEEP, length=False),
        "deep standard": Head(_DEEP, standard=True),
        "deep bias": Head(_DEEP, bias=8.0),
        "deep tanh": Head(_DEEP, activations=("relu", "tanh")),
        "deep gelu": Head(_DEEP, activations=("gelu",)),
        "deep views4": Head(_DEEP, views=4),
        "all sqrt": Head(_ALL, power=0.5),
        "all standard": Head(_ALL, standard=True),
        "before two": Head((("stage2.4", 2), ("stage3.4", 2)), before=True, length=False),
        "before deep": Head(_DEEP, before=True, length=False),
    },
    "more": {
        "late 16384": Head(_LATE, width=16384),
        "all 16384": Head(_ALL, width=16384),
        "late3": Head(tuple((tap, 3) for tap, _ in _LATE)),
        "late standard": Head(_LATE, standard=True),
    },
    "widths": {f"deep {width}": Head(_DEEP, width=width) for width in (4096, 16384, 24576)},
}


@dataclasses.dataclass(frozen=True)
class Split:
    """Images and labels of one split, labels in its own order."""

    images: Tensor
    labels: Tensor
    held_out: Tensor
    base: int


def read_split(number: int, device: str) -> Split:
    """Return one split of the base classes' training images."""
    seed, base = SPLITS[number]
    data = load("cifar100", None)
    chosen = torch.nonzero(data.train_labels < BASE).flatten()
    pixels, labels = data.train.subset(chosen).pixels(), data.train_labels[chosen]
    position = torch.randperm(BASE, generator=torch.Generator().manual_seed(seed))
    labels = position[labels]
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    generator = torch.Generator().manual_seed(100 + seed)
    for label in range(BASE):
        members = torch.nonzero(labels == label).flatten()
        held_out[members[torch.randperm(len(members), generator=generator)[:HELD_OUT]]] = True
    return Split(pixels, labels, held_out, base)


def train_network(number: int, variant: str, out: Path, device: str, epochs: int | None) -> None:
    """Train one network on a split's pseudo-base."""
    stored = out / f"{variant}-{number}.safetensors"
    if stored.exists():
        return
    split, chosen = read_split(number, device), recipe("strong")
    settings = dataclasses.replace(chosen.training, **TRAININGS[variant])
    if epochs is not None:
        settings = dataclasses.replace(settings, epochs=epochs, warmup=min(settings.warmup, epochs))
    generator = torch.Generator().manual_seed(number)
    backbone = build(chosen.backbone, generator, **dict(chosen.backbone_options))
    network = Network(backbone, split.base, generator=generator)
    use = (split.labels < split.base) & ~split.held_out
    started = time.perf_counter()
    checkpoint = Checkpoint(out / f"{variant}-{number}")
    train(
        network,
        split.images[use],
        split.labels[use],
        settings,
        preprocessing=backbone.preprocessing,
        seed=number,
        device=device,
        checkpoint=checkpoint,
    )
    save_backbone(network.backbone, stored, {"variant": variant, "split": number})
    checkpoint.remove()
    print(f"{variant} split {number}: {time.perf_counter() - started:.0f} s", flush=True)


def maps(backbone, images: Tensor, taps: list[str], device: str) -> dict[str, Tensor]:
    """Return the mean of an image's and its mirror image's maps, float16, of each tap."""
    modules, found = backbone.taps(), {tap: [] for tap in taps}
    held: dict[str, Tensor] = {}
    hooks = [
        modules[tap].register_forward_hook(
            lambda _m, _i, output, tap=tap: held.__setitem__(tap, output.clone())
        )
        for tap in taps
    ]
    with exact_inference(backbone, torch.device(device)):
        for start in range(0, len(images), 1000):
            x = normalise(images[start : start + 1000].to(device), backbone.preprocessing)
            backbone(x)
            once = {tap: held[tap] for tap in taps}
            backbone(x.flip(3))
            for tap in taps:
                found[tap].append(((once[tap] + held[tap]) / 2).half())
    for hook in hooks:
        hook.remove()
    return {tap: torch.cat(parts) for tap, parts in found.items()}


_ACTIVATIONS = {"relu": functional.relu, "tanh": torch.tanh, "gelu": functional.gelu}


def expanded(head: Head, collected: dict[str, Tensor], base: Tensor, rows: slice, state: dict) -> Tensor:
    """Return the head's expanded features of some rows, float32."""
    device = next(iter(collected.values())).device
    generator = torch.Generator().manual_seed(0)
    parts = []
    if head.before:
        share = head.width // sum(grid**2 for _, grid in head.parts)
    for index, (tap, grid) in enumerate(head.parts):
        values = collected[tap][rows].float()
        if head.before:
            projection = torch.randn(
                share, values.shape[1], generator=torch.Generator().manual_seed(index)
            )
            values = functional.relu(functional.conv2d(values, projection[:, :, None, None].to(device)))
        part = functional.adaptive_avg_pool2d(values, grid).flatten(1)
        if head.power != 1.0:
            part = part.clamp_min(0).pow(head.power)
        if head.length:
            part = 8 * functional.normalize(part)
        parts.append(part)
    features = torch.cat(parts, 1)
    if head.standard:
        if "mean" not in state:
            state["mean"], state["scale"] = None, None
            sample = expanded(
                dataclasses.replace(head, standard=False, width=-1), collected, base, base, {}
            )
            state["mean"], state["scale"] = sample.mean(0), sample.std(0).clamp_min(1e-6)
        features = (
            (features - state["mean"])
            / state["scale"]
            * (8 * len(parts) ** 0.5 / features.shape[1] ** 0.5)
        )
    if head.before or head.width == -1:
        return features
    if "projection" not in state:
        each = head.width // len(head.activations)
        state["projection"] = torch.randn(features.shape[1], each, generator=generator).to(device)
        state["bias"] = head.bias * torch.randn(each, generator=generator).to(device)
    product = features @ state["projection"] + state["bias"]
    scale = {"tanh": 0.125}
    return torch.cat(
        [_ACTIVATIONS[name](product * scale.get(name, 1.0)) for name in head.activations], 1
    )


def evaluate(
    head: Head, collected: list[dict[str, Tensor]], split: Split, device: str
) -> dict[str, list]:
    """Return A_0 … A_5 on held-out images for each relative γ."""
    labels, held_out = split.labels.to(device), split.held_out.to(device)
    state: dict = {}
    base_rows = torch.nonzero((labels < split.base) & ~held_out).flatten()
    step = (BASE - split.base) // 5
    gram = moment = None
    test_rows = torch.nonzero(held_out).flatten()
    test = torch.cat(
        [expanded(head, collected[0], base_rows, rows, state) for rows in test_rows.split(2048)]
    ).double()
    curve: dict[str, list] = {f"{gamma:g}": [] for gamma in GAMMAS}
    seen = 0
    for end in (split.base, *range(split.base + step, BASE + 1, step)):
        members = torch.nonzero((labels >= seen) & (labels < end) & ~held_out).flatten()
        for view in range(head.views):
            for rows in members.split(4096):
                X = expanded(head, collected[view], base_rows, rows, state).double() / head.views**0.5
                if gram is None:
                    gram = X.new_zeros(X.shape[1], X.shape[1])
                    moment = X.new_zeros(X.shape[1], BASE)
                add_gram_(gram, X)
                moment += X.mT @ functional.one_hot(labels[rows], BASE).double() / head.views**0.5
        seen = end
        known = labels[test_rows] < end
        mean_square = float(gram.diagonal().mean())
        for gamma in GAMMAS:
            matrix = gram.clone()
            matrix.diagonal().add_(gamma * mean_square)
            cholesky_(matrix, gamma)
            weights = solve_lower(matrix, solve_lower(matrix, moment[:, :end]), transposed=True)
            hits = (test[known] @ weights).argmax(1) == labels[test_rows][known]
            curve[f"{gamma:g}"].append(100 * float(hits.double().mean()))
    return curve


def rank_heads(numbers: list[int], variant: str, group: str, out: Path, device: str) -> None:
    """Write one line a head and split, with the curve of every γ."""
    target = out / f"heads-{variant}-{group}.jsonl"
    for number in numbers:
        split = read_split(number, device)
        backbone = load_backbone(out / f"{variant}-{number}.safetensors", device=torch.device(device))[0]
        backbone = backbone.to(device)
        heads = GROUPS[group]
        taps = sorted({tap for head in heads.values() for tap, _ in head.parts})
        collected = [maps(backbone, split.images, taps, device)]
        shifts = torch.Generator().manual_seed(number)
        for _ in range(max(head.views for head in heads.values()) - 1):
            down, right = torch.randint(-2, 3, (2,), generator=shifts).tolist()
            moved = functional.pad(split.images, (2, 2, 2, 2), mode="constant", value=0)
            moved = moved[:, :, 2 + down : 34 + down, 2 + right : 34 + right]
            collected.append(maps(backbone, moved, taps, device))
        for name, head in heads.items():
            started = time.perf_counter()
            curve = evaluate(head, collected, split, device)
            means = {gamma: sum(values) / len(values) for gamma, values in curve.items()}
            best = max(means, key=means.__getitem__)
            line = {"variant": variant, "split": number, "head": name, "curve": curve}
            with target.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(
                f"{variant} {number} {name:22s} Ā {means[best]:.2f} last {curve[best][-1]:.2f} "
                f"at γ {best} "
                f"({time.perf_counter() - started:.1f} s)",
                flush=True,
            )


def main() -> None:
    """Train or rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=["train", "heads"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--variant", default="authors")
    parser.add_argument("--splits", default="0,1,2,3")
    parser.add_argument("--group", default="taps")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    numbers = [int(text) for text in arguments.splits.split(",")]
    if arguments.action == "train":
        for number in numbers:
            train_network(number, arguments.variant, arguments.out, arguments.device, arguments.epochs)
    else:
        for group in arguments.group.split(","):
            rank_heads(numbers, arguments.variant, group, arguments.out, arguments.device)


if __name__ == "__main__":
    main()
