"""Trainings of seconds: images with a bright bar whose place tells the class."""

import torch

from acil.bench.training.loop import train
from acil.bench.training.network import Network
from acil.bench.training.objectives import Objective
from acil.bench.training.settings import Training
from acil.encoders.images.backbones import Preprocessing, build

PREPROCESSING = Preprocessing(mean=(0.4,), std=(0.3,), size=8)
SHORT = Training(epochs=3, batch_size=16, learning_rate=0.05, schedule="cosine", warmup=1)
CPU = torch.device("cpu")


def images_of(classes, per_class=16, seed=0):
    """Return pixels and labels, class by class; classes 0 … 3 are rows, 4 … 7 columns."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor([label for label in classes for _ in range(per_class)])
    pixels = torch.randint(100, (len(labels), 1, 8, 8), generator=generator, dtype=torch.uint8)
    for image, label in zip(pixels, labels.tolist(), strict=True):
        place = slice(2 * (label % 4), 2 * (label % 4) + 2)
        if label < 4:
            image[0, place] += 130
        else:
            image[0, :, place] += 130
    return pixels, labels


def problem(n=150, seed=0):
    """Return n images of three classes, and their labels in mixed order."""
    pixels, labels = images_of(range(3), -(-n // 3), seed)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))[:n]
    return pixels[order], labels[order]


def make_network(n_classes=3, seed=0, backbone="smallcnn"):
    generator = torch.Generator().manual_seed(seed)
    return Network(build(backbone, generator), n_classes, generator).eval()


def batch(n=12, n_classes=3, seed=0):
    """Return normalised images, labels and positions."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 1, 8, 8, generator=generator), torch.arange(n) % n_classes, torch.arange(n)


class Plain(Objective):
    """A function as an objective, whose steps are not recorded."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *batch):
        return self.function(*batch)


def fit(network, images, labels, settings, **options):
    """Train a network in place, and return it; the objective may be a function."""
    options = {"preprocessing": PREPROCESSING, "seed": 0, "device": "cpu", **options}
    objective = options.get("objective")
    if objective is not None and not isinstance(objective, Objective):
        options["objective"] = Plain(objective)
    train(network, images, labels, settings, **options)
    return network


def same_state(first, second):
    """Say whether two states, or two things that have one, are the same bit for bit."""
    a, b = (one if isinstance(one, dict) else one.state_dict() for one in (first, second))
    return a.keys() == b.keys() and all(
        torch.equal(value, b[name]) if isinstance(value, torch.Tensor) else value == b[name]
        for name, value in a.items()
    )
