"""What all methods on frozen features share: one network, never trained after the base phase."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from acil.bench.methods.base import Context, MemoryUse, Method, Phase, Planning
from acil.bench.methods.base_network import base_backbone
from acil.bench.training.settings import Settings, read_settings
from acil.encoders.images.extract import FeatureExtractor
from acil.encoders.images.imageset import ImageSet
from acil.errors import InputError
from acil.scale import Group, scattered

#: Bytes of float64 rows that are worked on together.
_BLOCK_BYTES = {"cpu": 2**24, "cuda": 2**28}
#: Deviations below this share of the largest are those of dimensions that hardly move.
_LEAST = 1e-6
#: Before the numbers of a state that scale features.
_SCALE = "standardize."


class FrozenPlanning(Planning):
    """What a run asks about a method on frozen features."""

    def setting_names(self) -> frozenset[str]:
        return frozenset(field.name for field in dataclasses.fields(self.method.settings_type))

    def check(self, context: Context) -> None:
        self(context)


class FrozenFeatures:
    """The features that a method learns and predicts from: of one network that is never trained again.

    The network is given, or trained on the base phase, or loaded from the checkpoint folder. Which of
    its features are used is the recipe's choice, the same for all methods. Vectors that stand for images
    are taken as they are. In a group of processes, each has the features of its own images.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.extractor: FeatureExtractor | None = None
        self.standardize: Standardize | None = None

    def __call__(self, images: ImageSet) -> Tensor:
        """Return features of shape (n, d), float32, on the CPU; not to be changed in place."""
        self._open(images, None)
        rows = images.features(self.extractor)
        return rows if self.standardize is None else self.standardize(rows)

    def of_phase(self, phase: Phase) -> tuple[Tensor, Tensor]:
        """Return the rows that a head learns from a phase, and their labels.

        The base phase trains the network, unless there is one.
        """
        self._open(phase.images, phase)
        group = self.context.group
        images, labels = own_images(phase.images, phase.labels, group)
        if (group is None and len(labels) == 0) or len(images) != len(labels):
            raise InputError(
                f"Phase {phase.index} has {len(images)} images and {len(labels)} labels. Give at "
                "least one image, and one label for each."
            )
        rows, labels = self.training_rows(images, labels)
        _require_finite(rows, f"phase {phase.index}")
        return rows, labels

    def training_rows(self, images: ImageSet, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows that a head learns, and their labels: one for each image, or for each view."""
        self._open(images, None)
        views = images.training_rows(self.extractor)
        if self.standardize is not None:
            views = [self.standardize(rows) for rows in views]
        return (views[0] if len(views) == 1 else torch.cat(views)), labels.repeat(len(views))

    @property
    def network_bytes(self) -> int:
        """Bytes of the network."""
        network = [] if self.extractor is None else self.extractor.backbone.state_dict().values()
        return sum(tensor.nbytes for tensor in network)

    def state_dict(self) -> dict[str, Any]:
        """Return the scale of the base phase, if features are standardized; the network has its file."""
        return {} if self.standardize is None else vars(self.standardize).copy()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the scale of a base phase that was learnt before."""
        self.standardize = Standardize(**state) if state else None

    def from_all(self, images: ImageSet, compute: Callable[[ImageSet], Tensor]) -> Tensor:
        """Return what is computed from images; in a group, each process computes its share."""
        group = self.context.group
        if group is None:
            return compute(images)
        rows = own_rows(images, group)
        return scattered(compute(images.subset(rows)), rows, len(images), group)

    def _open(self, images: ImageSet, phase: Phase | None) -> None:
        """Take the network, which the base phase trains, and the base phase's scale."""
        context = self.context
        if self.extractor is None and images.has_pixels:
            self.extractor = FeatureExtractor(
                base_backbone(context, phase),
                context.recipe.features,
                context.device,
                cache=context.cache,
                share=None if context.group is None else (context.group.rank, context.group.size),
                progress=context.progress,
            )
        if phase is None or self.standardize is not None or not context.recipe.features.standardize:
            return
        if phase.index != 0:
            raise InputError(
                "Features are standardized by the base phase, and this run has none. Take a base of at "
                "least one class, or set features.standardize=false."
            )
        rows = self.from_all(phase.images, lambda images: images.features(self.extractor))
        self.standardize = Standardize.fitted(rows)


class FrozenMethod(Method):
    """A method that learns a head on frozen features."""

    planning: type[FrozenPlanning] = FrozenPlanning
    #: A frozen dataclass of the method's own settings.
    settings_type: ClassVar[type[Any]] = Settings

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.settings: Any = read_settings(self.settings_type, context.settings)
        self.features = FrozenFeatures(context)

    def learn(self, phase: Phase) -> None:
        """Train the network if this is the base phase, then add the phase to the head."""
        rows, labels = self.features.of_phase(phase)
        self._learn(rows, dataclasses.replace(phase, labels=labels))

    def predict(self, images: ImageSet) -> Tensor:
        return self.features.from_all(images, self._predict_images)

    def memory(self) -> MemoryUse:
        """Count the head and the network."""
        head = self._memory()
        return dataclasses.replace(head, weights=head.weights + self.features.network_bytes)

    def state_dict(self) -> dict[str, Any]:
        """Return the head; the network is in the shared checkpoint folder."""
        return {**self._state(), **{_SCALE + name: v for name, v in self.features.state_dict().items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        scale = [name for name in state if name.startswith(_SCALE)]
        self._load({name: value for name, value in state.items() if name not in scale})
        self.features.load_state_dict({name.removeprefix(_SCALE): state[name] for name in scale})

    def _predict_images(self, images: ImageSet) -> Tensor:
        if self.context.group is not None and len(images) == 0:
            return torch.empty(0, dtype=torch.int64)
        features = self.features(images)
        _require_finite(features, "the images to predict")
        return self._predict(features)

    @abstractmethod
    def _learn(self, features: Tensor, phase: Phase) -> None:
        """Add the features of one phase, which are finite and have ``phase.labels``."""

    @abstractmethod
    def _predict(self, features: Tensor) -> Tensor:
        """Return labels of shape (n,), int64, on the CPU, for features that are finite."""

    @abstractmethod
    def _memory(self) -> MemoryUse:
        """Count the head alone."""

    @abstractmethod
    def _state(self) -> dict[str, Any]:
        """Return the state of the head."""

    @abstractmethod
    def _load(self, state: Mapping[str, Any]) -> None:
        """Take over the state of a head."""


def blocks(features: Tensor, device: torch.device, width: int = 1) -> Iterator[Tensor]:
    """Yield consecutive rows as float64 on a device; of an empty tensor, one empty block.

    ``width`` is the number of values that a row grows to while it is worked on, if more than d.
    """
    size = _BLOCK_BYTES.get(device.type, 2**24) // (8 * max(1, width, features.shape[1]))
    size = max(16, size)
    for start in range(0, max(1, len(features)), size):
        yield features[start : start + size].to(device=device, dtype=torch.float64)


def _require_finite(features: Tensor, whose: str) -> None:
    if not bool(torch.isfinite(features).all()):
        raise InputError(
            f"The features of {whose} have values that are NaN or infinite. Check the backbone or the "
            "file of features."
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Standardize:
    """Centre each dimension, give all the same deviation, and keep the mean squared length.

    Whatever comes later is treated with the base phase's numbers, so that the features of an image do
    not depend on the phase it arrives in, and sums over images stay sums.

    Examples
    --------
    >>> import torch
    >>> standardize = Standardize.fitted(torch.tensor([[1.0, 10.0], [3.0, 30.0]]))
    >>> standardize(torch.tensor([[3.0, 10.0]])).round(decimals=3)
    tensor([[ 15.8900, -15.8900]])
    """

    mean: Tensor
    factor: Tensor

    @classmethod
    def fitted(cls, features: Tensor) -> Standardize:
        """Return that of the features of the base phase, (n, d), float32."""
        values = features.double()
        mean = values.mean(dim=0)
        deviation = (values - mean).square().mean(dim=0).sqrt()
        length = values.square().sum(dim=1).mean().sqrt()
        least = (_LEAST * deviation.max()).clamp_min(torch.finfo(torch.float32).tiny)
        # A dimension that never moves in the base phase says nothing about scale: it is left out.
        moving = deviation > least
        factor = torch.where(moving, length / moving.sum().clamp_min(1).sqrt() / deviation, 0.0)
        return cls(mean, factor)

    def __call__(self, features: Tensor) -> Tensor:
        """Return features of shape (n, d) on the scale of the base phase, float32."""
        return ((features.double() - self.mean) * self.factor).float()


def own_rows(images: ImageSet, group: Group) -> Tensor:
    """Return the positions of this process's images in a set, (k,), int64."""
    rows = torch.arange(len(images))
    places = rows if images.indices is None else images.indices
    return rows[places % group.size == group.rank]


def own_images(images: ImageSet, labels: Tensor, group: Group | None) -> tuple[ImageSet, Tensor]:
    """Return this process's images, and their labels; all of them without a group."""
    if group is None:
        return images, labels
    rows = own_rows(images, group)
    return images.subset(rows), labels[rows]
