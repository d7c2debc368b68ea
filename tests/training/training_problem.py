"""Trainings of seconds: images with a bright bar whose place tells the class."""

import torch

from acil.training.loop import train
from acil.training.network import Network
from acil.training.settings import Training
from acil.vision.backbones import Preprocessing, build

PREPROCESSING = Preprocessing(mean=(0.4,), std=(0.3,), size=8)
SHORT = Training(epochs=3, batch_size=16, learning_rate=0.05, schedule="cosine", warmup=1)
CPU = torch.device("cpu")


def problem(n=150, n_classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(n_classes, (n,), generator=generator)
    images = torch.randint(120, (n, 1, 8, 8), generator=generator, dtype=torch.uint8)
    for image, label in zip(images, labels, strict=True):
        image[0, 2 * label : 2 * label + 2] += 100
    return images, labels


def make_network(n_classes=3, seed=0, backbone="smallcnn"):
    generator = torch.Generator().manual_seed(seed)
    return Network(build(backbone, generator), n_classes, generator=generator)


def fit(network, images, labels, settings, **options):
    options = {"preprocessing": PREPROCESSING, "seed": 0, "device": "cpu", **options}
    train(network, images, labels, settings, **options)
    return network


def same(first, second):
    a, b = first.state_dict(), second.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
