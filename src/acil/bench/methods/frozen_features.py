"""What all methods on frozen features share: one network, never trained after the base phase."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from acil.bench.methods.base import Context, MemoryUse, Method, Phase
from acil.bench.methods.base_network import base_backbone
from acil.bench.training.fields import Settings, read_settings
from acil.encoders.images.extract import FeatureExtractor
from acil.encoders.images.imageset import ImageSet
from acil.errors import InputError
from acil.scale import Group, scattered

#: Bytes of float64 rows that are worked on together.
_BLOCK_BYTES = {"cpu": 2**24, "cuda": 2**28}
#: Deviations below this share of the largest are those of dimensions that hardly move.
_LEAST = 1e-6


class FrozenMethod(Method):
    """A method that learns a head on the features of the base network.

    The network is given, or trained on the base phase, or loaded from the checkpoint folder; then it
    stays as it is. Which of its features are used is the recipe's choice, the same for all methods.
    Vectors that stand for images are taken as they are.
    """

    #: A frozen dataclass of the method's own settings.
    settings_type: ClassVar[type[Any]] = Settings

    @classmethod
    def setting_names(cls) -> frozenset[str] | None:
        return frozenset(field.name for field in dataclasses.fields(cls.settings_type))

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.settings: Any = read_settings(self.settings_type, context.settings)
        self.extractor: FeatureExtractor | None = None
        self.standardize: Standardize | None = None

    def learn(self, phase: Phase) -> None:
        """Train the network if this is the base phase, then add the phase to the head."""
        self.resume(phase)
        group = self.context.group
        images, labels = own_images(phase.images, phase.labels, group)
        if (group is None and len(labels) == 0) or len(images) != len(labels):
            raise InputError(
                f"Phase {phase.index} has {len(images)} images and {len(labels)} labels. Give at "
                "least one image, and one label for each."
            )
        features, labels = self.training_rows(images, labels)
        _require_finite(features, f"phase {phase.index}")
        self._learn(features, dataclasses.replace(phase, images=images, labels=labels))

    def predict(self, images: ImageSet) -> Tensor:
        return self._from_all(images, self._predict_images)

    def memory(self) -> MemoryUse:
        """Count the head and the network."""
        head = self._memory()
        network = [] if self.extractor is None else self.extractor.backbone.state_dict().values()
        weights = head.weights + sum(tensor.nbytes for tensor in network)
        return dataclasses.replace(head, weights=weights)

    def resume(self, base: Phase) -> None:
        """Take up the network of the base phase, also after `load_state_dict`."""
        if self.extractor is None and base.images.has_pixels:
            context = self.context
            backbone = base_backbone(context, base)
            self.extractor = FeatureExtractor(
                backbone,
                context.recipe.features,
                context.device,
                cache=context.cache,
                share=None if context.group is None else (context.group.rank, context.group.size),
            )
        if self.standardize is None and self.context.recipe.features.standardize:
            if base.index != 0:
                raise InputError(
                    "Features are standardized by the base phase, and this run has none. Take a base of "
                    "at least one class, or set features.standardize=false."
                )
            found = self._from_all(base.images, lambda images: images.features(self.extractor))
            self.standardize = Standardize(found)

    def features(self, images: ImageSet) -> Tensor:
        """Return features of shape (n, d), float32, on the CPU; not to be changed in place.

        In a group, only of images that are this process's.
        """
        found = images.features(self.extractor)
        return found if self.standardize is None else self.standardize(found)

    def training_rows(self, images: ImageSet, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows that a head learns, and their labels: one for each image, or for each view."""
        found = images.training_rows(self.extractor)
        if self.standardize is not None:
            found = [self.standardize(rows) for rows in found]
        return (found[0] if len(found) == 1 else torch.cat(found)), labels.repeat(len(found))

    def _predict_images(self, images: ImageSet) -> Tensor:
        if self.context.group is not None and len(images) == 0:
            return torch.empty(0, dtype=torch.int64)
        features = self.features(images)
        _require_finite(features, "the images to predict")
        return self._predict(features)

    def _from_all(self, images: ImageSet, compute: Callable[[ImageSet], Tensor]) -> Tensor:
        """Return what is computed from images; in a group, each process computes its share."""
        group = self.context.group
        if group is None:
            return compute(images)
        rows = own_rows(images, group)
        return scattered(compute(images.subset(rows)), rows, len(images), group)

    @abstractmethod
    def _learn(self, features: Tensor, phase: Phase) -> None:
        """Add the features of one phase, which are finite."""

    @abstractmethod
    def _predict(self, features: Tensor) -> Tensor:
        """Return labels of shape (n,), int64, on the CPU, for features that are finite."""

    @abstractmethod
    def _memory(self) -> MemoryUse:
        """Count the head alone."""


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


class Standardize:
    """Centre each dimension, give all the same deviation, and keep the mean squared length.

    Whatever comes later is treated with the base phase's numbers, so that the features of an image do
    not depend on the phase it arrives in, and sums over images stay sums. It is made from the features
    of the base phase, (n, d), float32.

    Examples
    --------
    >>> import torch
    >>> standardize = Standardize(torch.tensor([[1.0, 10.0], [3.0, 30.0]]))
    >>> standardize(torch.tensor([[3.0, 10.0]])).round(decimals=3)
    tensor([[ 15.8900, -15.8900]])
    """

    def __init__(self, features: Tensor) -> None:
        values = features.double()
        self._mean = values.mean(dim=0)
        deviation = (values - self._mean).square().mean(dim=0).sqrt()
        length = values.square().sum(dim=1).mean().sqrt()
        least = (_LEAST * deviation.max()).clamp_min(torch.finfo(torch.float32).tiny)
        # A dimension that never moves in the base phase says nothing about scale: it is left out.
        moving = deviation > least
        self._factor = torch.where(moving, length / moving.sum().clamp_min(1).sqrt() / deviation, 0.0)

    def __call__(self, features: Tensor) -> Tensor:
        """Return features of shape (n, d) on the scale of the base phase, float32."""
        return ((features.double() - self._mean) * self._factor).float()


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
