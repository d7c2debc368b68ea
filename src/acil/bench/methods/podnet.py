"""PODNet: maps inside the network are held by their sums over rows and columns; proxies classify.

Paper: Douillard et al., *PODNet: Pooled Outputs Distillation for Small-Tasks Incremental Learning*,
ECCV 2020; its configuration in which the classifier decides.

With s_c the similarity of an image to the proxies of class c (`ProxyClassifier`), one learned η
(first 1), z = η s less its largest entry, maps h_l of the stages and features f, ĥ_l and f̂ those of the
network before the phase, N classes seen and m of them new:

    L = log(1 + Σ_{i≠y} e^{z_i}) − z_y + √(N/m) (λ_c POD + λ_f (1 − cos(f, f̂)))
    POD = mean over stages of ‖p(h_l) − p(ĥ_l)‖,  p: h² summed over the width and over the height,
          the two together at length 1

on new images and exemplars. Old proxies are frozen; new ones start as centres of k-means on their
class's features. Then a balanced stage: the proxies of all classes train on the exemplars of all
classes, at a constant rate, while the weights of the backbone and η stay. ResNet-32 has no ReLU after
its sums, and its last block is a fourth stage (``plain_sums``). The base training has the same loss,
without the network before. The largest score decides.

Differences from the original:

1. The paper's margin of 0.6 is left out: the authors' code subtracts it from every score, where it
   cancels.
2. The balanced stage leaves the distances out: they have no gradient with respect to proxies.
3. Exemplars are chosen once, before the balanced stage.
4. Zeros around the channels of a shortcut are on both sides; there they are appended. That is the same
   network with its channels in another order.
5. Maps of ResNet-18 are taken after the ReLU that ends a stage (there before it).
6. A backbone that is given keeps its form, and only the proxies are fitted on it.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor
from torch.nn import functional

from acil.bench.methods.base import Phase
from acil.bench.methods.base_network import network_features, own_base_network
from acil.bench.methods.incremental import IncrementalNetwork, Schedules, increment_training
from acil.bench.methods.lucir import SplitClassifier
from acil.bench.training.network import FeatureNetwork
from acil.bench.training.objectives import Capturable, Scored
from acil.bench.training.settings import Settings, Training
from acil.encoders.images.backbones import Backbone

#: Starts of k-means, of which the best counts.
_STARTS = 10
#: λ_c, λ_f and the rate of the balanced stage: the authors' for CIFAR, and by recipe where they differ.
_CIFAR = (3.0, 1.0, 0.05)
_OTHER = {"imagenet": (8.0, 10.0, 0.01)}


@dataclass(frozen=True)
class PODNetSettings(Settings):
    """``memory_rule``, and what ``podnet_NAME`` sets; None is the authors' value for the recipe."""

    memory_rule: str = "20 per class"
    proxies: Annotated[int, "at least 1"] = 10  # of each class
    spatial: Annotated[float | None, "at least 0"] = None  # λ_c
    flat: Annotated[float | None, "at least 0"] = None  # λ_f
    gradient_limit: Annotated[float, "positive"] = 5.0  # each entry is clamped to ± this number
    balanced_epochs: Annotated[int, "at least 0"] = 20
    balanced_rate: Annotated[float | None, "positive"] = None


@dataclass(frozen=True, eq=False)
class PooledOutputs(Capturable):
    """Loss of the proxies' scores, distance of pooled maps, direction of features."""

    teacher: Backbone | None = field(repr=False)  # None trains with the first part alone
    spatial: float
    flat: float
    gradient_limit: float

    def __call__(self, network: Any, x: Tensor, y: Tensor, indices: Tensor) -> Scored:
        if self.teacher is None:
            scores = network(x)
            return neighbourhood_loss(scores, y), scores
        maps = network.backbone.maps(x)
        with torch.no_grad():
            before = self.teacher.maps(x)
        features, old = (outputs[-1].mean(dim=(2, 3)).float() for outputs in (maps, before))
        scores = network.classifier(features)
        loss = (
            neighbourhood_loss(scores, y)
            + self.spatial * pooled_distance(maps, before)
            + self.flat * (1 - functional.cosine_similarity(features, old).mean())
        )
        return loss, scores


def neighbourhood_loss(scores: Tensor, y: Tensor) -> Tensor:
    """Return the mean of log(1 + Σ_{i≠y} e^{z_i}) − z_y, z the scores less their largest.

    Where the label has the largest score, this is the cross entropy.
    """
    z = scores - scores.amax(1, keepdim=True)
    # exp(0) = 1 stands for the label itself.
    others = z.scatter(1, y[:, None], 0.0)
    return (others.logsumexp(1) - z.gather(1, y[:, None])[:, 0]).mean()


def pooled_distance(maps: Sequence[Tensor], before: Sequence[Tensor]) -> Tensor:
    """Return the distance of pooled maps (n, channels, height, width), mean over images and maps."""
    distances = [
        torch.linalg.vector_norm(_pooled(a) - _pooled(b), dim=1).mean()
        for a, b in zip(maps, before, strict=True)
    ]
    return torch.stack(distances).mean()


def _pooled(values: Tensor) -> Tensor:
    """Return the squares summed over the width and over the height, together at length 1."""
    # In float32: squares of half precision overflow.
    squares = values.float().square()
    return functional.normalize(torch.cat([squares.sum(3), squares.sum(2)], dim=2).flatten(1))


