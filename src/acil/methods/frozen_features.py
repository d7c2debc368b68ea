"""What all methods on frozen features share: one network, never trained after the base phase."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from acil.distributed import Group, scattered
from acil.errors import InputError, NotFittedError
from acil.methods.base import Context, MemoryUse, Method, Phase
from acil.methods.base_network import base_backbone
from acil.vision.extract import FeatureExtractor
from acil.vision.imageset import ImageSet

#: Bytes of float64 rows that are worked on together.
_BLOCK_BYTES = {"cpu": 2**24, "cuda": 2**28}
#: Deviations below this share of the largest are those of dimensions that hardly move.
_LEAST = 1e-6


class FrozenMethod(Method):
    """A method that learns a head on the features of the base network.

    The network is given, or trained on the base phase, or loaded from the checkpoint folder; then it
    stays as it is. Which of its features are used is the recipe's choice, the same for all methods.
    Vectors that stand for images are taken as they are.

    Parameters
    ----------
    context : Context
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.extractor: FeatureExtractor | None = None
        self.standardize: Standardize | None = None

    def learn(self, phase: Phase) -> None:
        """Train the network if this is the base phase, then add the phase to the head."""
        self.resume(phase)
        own = own_phase(phase, self.context.group)
        features = self.features(own.images)
        _check(features, own, required=own is phase)
        self._learn(features, own)

    def predict(self, images: ImageSet) -> Tensor:
        """Return the label of each image."""
        group = self.context.group
        if group is None:
            return self._predict(self._finite_features(images))
        rows = own_rows(images, group)
        found = self._predict(self._finite_features(images.subset(rows))) if len(rows) else rows
        return scattered(found, rows, len(images), group)

    def memory(self) -> MemoryUse:
        """Count the head and the network."""
        head = self._memory()
        network = 0
        if self.extractor is not None:
            tensors = self.extractor.backbone.state_dict().values()
            network = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return MemoryUse(head.samples, head.statistics, head.weights + network)

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
            self.standardize = Standardize(self._all_features(base.images))

    def features(self, images: ImageSet) -> Tensor:
        """Return features of shape (n, d), float32, on the CPU; not to be changed in place.

        In a group, only of images that are this process's.
        """
        found = images.features(self.extractor)
        return found if self.standardize is None else self.standardize(found)

    def _finite_features(self, images: ImageSet) -> Tensor:
        features = self.features(images)
        _require_finite(features, "the images to predict")
        return features

    def _all_features(self, images: ImageSet) -> Tensor:
        """Return features as the network gives them; in a group, each process extracts its share."""
        group = self.context.group
        if group is None:
            return images.features(self.extractor)
        rows = own_rows(images, group)
        return scattered(images.subset(rows).features(self.extractor), rows, len(images), group)

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

    Parameters
    ----------
    features : Tensor of shape (n, d)
    device : torch.device
    width : int
        Numbers that each row grows to while it is worked on, if that is more than d.
    """
    size = _BLOCK_BYTES.get(device.type, 2**24) // (8 * max(1, width, features.shape[1]))
    size = max(16, size)
    for start in range(0, max(1, len(features)), size):
        yield features[start : start + size].to(device=device, dtype=torch.float64)


def highest(
    score: Callable[[Tensor], Tensor],
    labels: Tensor,
    features: Tensor,
    device: torch.device,
    width: int = 1,
) -> Tensor:
    """Return the label with the highest score of each row.

    Parameters
    ----------
    score : callable
        Rows of shape (n, d), float64, to scores of shape (n, classes).
    labels : Tensor of shape (classes,), int64
    features, device, width
        See `blocks`.
    """
    if len(labels) == 0:
        raise NotFittedError("This method has not learnt any class yet. Let it learn a phase first.")
    width = max(width, len(labels))
    best = [score(block).argmax(dim=1).cpu() for block in blocks(features, device, width)]
    return labels[torch.cat(best)]


def _check(features: Tensor, phase: Phase, required: bool) -> None:
    if (required and len(phase.labels) == 0) or len(features) != len(phase.labels):
        raise InputError(
            f"Phase {phase.index} has {len(features)} images and {len(phase.labels)} labels. Give at "
            "least one image, and one label for each."
        )
    _require_finite(features, f"phase {phase.index}")


def _require_finite(features: Tensor, whose: str) -> None:
    if not bool(torch.isfinite(features).all()):
        raise InputError(
            f"The features of {whose} have values that are NaN or infinite. Check the backbone or the "
            "file of features."
        )


class Standardize:
    """Centre each dimension, give all the same deviation, and keep the mean squared length.

    Whatever comes later is treated with the base phase's numbers, so that the features of an image do
    not depend on the phase it arrives in, and sums over images stay sums.

    Parameters
    ----------
    features : Tensor of shape (n, d), float32
        Of the base phase.

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
    """Return which images of a set are this process's.

    Parameters
    ----------
    images : ImageSet
    group : Group

    Returns
    -------
    Tensor of shape (k,), int64
    """
    rows = torch.arange(len(images))
    places = rows if images.indices is None else images.indices
    return rows[places % group.size == group.rank]


def own_images(images: ImageSet, labels: Tensor, group: Group | None) -> tuple[ImageSet, Tensor]:
    """Return this process's images, and their labels; all of them without a group."""
    if group is None:
        return images, labels
    rows = own_rows(images, group)
    return images.subset(rows), labels[rows]


def own_phase(phase: Phase, group: Group | None) -> Phase:
    """Return this process's part of a phase, which may be empty; the phase itself without a group."""
    images, labels = own_images(phase.images, phase.labels, group)
    return phase if group is None else dataclasses.replace(phase, images=images, labels=labels)
