"""What all methods that train their network again at every phase have in common."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from acil.bench.methods.base import Context, MemoryUse, Method, Phase, Planning
from acil.bench.methods.base_network import base_network, classifier_scores, network_features
from acil.bench.methods.exemplars import ExemplarMemory, MemoryRule
from acil.bench.training.checkpoint import Checkpoint
from acil.bench.training.loop import train
from acil.bench.training.network import Network
from acil.bench.training.objectives import Objective
from acil.bench.training.recipes import RECIPES
from acil.bench.training.settings import Settings, Training, changed, read_settings, to_values
from acil.encoders.images.backbones import Backbone, Preprocessing, build
from acil.encoders.images.imageset import ImageSet
from acil.errors import InputError, NotFittedError

#: What the user's settings for the increments begin with: ``increment.epochs``.
_PREFIX = "increment."

#: Recipe → changes of its training that a method's authors give for the data of that recipe.
Schedules = Mapping[str, Mapping[str, Any]]


def increment_training(context: Context, schedules: Schedules) -> Training:
    """Return the training settings of the increments.

    The recipe's training; then, for the recipes that the method has a schedule of its own for, that
    schedule, except where the user has changed the recipe; then what the user set as
    ``increment.NAME``.
    """
    training = context.recipe.training
    usual = RECIPES[context.recipe.name].training if context.recipe.name in RECIPES else training
    scheduled = {
        name: value
        for name, value in schedules.get(context.recipe.name, {}).items()
        if getattr(training, name) == getattr(usual, name)
        and f"training.{name}" not in context.recipe_changes
    }
    asked = {
        name.removeprefix(_PREFIX): value
        for name, value in context.settings.items()
        if name.startswith(_PREFIX)
    }
    return changed(training, {**scheduled, **asked})


class NetworkPlanning(Planning):
    """What a run asks about a method that trains a network at every phase, with its wrappers."""

    method: type[IncrementalNetwork]

    def __init__(self, method: type[IncrementalNetwork], wrappers: Sequence[type[Wrapper]] = ()) -> None:
        super().__init__(method)
        self.wrappers = tuple(wrappers)

    def __call__(self, context: Context) -> IncrementalNetwork:
        return self.method(context, self.wrappers) if self.wrappers else self.method(context)

    def setting_names(self) -> frozenset[str]:
        return frozenset(self.recorded_settings({}))

    def recorded_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the method's own settings, defaults included, for the records of a run."""
        values = to_values(self.method.own_settings(settings))
        recorded = {self.method.setting(name): value for name, value in values.items()}
        for wrapper in self.wrappers:
            recorded |= to_values(read_settings(wrapper.settings_type, settings))
        return recorded

    def check(self, context: Context) -> None:
        increment_training(context, self.method.schedules)

    def base_training(self, context: Context) -> tuple[str, int]:
        inputs = self(context).own_base_inputs
        return (self.method.name, inputs) if inputs else super().base_training(context)

    def trained_images(self, context: Context, sizes: Sequence[int], seen: Sequence[int]) -> int:
        return self(context).trained_images(sizes, seen)

    def held_images(self, context: Context, sizes: Sequence[int], seen: Sequence[int]) -> int:
        method = self(context)
        exemplars = max(method.kept_images(k, sizes, seen) for k in range(len(sizes)))
        return exemplars + (max(sizes) if self.method.holds_phases else 0)


