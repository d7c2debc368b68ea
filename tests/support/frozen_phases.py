"""Small phases of vectors, for tests of methods on frozen features."""

import numpy as np
import torch

from acil.bench.methods import Context, Phase, resolve
from acil.bench.training.recipes import recipe
from acil.encoders.images.imageset import ImageSet

#: ACIL with another expansion, other weights, or draws; and what stands alone.
FAMILY = ("aef-ocl", "air", "anacp", "g-air", "gkeal", "klda", "ranpac")
FROZEN = ("ds-al", "fecam", "fetril", "lda", "ncm", "slda", *FAMILY)
GROUPING_FREE = ("aef-ocl", "air", "anacp", "fecam", "g-air", "gkeal", "klda", "lda", "ncm")
#: Classes of the phases.
GROUPS = [(0, 1, 2), (3,), (4, 5)]


def gaussians(n_classes=6, per_class=12, d=8, seed=0, shift=2.0):
    """Features that are not negative, float32, and labels in mixed order."""
    rng = np.random.default_rng(seed)
    centres = np.abs(rng.normal(scale=shift, size=(n_classes, d)))
    mixing = rng.normal(size=(d, d)) / d**0.5
    labels = rng.permutation(np.repeat(np.arange(n_classes), per_class))
    noise = rng.normal(size=(len(labels), d)) @ mixing * 0.7
    features = np.abs(centres[labels] + noise)
    return torch.from_numpy(features.astype(np.float32)), torch.from_numpy(labels)


def vectors(features):
    return ImageSet(None, features)


def phase(features, labels, index=0, n_seen=0):
    classes = tuple(torch.unique(labels).tolist())
    return Phase(index, classes, vectors(features), labels, n_seen)


def phases(features, labels, groups):
    """One phase for each group of classes; the first one is the base phase."""
    found = []
    for index, group in enumerate(groups):
        chosen = torch.isin(labels, torch.tensor(group))
        found.append(phase(features[chosen], labels[chosen], index))
    return found


def method(name, n_classes=6, device="cpu", **settings):
    values = {"expansion_size": 24, "gamma": 0.5, **settings}
    context = Context(recipe("features"), 0, torch.device(device), n_classes, values)
    return resolve(name)(context)


def learnt(name, all_phases, **settings):
    found = method(name, **settings)
    for one in all_phases:
        found.learn(one)
    return found
