"""A problem of seconds for methods that train networks: a bright bar whose place tells the class."""

from dataclasses import replace

import torch

from acil.bench.methods import Context, Phase, resolve
from acil.bench.training.recipes import RECIPES, Recipe
from acil.bench.training.settings import Training
from acil.encoders.images.backbones import Backbone, Preprocessing
from acil.encoders.images.imageset import ImageSet
from support.small_training import images_of

TRAINING = Training(epochs=2, batch_size=16, learning_rate=0.05, schedule="cosine", warmup=1)
N_CLASSES = 6

#: Every method that trains its network at every phase.
REPLAY_METHODS = (
    "finetune",
    "joint",
    "lwf",
    "lwf-exemplars",
    "icarl",
    "icarl-bce",
    "ewc",
    "rotated-ewc",
    "bic",
    "lucir",
    "podnet",
    "lucir+mnemonics",
    "podnet+aanets",
    "eeil",
    "lfl",
    "dgr",
    "mergan",
)


def make_phases(sizes=(3, 2, 1), per_class=16, first_index=0):
    phases, start = [], 0
    for index, size in enumerate(sizes):
        classes = tuple(range(start, start + size))
        pixels, labels = images_of(classes, per_class, seed=index)
        start += size
        phases.append(Phase(first_index + index, classes, ImageSet(pixels), labels, start))
    return phases


def make_context(checkpoint=None, *, training=TRAINING, seed=0, **options):
    settings = {
        "memory_rule": "4 per class",
        "bic_correction_epochs": 5,
        "podnet_balanced_epochs": 2,
        "eeil_balanced_epochs": 2,
        "dgr_generator_epochs": 2,
        "dgr_drawn": 8,
        "mergan_generator_epochs": 2,
        "mergan_drawn": 8,
        **options.pop("settings", {}),
    }
    return Context(
        recipe=Recipe(name="test", backbone="smallcnn", training=training),
        seed=seed,
        device=torch.device("cpu"),
        n_classes=N_CLASSES,
        settings=settings,
        checkpoint=checkpoint,
        **options,
    )


def learnt(name, phases=None, context=None, **settings):
    """Return a method that has learnt some phases."""
    method = resolve(name)(context or make_context(settings=settings))
    for phase in make_phases() if phases is None else phases:
        method.learn(phase)
    return method


def upper_rows(*rows):
    """Return images whose upper row is given, in units of 51 (a fifth of the brightest)."""
    made = torch.zeros(len(rows), 1, 2, 2, dtype=torch.uint8)
    made[:, 0, 0] = 51 * torch.tensor(rows, dtype=torch.uint8)
    return made


class TwoPixels(Backbone):
    """Features are the two pixels of the upper row, as numbers from 0 to 1."""

    def __init__(self):
        super().__init__("twopixels", 2, Preprocessing((0.0,), (1.0,), 2))

    def forward(self, x):
        return x[:, 0, 0]


def paper_context(**changes):
    """Return a context with the recipe of the paper and the settings of each method's authors."""
    return replace(make_context(), recipe=RECIPES["paper"], settings={}, **changes)
