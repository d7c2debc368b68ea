"""LUCIR: cosine scores, features held near their old direction, a margin between old and new classes.

Paper: Hou et al., *Learning a Unified Classifier Incrementally via Rebalancing*, CVPR 2019.

With features f, class weights w_c, cosines cos_c = cos(f, w_c), one learned η (first 1), f̂ the features
of the network before the phase, n old classes and m new ones:

    L = CE(η cos, y) + λ (1 − cos(f, f̂)) + ρ MR,   λ = λ₀ √(n/m)
    MR = mean over images of old classes, and over their K new classes with the largest cosine, of
         max(0, margin − cos_y + cos_k)

on new images and exemplars. Old class weights are frozen. New ones start as the mean direction of their
features, at the mean length of old weights. The backbone has no last ReLU and, for ResNet-32, shortcuts
with convolutions (option B); its base training is the recipe's, with cosine scores. The largest cosine
decides.

Settings: ``memory_rule`` = "20 per class", ``lucir_distillation`` = λ₀ = 5 (10 with the recipe
``imagenet``), ``lucir_margin`` = 0.5, ``lucir_candidates`` = K = 2, ``lucir_ranking`` = ρ = 1.
``lucir_balanced_epochs`` = 0 epochs of balanced fine-tuning after each phase (the authors use 20 on
ImageNet-Full alone), at rate ``lucir_balanced_rate`` = 0.01, divided by 10 half-way. ``increment.NAME``
changes the training of increments, which is the recipe's.

Differences from the original:

1. With fewer than K new classes, all of them are candidates (the authors' code fails with one).
2. Balanced fine-tuning trains class weights and η on features of the exemplars, without augmentation.
3. Pixels are normalised as for all methods here (the authors' code has another deviation).
4. A backbone that is given keeps its ReLU and shortcuts, and only a cosine classifier is fitted on it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from acil.methods.base import Phase
from acil.methods.frozenfit import fit_classifier
from acil.methods.incremental import IncrementalNetwork
from acil.methods.lucir_loss import LUCIRSettings, Rebalancing
from acil.methods.ownbase import own_base_network
from acil.methods.readout import network_features
from acil.training.cosine import CosineNetwork, imprinted
from acil.vision.backbones import Backbone

#: λ₀ where the authors give another value than 5, by recipe.
_DISTILLATION = {"imagenet": 10.0}


class LUCIR(IncrementalNetwork):
    """Rebalance old and new classes by cosines, direction and margin."""

    name = "lucir"
    settings_type = LUCIRSettings

    def base(self, phase: Phase) -> Any:
        """Return the method's own base network, with cosine scores."""
        return own_base_network(
            self.context,
            phase,
            self.host(),
            lambda backbone, generator: CosineNetwork(backbone, 0, len(phase.classes), generator),
            {"option": "B", "last_relu": False},
            self.context.recipe.training,
        )

    @property
    def own_base_epochs(self) -> int:
        """Epochs of the base training."""
        return self.context.recipe.training.epochs

    def increment(self, phase: Phase) -> Any:
        """Return the network trained on new images and exemplars, the present one being the teacher."""
        settings, classes = self.settings, list(phase.classes)
        features = network_features(self.network.backbone, phase.images, self.context.device)
        student: CosineNetwork = self.student()
        student.grow(imprinted(features, phase.labels, classes, student.classifier.weight))
        strength = settings.distillation
        if strength is None:
            strength = _DISTILLATION.get(self.context.recipe.name, 5.0)
        objective = Rebalancing(
            self.network.backbone,
            self.n_seen,
            # λ = λ₀ √(n/m)
            distillation=strength * math.sqrt(self.n_seen / len(classes)),
            margin=settings.margin,
            candidates=min(settings.candidates, len(classes)),
            ranking=settings.ranking,
        )
        return self.fit(student, self.data(phase), phase, objective)

    def learn(self, phase: Phase) -> None:
        """Learn one phase; then, if asked for, fine-tune all class weights on a balanced set."""
        super().learn(phase)
        if self.settings.balanced_epochs and len(self.history) > 1:
            self.network = self._balanced()

    def rebuilt(self, backbone: Backbone, weights: Mapping[str, Tensor]) -> CosineNetwork:
        """Return a network that saved weights fit into."""
        return CosineNetwork(backbone, len(weights["classifier.old"]), len(weights["classifier.new"]))

    def _balanced(self) -> CosineNetwork:
        """Return the network with all class weights and η trained on the exemplars."""
        before, epochs, kept = self.network.classifier, self.settings.balanced_epochs, self.exemplars
        network = CosineNetwork(self.network.backbone, 0, self.n_seen)
        network.classifier.load_state_dict(
            {"old": before.old[:0], "new": before.weight.detach(), "eta": before.eta.detach()}
        )
        plan = dataclasses.replace(
            self.training,
            epochs=epochs,
            learning_rate=self.settings.balanced_rate,
            schedule="step",
            milestones=(epochs // 2,) if epochs > 1 else (),
            decay=0.1,
            warmup=0,
        )
        fit_classifier(network, kept.pixels, kept.labels, self.context, plan)
        return network.eval()