class ProxyClassifier(SplitClassifier):
    """Scores η · s_c, s_c the similarity of a feature to the proxies of class c.

    With f̂ and ŵ the feature and a proxy at length 1, s_k = −‖f̂ − ŵ_k‖² = 2 cos − 2, and

        s_c = Σ_k softmax_k(s) · s_k     over the proxies k of c.

    The weight has shape (classes, proxies, features).
    """

    @classmethod
    def drawn(cls, shape: tuple[int, int, int], generator: torch.Generator) -> ProxyClassifier:
        """Return one with proxies from N(0, 1 / number of features)."""
        return cls(torch.empty(shape).normal_(0.0, 1 / math.sqrt(shape[2]), generator=generator))

    def similarities(self, features: Tensor) -> Tensor:
        # Half precision would leave three digits of a distance.
        with torch.autocast(features.device.type, enabled=False):
            weight = self.weight
            unit = functional.normalize(features.float())
            cosines = functional.linear(unit, functional.normalize(weight.flatten(0, 1)))
            each = (2 * cosines - 2).reshape(len(unit), *weight.shape[:2])
            return (each.softmax(2) * each).sum(2)


def imprinted_proxies(
    features: Tensor, labels: Tensor, classes: Sequence[int], old: Tensor, seed: int
) -> Tensor:
    """Return first proxies of new classes: centres of k-means on their features, float32.

    w_ck = ‖old‖ · centre k of normalise(f) over class c, ‖old‖ the mean norm of the old proxies. A
    class with fewer images than proxies repeats its centres.
    """
    # Here, because a plan would wait for it.
    from sklearn.cluster import KMeans

    n_proxies = old.shape[1]
    unit = functional.normalize(features)
    proxies = []
    for label in classes:
        rows = unit[labels == label]
        count = min(n_proxies, len(np.unique(rows.numpy(), axis=0)))
        # For so few rows threads cost more than they save: 0.02 s with one, up to a second with many.
        with threadpool_limits(1):
            fitted = KMeans(count, n_init=_STARTS, random_state=seed % 2**32).fit(rows.numpy())
        centres = torch.from_numpy(fitted.cluster_centers_).float()
        proxies.append(centres[torch.arange(n_proxies) % count])
    norm: Tensor = old.detach().norm(dim=2).mean().to(features.device)
    return norm * torch.stack(proxies)


class PODNet(IncrementalNetwork):
    """Hold pooled maps and features; classify by proxies; balance them in a second stage."""

    name = "podnet"
    settings_type = PODNetSettings
    schedules: ClassVar[Schedules] = {
        "paper": {"schedule": "cosine", "augment": ("crop", "flip", "jitter")},
        "imagenet": {
            "schedule": "cosine",
            "batch_size": 64,
            "learning_rate": 0.05,
            "weight_decay": 5e-4,
        },
    }

    def base(self, phase: Phase) -> FeatureNetwork:
        """Return the method's own base network, with proxies."""
        shape = len(phase.classes), self.settings.proxies
        return own_base_network(
            self.context,
            phase,
            self.name,
            lambda width, generator: ProxyClassifier.drawn((*shape, width), generator),
            {"option": "A", "last_relu": False, "plain_sums": True},
            self._base_training(),
            self._without_teacher(),
        )

    @property
    def own_base_inputs(self) -> int:
        return self._base_training().epochs

    def increment(self, phase: Phase) -> Any:
        features = network_features(self.network.backbone, phase.images, self.context.device)
        student: FeatureNetwork = self.student()
        head = student.classifier
        seed = self.context.seed_for("proxies", phase.n_seen)
        proxies = imprinted_proxies(features, phase.labels, phase.classes, head.weight, seed)
        student.classifier = head.grown(proxies)
        # √(N/m)
        growth = math.sqrt(phase.n_seen / len(phase.classes))
        spatial, flat, _ = self._weights()
        objective = PooledOutputs(
            self.network.backbone, spatial * growth, flat * growth, self.settings.gradient_limit
        )
        return self.fit(student, self.data(phase), phase, objective)

    def rebuilt(self, backbone: Backbone, weights: Mapping[str, Tensor]) -> FeatureNetwork:
        old, new = weights["classifier.old"], weights["classifier.new"]
        return FeatureNetwork(backbone, ProxyClassifier(torch.cat([old, new]), len(old)))

    def balanced(self, before: Any) -> FeatureNetwork:
        """Return the network with the proxies of all classes trained on the exemplars."""
        network: FeatureNetwork = copy.deepcopy(self.network)
        network.classifier = network.classifier.thawed()
        frozen = [*network.backbone.parameters(), network.classifier.eta]
        trained = [parameter for parameter in frozen if parameter.requires_grad]
        for parameter in trained:
            parameter.requires_grad_(False)
        self.train_further(
            network,
            (self.exemplars.pixels, self.exemplars.labels),
            "balanced",
            self._without_teacher(),
            epochs=self.settings.balanced_epochs,
            learning_rate=self._weights()[2],
            milestones=(),
            compile=False,  # too short to pay for a compilation
        )
        for parameter in trained:
            parameter.requires_grad_(True)
        return network

    def _base_training(self) -> Training:
        """Return the training of the base network, which ``increment.NAME`` does not change."""
        return increment_training(dataclasses.replace(self.context, settings={}), self.schedules)

    def _without_teacher(self) -> PooledOutputs:
        return PooledOutputs(None, 0.0, 0.0, self.settings.gradient_limit)

    def _weights(self) -> tuple[float, float, float]:
        """Return λ_c, λ_f and the rate of the balanced stage."""
        usual = _OTHER.get(self.context.recipe.name, _CIFAR)
        asked = (self.settings.spatial, self.settings.flat, self.settings.balanced_rate)
        spatial, flat, rate = (u if a is None else a for a, u in zip(asked, usual, strict=True))
        return spatial, flat, rate