class IncrementalNetwork(Method):
    """A method whose state is a network, and exemplars if its settings have a ``memory_rule``.

    A subclass says what an increment is: :meth:`increment` returns the new network and leaves
    ``self.network``, the teacher, as it is. Until it returns, nothing has changed. With
    ``balanced_epochs`` in its settings, :meth:`balanced` is a second stage of an increment.
    """

    planning = NetworkPlanning
    trains_network = True
    #: Registry name, for the names of settings and of base networks.
    name: ClassVar[str]
    #: A frozen dataclass of the method's own settings.
    settings_type: ClassVar[type[Any]] = Settings
    #: What the method's authors train with, by recipe.
    schedules: ClassVar[Schedules] = {}
    #: Whether increments train with the recipe's auxiliary tasks: those without an objective do.
    with_auxiliary_tasks: ClassVar[bool] = False
    #: Whether it reads all images of a phase into memory, where others read them while they train.
    holds_phases: ClassVar[bool] = False

    def __init__(self, context: Context, wrappers: Sequence[type[Wrapper]] = ()) -> None:
        super().__init__(context)
        self.settings: Any = self.own_settings(context.settings)
        self.training = increment_training(context, self.schedules)
        self.network: Any = None
        #: Number of classes seen after each phase.
        self.history: list[int] = []
        self.exemplars = ExemplarMemory(self.memory_rule(self.settings), context.n_classes)
        if self.exemplars.rule.strict and not context.phase_sizes:
            raise InputError(
                "A strict memory_rule plans ahead: it must be told the sizes of all phases."
            )
        self.wrappers = [make(self) for make in wrappers]
        #: With its wrappers, for messages and the names of checkpoints.
        self.full_name = "+".join([self.name, *(wrapper.name for wrapper in wrappers)])

    @classmethod
    def own_settings(cls, settings: Mapping[str, Any]) -> Any:
        """Return the method's settings from those of a run, where they are named after the method."""
        made = read_settings(cls.settings_type, settings, cls.setting)
        cls.memory_rule(made)  # refuses what is no rule
        return made

    @classmethod
    def setting(cls, field: str) -> str:
        """Return what the user calls a setting; the memory rule is the same for all methods of a run."""
        return field if field == "memory_rule" else f"{cls.name.replace('-', '_')}_{field}"

    @property
    def n_seen(self) -> int:
        """Number of classes seen."""
        return self.history[-1] if self.history else 0

    @classmethod
    def memory_rule(cls, settings: Any) -> MemoryRule:
        """Return how many exemplars are kept: none, unless the settings have a ``memory_rule``."""
        rule = getattr(settings, "memory_rule", None)
        return MemoryRule(0, "per class") if rule is None else MemoryRule.parse(rule)

    def base(self, phase: Phase) -> Any:
        """Return the network of the base phase, by default the shared one."""
        return base_network(self.context, phase)

    @abstractmethod
    def increment(self, phase: Phase) -> Any:
        """Return the network after a later phase."""

    @property
    def own_base_inputs(self) -> int:
        """Network inputs of an image in a base training of the method's own; 0 with the shared one."""
        return 0

    @property
    def balanced_epochs(self) -> int:
        """Epochs of the second stage of an increment; 0 without one."""
        return int(getattr(self.settings, "balanced_epochs", 0))

    def balanced(self, before: Any) -> Any:
        """Return the network after the second stage, on the exemplars of all classes.

        ``before`` is the network before the phase. Exemplars are chosen already.
        """
        return self.network

    def trained_images(self, sizes: Sequence[int], seen: Sequence[int]) -> int:
        return sum(self.increment_images(k, sizes, seen) for k in range(1, len(sizes)))

    def increment_images(self, index: int, sizes: Sequence[int], seen: Sequence[int]) -> int:
        """Return how many images one increment trains on, each as often as it is seen."""
        for wrapper in self.wrappers:
            sizes = wrapper.sizes(sizes)
        networks = math.prod(wrapper.networks for wrapper in self.wrappers)
        inputs = self.training.inputs_per_image if self.with_auxiliary_tasks else self.training.epochs
        main = inputs * (sizes[index] + self.kept_images(index - 1, sizes, seen))
        return networks * (main + self.balanced_epochs * self.kept_images(index, sizes, seen))

    def kept_images(self, index: int, sizes: Sequence[int], seen: Sequence[int]) -> int:
        """Return how many exemplars there are after a phase."""
        learnt, quota = sum(sizes[: index + 1]), self.rule_after(index).quota(seen[index])
        for wrapper in self.wrappers:
            quota = wrapper.quota(quota, index, seen[index])
        return learnt if quota is None else min(learnt, quota * seen[index])

    def rule_after(self, index: int) -> MemoryRule:
        """Return how many exemplars are kept after a phase."""
        context = self.context
        return self.memory_rule(self.settings).after(index, context.phase_sizes, context.n_classes)

    def learn(self, phase: Phase) -> None:
        """Learn one phase from its own data, and from the exemplars."""
        self._check(phase)
        self.exemplars.rule = self.rule_after(len(self.history))
        for wrapper in self.wrappers:
            phase = wrapper.before(phase)
        before = self.network
        network = self.base(phase) if before is None else self.increment(phase)
        # Features are for choosing: there is no choice where everything or nothing is kept.
        features = None
        if self.exemplars.rule.count:
            features = network_features(network.backbone, phase.images, self.context.device)
        first = self.first_exemplars(phase)
        self.exemplars.update(phase.images, phase.labels, features, phase.n_seen, first)
        self.network = network
        self.history.append(phase.n_seen)
        if before is not None and self.balanced_epochs:
            self.network = self.balanced(before)
        for wrapper in self.wrappers:
            wrapper.after(phase)

    def first_exemplars(self, phase: Phase) -> Tensor | None:
        """Return positions of images that become exemplars of first rank; None leaves all to herding."""
        return None

    def predict(self, images: ImageSet) -> Tensor:
        """Return the label of each image: the class of the largest score."""
        self._require_learnt()
        features = network_features(self.network.backbone, images, self.context.device)
        return self.scores(features).argmax(1)

    def scores(self, features: Tensor) -> Tensor:
        """Return the classifier's scores of features."""
        return classifier_scores(self.network.classifier, features, self.context.device)

    def memory(self) -> MemoryUse:
        """Count exemplars and network; the teacher of the next phase is that same network."""
        weights = sum(tensor.nbytes for tensor in self.network.state_dict().values())
        return MemoryUse(samples=self.exemplars.nbytes, weights=weights)

    def state_dict(self) -> dict[str, Any]:
        backbone = self.network.backbone
        state = {f"network.{name}": tensor.cpu() for name, tensor in self.network.state_dict().items()}
        exemplars = self.exemplars.state_dict()
        state |= {f"exemplars.{name}": tensor for name, tensor in exemplars.items()}
        described = {
            "name": backbone.name,
            "options": backbone.options,
            "preprocessing": backbone.preprocessing.to_dict(),
        }
        return {**state, "backbone": described, "history": list(self.history)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        described = state["backbone"]
        start = self.context.backbone
        if start is not None and start.name == described["name"]:
            # It may be of a class that only the user has.
            backbone = copy.deepcopy(start)
        else:
            backbone = build(described["name"], **described["options"])
        backbone.preprocessing = Preprocessing.from_dict(described["preprocessing"])
        weights = _part(state, "network.")
        for wrapper in self.wrappers:
            backbone = wrapper.rebuilt(backbone, weights)
        network = self.rebuilt(backbone, weights)
        network.load_state_dict(weights)
        self.network = network.to(self.context.device).eval()
        self.history = [int(n) for n in state["history"]]
        self.exemplars.load_state_dict(_part(state, "exemplars."))

    def rebuilt(self, backbone: Backbone, weights: Mapping[str, Tensor]) -> Any:
        """Return a network that saved weights fit into."""
        return Network(backbone, len(weights["classifier.weight"]))

    def data(self, phase: Phase) -> tuple[Tensor | ImageSet, Tensor]:
        """Return images and labels of a phase and of the exemplars kept before it."""
        return self.exemplars.with_new(phase.images, phase.labels)

    def student(self) -> Any:
        """Return a copy of the network, to train; the network itself is the teacher."""
        self.network.to(memory_format=torch.channels_last)
        made = copy.deepcopy(self.network)
        for wrapper in self.wrappers:
            wrapper.prepare(made)
        return made

    def grown_student(self, phase: Phase) -> Network:
        """Return a copy of the network with room for the classes of a phase."""
        network: Network = self.student()
        network.grow(phase.n_seen, self.generator("classifier", phase))
        return network

    def generator(self, purpose: str, phase: Phase) -> torch.Generator:
        """Return the source of what a phase draws for a purpose."""
        return torch.Generator().manual_seed(self.context.seed_for(purpose, phase.n_seen))

    def fit(
        self,
        network: Any,
        data: tuple[Tensor | ImageSet, Tensor],
        phase: Phase,
        objective: Objective | None = None,
    ) -> Any:
        """Train a network in place on (images, labels) and return it; a killed run goes on half-way."""
        context = self.context
        checkpoint = None
        if context.checkpoint is not None:
            folder = context.checkpoint / f"{self.full_name}-{self._digest(phase)}-phase-{phase.index}"
            checkpoint = Checkpoint(folder, other="restart")
        train(
            network,
            *data,
            self.training,
            preprocessing=network.backbone.preprocessing,
            seed=context.seed_for("phase", phase.n_seen),
            device=context.device,
            objective=objective,
            checkpoint=checkpoint,
            progress=context.progress,
        )
        if checkpoint is not None:
            checkpoint.remove()
            with suppress(OSError):
                checkpoint.path.parent.rmdir()
        return network

    def train_further(
        self,
        network: nn.Module,
        data: tuple[Tensor, Tensor],
        purpose: str,
        objective: Objective,
        **changes: Any,
    ) -> None:
        """Train in place, in a short stage without checkpoints, with changes of the settings."""
        train(
            network,
            *data,
            dataclasses.replace(self.training, **{"schedule": "step", "warmup": 0, **changes}),
            preprocessing=self.network.backbone.preprocessing,
            seed=self.context.seed_for(purpose, self.n_seen),
            device=self.context.device,
            objective=objective,
            progress=self.context.progress,
        )

    def _digest(self, phase: Phase) -> str:
        """Tell the trainings of this run from those of other K and settings in the same folder."""
        planning = NetworkPlanning(type(self), [type(wrapper) for wrapper in self.wrappers])
        settings = planning.recorded_settings(self.context.settings)
        facts = f"{settings} {self.training} {self.history} {phase.n_seen}"
        if self.training.auxiliary.active:
            facts += f" {self.training.auxiliary}"
        return hashlib.sha256(facts.encode()).hexdigest()[:16]

    def _require_learnt(self) -> None:
        if self.network is None:
            raise NotFittedError(f"{self.full_name} has not learnt anything yet. Learn a phase first.")

    def _check(self, phase: Phase) -> None:
        expected = tuple(range(self.n_seen, phase.n_seen))
        if phase.classes != expected or not expected:
            raise InputError(
                f"{self.full_name} takes new classes in order, after {self.n_seen} seen: {expected}. "
                f"Got {phase.classes}."
            )


class Wrapper:
    """Changes how a host method learns, which keeps a list of these; the defaults change nothing."""

    #: What stands behind the host's name.
    name: ClassVar[str]
    #: A frozen dataclass of its settings, beside those of the host.
    settings_type: ClassVar[type[Any]] = Settings
    #: Networks that each image goes through in training.
    networks: ClassVar[int] = 1

    def __init__(self, host: IncrementalNetwork) -> None:
        self.host = host
        self.settings: Any = read_settings(self.settings_type, host.context.settings)

    def before(self, phase: Phase) -> Phase:
        """Return what the host learns of a phase."""
        return phase

    def prepare(self, network: Any) -> None:
        """Change a copy of the network, which an increment trains."""

    def after(self, phase: Phase) -> None:
        """Change what the host has, when it has learnt a phase."""

    def rebuilt(self, backbone: Backbone, weights: Mapping[str, Tensor]) -> Backbone:
        """Return a backbone that saved weights fit into."""
        return backbone

    def sizes(self, sizes: Sequence[int]) -> Sequence[int]:
        """Return how many images the host learns of each phase."""
        return sizes

    def quota(self, quota: int | None, index: int, n_seen: int) -> int | None:
        """Return how many exemplars a class may have after a phase."""
        return quota


def _part(state: Mapping[str, Any], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
