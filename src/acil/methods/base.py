"""What a class-incremental method is given, and what it must do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from acil.distributed import Group
from acil.training.recipes import Recipe
from acil.vision.backbones import Backbone
from acil.vision.cache import FeatureCache
from acil.vision.imageset import ImageSet


@dataclass(frozen=True)
class Phase:
    """The training data of one phase, and nothing else.

    Attributes
    ----------
    index : int
        0 is the base phase.
    classes : tuple of int
        Labels that appear: positions in the class order.
    images : ImageSet
    labels : Tensor of shape (n,), int64
    n_seen : int
        Number of classes seen so far, this phase included.
    """

    index: int
    classes: tuple[int, ...]
    images: ImageSet
    labels: Tensor
    n_seen: int


@dataclass(frozen=True)
class MemoryUse:
    """Bytes that a method carries from one phase to the next.

    Attributes
    ----------
    samples : int
        Stored samples of old classes.
    statistics : int
        Sums, matrices and other numbers that are needed to go on learning.
    weights : int
        Parameters that are needed to predict.
    """

    samples: int = 0
    statistics: int = 0
    weights: int = 0

    @property
    def total(self) -> int:
        """All bytes together."""
        return self.samples + self.statistics + self.weights


@dataclass(frozen=True)
class Context:
    """What a method may use beside the data of the present phase.

    Attributes
    ----------
    recipe : Recipe
        Base training, features, width and γ.
    seed : int
    device : torch.device
    n_classes : int
        Number of classes in all phases together.
    settings : Mapping
        What the user set beyond the recipe (``expansion_size``, ``gamma``, ``solver``, ``dtype`` …).
    backbone : Backbone or None
        A trained network to start from; None means that the method trains one on the base phase.
    classifier : Mapping of str to Tensor, or None
        Weights of the linear classifier that ``backbone`` was trained with, where they are known.
    identity : Mapping
        What a trained backbone must remember: data set, class order, base classes, seed, recipe.
    cache : FeatureCache
    checkpoint : Path or None
        Folder shared by all runs with the same base network.
    progress : callable or None
        Told about long work, see `acil.training.loop`.
    group : Group or None
        Processes that do this job together, for a method that takes shards.
    phase_sizes : tuple of int
        Number of training images of each phase, for a method that plans ahead; empty if not known.
    """

    recipe: Recipe
    seed: int
    device: torch.device
    n_classes: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    backbone: Backbone | None = None
    classifier: Mapping[str, Tensor] | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)
    cache: FeatureCache = field(default_factory=lambda: FeatureCache(None))
    checkpoint: Path | None = None
    progress: Callable[[Any], None] | None = None
    group: Group | None = None
    phase_sizes: tuple[int, ...] = ()


class Method(Protocol):
    """A class-incremental method: one file, one class.

    ``grouping_free`` is True when the state depends only on the set of samples seen: then one run with
    many phases gives the results of every coarser grouping.

    A method may also have ``resume(base_phase)``, called after `load_state_dict`, and a class method
    ``recorded_settings(settings)``: what its records say of its settings, defaults included. One with a
    class method ``takes_shards(settings)`` that returns True works with ``context.group``: every process
    makes the same calls, learns and predicts its own share of the images, and returns the same.
    One with ``trained_images(sizes, seen)`` says beforehand how many images it will train on (see
    `IncrementalNetwork`): of jobs that run side by side, those that train most begin.
    """

    grouping_free: bool

    def __init__(self, context: Context) -> None: ...

    def learn(self, phase: Phase) -> None:
        """Learn one phase from its own training data."""

    def predict(self, images: ImageSet) -> Tensor:
        """Return labels of shape (n,), over all classes seen."""

    def memory(self) -> MemoryUse:
        """Count the bytes carried to the next phase."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything that learning goes on from: tensors and values for JSON."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, exactly."""
