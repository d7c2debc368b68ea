"""iCaRL, with either of its losses: distillation on exemplars, whose nearest mean decides.

Paper: Rebuffi et al., *iCaRL: Incremental Classifier and Representation Learning*, CVPR 2017.
``icarl-bce`` is the original. ``icarl`` is the variant of LUCIR's code, from which the tables of later
papers come.

Both predict in the same way. With f(x) the features at length 1 and μ_c the mean of f over the exemplars
of c and their mirror images, at length 1:

    label(x) = argmin_c ‖f(x) − μ_c‖

``icarl`` trains as ``lwf-exemplars`` does, and has its settings, as ``icarl_NAME``: L = CE(z, y) + KD
over the old classes, on new images and exemplars; linear classifier with bias.

``icarl-bce`` has one sigmoid for each class of all phases. With n old classes and ẑ the scores of the
network before the phase, the targets are t_c = σ(ẑ_c) for c < n, whatever the label, and t_c = [c = y]
for the others:

    L = mean over images and outputs of −t_c log σ(z_c) − (1 − t_c) log(1 − σ(z_c))

on new images and exemplars; the same loss, without a teacher, trains the base network, which is the
method's own: ``increment.NAME`` changes that training, too. No ReLU ends the network, where the backbone
allows it.

Differences of ``icarl`` from the original:

1. Softmax losses and a growing classifier instead of sigmoids over all classes to come.
2. The mirror image is the image with left and right swapped. LUCIR's code swaps the colour channels
   instead, by an error in the layout of arrays.
3. The last ReLU stays: the base network is the one that other methods share.

Differences of ``icarl-bce`` from the original:

1. Pixels are normalised by mean and deviation of each channel, not by the mean image.
2. A backbone that is given keeps its last ReLU, and only the classifier is fitted on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from acil.bench.methods.base import MemoryUse, Phase
from acil.bench.methods.base_network import network_features, own_base_network
from acil.bench.methods.exemplars import mean_features
from acil.bench.methods.incremental import IncrementalNetwork, Schedules
from acil.bench.training.network import linear
from acil.bench.training.objectives import Capturable, Distilling, Scored
from acil.bench.training.settings import Settings
from acil.encoders.images.backbones import Backbone
from acil.encoders.images.imageset import ImageSet

#: A large rate, because the mean over 100 outputs makes gradients small; the decay is 1e-5 · Σw².
_USUAL = {"learning_rate": 2.0, "decay": 0.2, "weight_decay": 2e-5}


@dataclass(frozen=True)
class ICaRLSettings(Settings):
    """What ``icarl_NAME`` sets."""

    distillation: Annotated[float, "at least 0"] = 1.0
    temperature: Annotated[float, "positive"] = 2.0
    memory_rule: str = "20 per class"


@dataclass(frozen=True)
class ICaRLBCESettings:
    """Settings of the original iCaRL."""

    memory_rule: str = "2000 in total"


def sigmoid_distillation(student: Tensor, teacher: Tensor, y: Tensor) -> Tensor:
    """Return the binary cross entropy of scores (n, outputs), mean over rows and outputs.

    The teacher's scores (n, old classes), perhaps no column, are those of the first outputs: their
    sigmoids are the targets, whatever the label. The other targets are 1 for the label y, else 0.
    """
    n_old, outputs = teacher.shape[1], student.shape[1]
    new = torch.arange(n_old, outputs, device=y.device)
    targets = torch.cat([teacher.sigmoid(), (y[:, None] == new).float()], dim=1)
    return functional.binary_cross_entropy_with_logits(student, targets)


@dataclass(frozen=True, eq=False)
class SigmoidDistilling(Capturable):
    """Binary cross entropy with the teacher's sigmoids as targets of old classes."""

    teacher: nn.Module | None = field(repr=False)  # None in the base phase
    n_old: int

    def __call__(self, network: nn.Module, x: Tensor, y: Tensor, indices: Tensor) -> Scored:
        scores = network(x).float()
        with torch.no_grad():
            before = scores if self.teacher is None else self.teacher(x).float()
        return sigmoid_distillation(scores, before[:, : self.n_old], y), scores


def exemplar_means(
    backbone: Backbone, pixels: Tensor, labels: Tensor, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the classes and the mean of each class's exemplars and their mirror images, at length 1.

    μ_c = normalise(mean over the exemplars x of c of (normalise f(x) + normalise f(mirror x)) / 2)
    """
    views = [network_features(backbone, view, device) for view in (pixels, pixels.flip(3))]
    both = torch.stack([functional.normalize(view) for view in views]).mean(0)
    return torch.unique(labels), functional.normalize(mean_features(both, labels))


def nearest_mean(features: Tensor, classes: Tensor, means: Tensor) -> Tensor:
    """Return the class whose mean is nearest to each feature (n, d) at length 1.

    Means (classes, d) have length 1: then the nearest by distance is the one with the largest product.
    """
    return classes[(functional.normalize(features) @ means.T).argmax(1)]


class NearestMeanOfExemplars(IncrementalNetwork):
    """A method with exemplars, whose nearest mean under the present network decides."""

    def predict(self, images: ImageSet) -> Tensor:
        self._require_learnt()
        backbone, exemplars, device = self.network.backbone, self.exemplars, self.context.device
        classes, means = exemplar_means(backbone, exemplars.pixels, exemplars.labels, device)
        return nearest_mean(network_features(backbone, images, device), classes, means)

    def memory(self) -> MemoryUse:
        """Count exemplars, network and the means, of float32."""
        use, means = super().memory(), 4 * self.n_seen * self.network.backbone.num_features
        return replace(use, weights=use.weights + means)


class ICaRL(NearestMeanOfExemplars):
    """Distil on new images and exemplars; the nearest mean decides."""

    name = "icarl"
    settings_type = ICaRLSettings

    def increment(self, phase: Phase) -> Any:
        weight, temperature = self.settings.distillation, self.settings.temperature
        objective = Distilling(self.network, self.n_seen, temperature, distillation=weight)
        return self.fit(self.grown_student(phase), self.data(phase), phase, objective)


class ICaRLBCE(NearestMeanOfExemplars):
    """Sigmoid distillation on new images and exemplars; the nearest mean decides."""

    name = "icarl-bce"
    settings_type = ICaRLBCESettings
    schedules: ClassVar[Schedules] = {
        "paper": {**_USUAL, "epochs": 70, "milestones": (49, 63)},
        "imagenet": {**_USUAL, "epochs": 60, "milestones": (20, 30, 40, 50)},
    }

    def base(self, phase: Phase) -> Any:
        """Return the method's own base network, with an output for every class to come."""
        return own_base_network(
            self.context,
            phase,
            self.name,
            lambda width, generator: linear(width, self.context.n_classes, generator),
            {"last_relu": False},
            self.training,
            SigmoidDistilling(None, 0),
        )

    @property
    def own_base_inputs(self) -> int:
        """Epochs of the base training, which are those of an increment."""
        return self.training.epochs

    def increment(self, phase: Phase) -> Any:
        objective = SigmoidDistilling(self.network, self.n_seen)
        return self.fit(self.student(), self.data(phase), phase, objective)
