"""What a class-incremental method is given, and what it must do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acil.bench.training.loop import derived_seed
from acil.bench.training.recipes import Recipe
from acil.encoders.images.backbones import Backbone
from acil.encoders.images.cache import FeatureCache
from acil.encoders.images.imageset import ImageSet
from acil.scale import Group

#: The base network that methods share which have none of their own.
SHARED_BASE = "shared"


@dataclass(frozen=True)
class Phase:
    """The training data of one phase, and nothing else."""

    index: int
    """0 is the base phase."""
    classes: tuple[int, ...]
    """Labels that appear: positions in the class order."""
    images: ImageSet
    labels: Tensor
    """Of shape (n,), int64."""
    n_seen: int
    """Number of classes seen so far, this phase included."""


@dataclass(frozen=True)
class MemoryUse:
    """Bytes that a method carries from one phase to the next."""

    samples: int = 0  # stored samples of old classes
    statistics: int = 0  # sums, matrices and other numbers that are needed to go on learning
    weights: int = 0  # parameters that are needed to predict


@dataclass(frozen=True)
class Context:
    """What a method may use beside the data of the present phase."""

    recipe: Recipe
    """Base training, features, width and γ."""
    seed: int
    device: torch.device
    n_classes: int
    """Number of classes in all phases together."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the user set beyond the recipe (``expansion_size``, ``gamma``, ``solver``, ``dtype`` …)."""
    backbone: Backbone | None = None
    """A trained network to start from; None means that the method trains one on the base phase."""
    classifier: Mapping[str, Tensor] | None = None
    """Weights of the linear classifier that ``backbone`` was trained with, where they are known."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """What a trained backbone must remember: data set, class order, base classes, seed, recipe."""
    cache: FeatureCache = field(default_factory=lambda: FeatureCache(None))
    checkpoint: Path | None = None
    """Folder shared by all jobs of a run with the same base network."""
    progress: Callable[[Any], None] | None = None
    """Told about long work, see `acil.bench.training.loop`."""
    group: Group | None = None
    """Processes that do this job together, for a method that takes shards."""
    recipe_changes: frozenset[str] = frozenset()
    """Dotted keys of the recipe that the user has set."""
    phase_sizes: tuple[int, ...] = ()
    """Number of training images of each phase, for a method that plans ahead; empty if not known."""

    def seed_for(self, *purpose: object) -> int:
        """Return a seed that depends on that of the run and on what it is for."""
        return derived_seed("acil method", self.seed, *purpose)


class Method(ABC):
    """A class-incremental method: one file, one class, made for a context. These five are all of it.

    A class of the user's own need not inherit from it. It may say in ``planning`` what else a run asks.
    """

    def __init__(self, context: Context) -> None:
        self.context = context

    @abstractmethod
    def learn(self, phase: Phase) -> None:
        """Learn one phase from its own training data."""

    @abstractmethod
    def predict(self, images: ImageSet) -> Tensor:
        """Return labels of shape (n,), over all classes seen."""

    @abstractmethod
    def memory(self) -> MemoryUse:
        """Count the bytes carried to the next phase."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return everything that learning goes on from: tensors and values for JSON."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, exactly."""


class Planning:
    """What a run asks about a method before it learns, and makes it by; the defaults suit most.

    A method with other answers has a subclass as its attribute ``planning``.
    """

    def __init__(self, method: Callable[[Context], Method]) -> None:
        self.method: Any = method

    def __call__(self, context: Context) -> Method:
        """Return the method, which has not learnt anything yet."""
        made: Method = self.method(context)
        return made

    @property
    def grouping_free(self) -> bool:
        """Whether the state depends only on the set of samples seen: attribute of the method's class.

        Then one run with many phases gives the results of every coarser grouping.
        """
        return bool(getattr(self.method, "grouping_free", False))

    @property
    def classes_return(self) -> bool:
        """Whether classes may come again in a later phase: attribute of the method's class.

        By default if the grouping into phases does not matter.
        """
        return bool(getattr(self.method, "classes_return", self.grouping_free))

    @property
    def first_phase_matters(self) -> bool:
        """Whether its state depends on which samples come first: attribute of the method's class.

        Then one run serves several groupings only if they begin with the same base phase.
        """
        return bool(getattr(self.method, "first_phase_matters", False))

    @property
    def trains_network(self) -> bool:
        """Whether it trains a network on images, not features: attribute of the method's class."""
        return bool(getattr(self.method, "trains_network", False))

    @property
    def analytic_heads(self) -> int:
        """Closed-form heads of width d, whose d and γ suites vary: attribute of the method's class."""
        return int(getattr(self.method, "analytic_heads", 0))

    def setting_names(self) -> frozenset[str] | None:
        """Return the names of its settings; None if it takes any, as a method of the user's own may."""
        return None

    def recorded_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return what records say of the method's own settings, from what the user set and defaults.

        A class may have a class method of this name.
        """
        class_method: Any = getattr(self.method, "recorded_settings", None)
        return {} if class_method is None else dict(class_method(settings))

    def refusal(self, images: ImageSet, settings: Mapping[str, Any]) -> str | None:
        """Return what keeps the method from learning such images or features; None if nothing does."""
        if self.trains_network and not images.has_pixels:
            return "no images to train a network on"
        return None

    def check(self, context: Context) -> None:
        """Raise if settings do not fit, before hours of training."""
        if self.analytic_heads:
            self(context)

    def takes_shards(self, settings: Mapping[str, Any]) -> bool:
        """Say whether the processes of ``context.group`` can work on a job together.

        Then every process makes the same calls, learns and predicts its own share of the images, and
        returns the same.
        """
        return False

    def kept_bytes(self, n_classes: int, n_features: int) -> int:
        """Return the bytes that it keeps of all classes, if they may be too many; 0 for small ones.

        Closed-form heads of ``analytic_heads`` are not counted here.
        """
        return 0

    def base_training(self, context: Context) -> tuple[str, int]:
        """Return whose base network it starts from, and how often that training sees an image."""
        return SHARED_BASE, context.recipe.training.inputs_per_image

    def trained_images(self, context: Context, sizes: Sequence[int], seen: Sequence[int]) -> int:
        """Return how many images a run trains on, each as often as it is seen, copies included.

        Base networks, which jobs share, are not counted. Of jobs that run side by side, those that
        train most begin. Phases have ``sizes`` images, and ``seen`` classes are known after each.
        """
        return 0

    def held_images(self, context: Context, sizes: Sequence[int], seen: Sequence[int]) -> int:
        """Return how many images it has in memory at a time, where those of a data set are in files.

        Phases have ``sizes`` images, and ``seen`` classes are known after each.
        """
        return 0

    def compare_with_joint(
        self, method: Any, images: ImageSet, labels: Tensor, test: ImageSet
    ) -> dict[str, float]:
        """Return entries of the summary record: how far a method is from learning everything at once.

        Images and labels are all training data seen, for this comparison only.
        """
        return {}
