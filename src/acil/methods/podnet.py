"""PODNet: maps inside the network are held by their sums over rows and columns; proxies classify.

Paper: Douillard et al., *PODNet: Pooled Outputs Distillation for Small-Tasks Incremental Learning*,
ECCV 2020; its configuration with the classifier as the read-out.

With s_c the similarity of an image to the proxies of class c (`acil.methods.proxies`), one learned η
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

Settings: ``memory_rule`` = "20 per class", ``podnet_proxies`` = 10, ``podnet_spatial`` = λ_c = 3 (8 with
the recipe ``imagenet``), ``podnet_flat`` = λ_f = 1 (10), ``podnet_gradient_limit`` = 5: each entry of a
gradient is clamped to ± 5, ``podnet_balanced_epochs`` = 20, ``podnet_balanced_rate`` = 0.05 (0.01).
Training: with the recipe ``paper`` 160 epochs at rate 0.1 falling as a cosine, weight decay 5e-4,
brightness jitter; with ``imagenet`` 90 epochs, batches of 64, rate 0.05, weight decay 5e-4; otherwise
the recipe's. ``increment.NAME`` changes the main stage.

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
from typing import Any, ClassVar

from torch import Tensor

from acil.methods.base import Phase
from acil.methods.incremental import IncrementalNetwork
from acil.methods.ownbase import own_base_network
from acil.methods.podnet_loss import PODNetSettings, PooledOutputs
from acil.methods.proxies import ProxyNetwork, imprinted_proxies
from acil.methods.readout import network_features
from acil.methods.schedule import Schedules, derived_seed, increment_training
from acil.training.loop import train
from acil.training.settings import Training
from acil.vision.backbones import Backbone

#: λ_c, λ_f and the rate of the balanced stage: the authors' for CIFAR, and by recipe where they differ.
_CIFAR = (3.0, 1.0, 0.05)
_OTHER = {"imagenet": (8.0, 10.0, 0.01)}


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

    def base(self, phase: Phase) -> Any:
        """Return the method's own base network, with proxies."""
        return own_base_network(
            self.context,
            phase,
            self.host(),
            lambda backbone, generator: ProxyNetwork(
                backbone, 0, len(phase.classes), self.settings.proxies, generator
            ),
            {"option": "A", "last_relu": False, "plain_sums": True},
            self._base_training(),
            self._without_teacher(),
        )

    @property
    def own_base_epochs(self) -> int:
        """Epochs of the base training."""
        return self._base_training().epochs

    def increment(self, phase: Phase) -> Any:
        """Return the network after the main stage, the present one being the teacher."""
        features = network_features(self.network.backbone, phase.images, self.context.device)
        student: ProxyNetwork = self.student()
        seed = derived_seed(self.context.seed, "proxies", phase.n_seen)
        old = student.classifier.weight
        student.grow(imprinted_proxies(features, phase.labels, list(phase.classes), old, seed))
        # √(N/m)
        growth = math.sqrt(phase.n_seen / len(phase.classes))
        spatial, flat, _ = self._weights()
        objective = PooledOutputs(
            self.network.backbone, spatial * growth, flat * growth, self.settings.gradient_limit
        )
        return self.fit(student, self.data(phase), phase, objective)

    def learn(self, phase: Phase) -> None:
        """Learn one phase; then balance the proxies on the exemplars of all classes."""
        super().learn(phase)
        if self.settings.balanced_epochs and len(self.history) > 1:
            self.network = self._balanced()

    def increment_images(self, index: int, sizes: Sequence[int], seen: Sequence[int]) -> int:
        """Return how many images one increment trains on, both stages together."""
        balanced: int = self.settings.balanced_epochs * self.kept_images(index, sizes, seen)
        return super().increment_images(index, sizes, seen) + balanced

    def rebuilt(self, backbone: Backbone, weights: Mapping[str, Tensor]) -> ProxyNetwork:
        """Return a network that saved weights fit into."""
        old, new = weights["classifier.old"], weights["classifier.new"]
        return ProxyNetwork(backbone, len(old), len(new), new.shape[1])

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

    def _balanced(self) -> ProxyNetwork:
        """Return the network with the proxies of all classes trained on the exemplars."""
        network: ProxyNetwork = copy.deepcopy(self.network)
        network.thaw()
        frozen = [*network.backbone.parameters(), network.classifier.eta]
        trained = [parameter for parameter in frozen if parameter.requires_grad]
        for parameter in trained:
            parameter.requires_grad_(False)
        plan = dataclasses.replace(
            self.training,
            epochs=self.settings.balanced_epochs,
            learning_rate=self._weights()[2],
            schedule="step",
            milestones=(),
            warmup=0,
            # Too short to pay for a compilation.
            compile=False,
        )
        train(
            network,
            self.exemplars.pixels,
            self.exemplars.labels,
            plan,
            preprocessing=network.backbone.preprocessing,
            seed=derived_seed(self.context.seed, "balanced", self.n_seen),
            device=self.context.device,
            objective=self._without_teacher(),
            progress=self.context.progress,
        )
        for parameter in trained:
            parameter.requires_grad_(True)
        return network
