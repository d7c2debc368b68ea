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
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from acil.errors import InputError
from acil.methods.base import Phase
from acil.methods.base_network import own_base_network
from acil.methods.exemplars import MemoryRule
from acil.methods.incremental import IncrementalNetwork
from acil.methods.linear_probe import linear_probe, network_features
from acil.training.objectives import Capturable
from acil.vision.backbones import Backbone

#: λ₀ where the authors give another value than 5, by recipe.
_DISTILLATION = {"imagenet": 10.0}


@dataclass(frozen=True)
class LUCIRSettings:
    """Settings of LUCIR.

    Attributes
    ----------
    memory_rule : str
        "N per class" or "N in total".
    distillation : float or None
        λ₀; None is the authors' value for the recipe.
    margin : float
        Between the cosine of the label and those of new classes, for images of old classes.
    candidates : int
        K, how many new classes an image of an old class is held apart from.
    ranking : float
        ρ, weight of the margin loss.
    balanced_epochs : int
        Of fine-tuning on the exemplars after each phase.
    balanced_rate : float
    """

    memory_rule: str = "20 per class"
    distillation: float | None = None
    margin: float = 0.5
    candidates: int = 2
    ranking: float = 1.0
    balanced_epochs: int = 0
    balanced_rate: float = 0.01

    def __post_init__(self) -> None:
        MemoryRule.parse(self.memory_rule)
        if self.candidates < 1 or self.balanced_epochs < 0:
            raise InputError(
                "candidates must be at least 1 and balanced_epochs at least 0. Got "
                f"candidates={self.candidates} and balanced_epochs={self.balanced_epochs}."
            )
        weights = (self.distillation or 0.0, self.ranking)
        if not all(0 <= weight < float("inf") for weight in weights):
            raise InputError(
                "distillation and ranking must be at least 0. Got "
                f"distillation={self.distillation} and ranking={self.ranking}."
            )


@dataclass(frozen=True, eq=False)
class Rebalancing(Capturable):
    """Cross entropy of η cos, direction of features, and margin.

    Attributes
    ----------
    teacher : nn.Module
        Backbone of the phase before, in evaluation mode.
    n_old : int
    distillation : float
        λ.
    margin : float
    candidates : int
        At most the number of new classes.
    ranking : float
        ρ.
    """

    teacher: nn.Module = field(repr=False)
    n_old: int
    distillation: float
    margin: float
    candidates: int
    ranking: float

    def __call__(self, network: Any, x: Tensor, y: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and the scores."""
        features = network.features(x).float()
        with torch.no_grad():
            before = self.teacher(x).float()
        cosines = network.classifier.cosines(features)
        scores = network.classifier.eta * cosines
        loss = (
            functional.cross_entropy(scores, y)
            + self.distillation * (1 - functional.cosine_similarity(features, before).mean())
            + self.ranking * margin_ranking(cosines, y, self.n_old, self.margin, self.candidates)
        )
        return loss, scores


def margin_ranking(cosines: Tensor, y: Tensor, n_old: int, margin: float, candidates: int) -> Tensor:
    """Return the mean of max(0, margin − cos_y + cos_k) over images of old classes; 0 without any.

    Parameters
    ----------
    cosines : Tensor of shape (n, classes)
    y : Tensor of shape (n,), int64
    n_old : int
        Classes below it are old.
    margin : float
    candidates : int
        How many new classes k with the largest cosine are looked at.
    """
    own = cosines.gather(1, y[:, None])
    nearest = cosines[:, n_old:].topk(candidates).values
    each = functional.relu(margin - own + nearest).mean(1)
    # A mask and not a selection: shapes must not depend on labels.
    old = (y < n_old).float()
    return (old * each).sum() / old.sum().clamp(min=1)


class CosineClassifier(nn.Module):
    """Scores η · cos(f, w_c) with one learned η, which starts at 1.

    The weights of old classes are a parameter of their own that is not trained: neither gradient nor
    weight decay moves it.

    Parameters
    ----------
    n_features : int
    n_old, n_new : int
        Numbers of classes whose weights are frozen and trained.
    generator : torch.Generator, optional
        On the CPU; draws the weights, uniform in ± 1/√(number of features).
    """

    def __init__(
        self, n_features: int, n_old: int, n_new: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        if n_old < 0 or n_new < 1:
            raise InputError(f"A classifier needs at least one new class. Got {n_old} old, {n_new} new.")
        bound = 1 / math.sqrt(n_features)
        drawn = torch.empty(n_old + n_new, n_features).uniform_(-bound, bound, generator=generator)
        self.old = nn.Parameter(drawn[:n_old].clone(), requires_grad=False)
        self.new = nn.Parameter(drawn[n_old:].clone())
        self.eta = nn.Parameter(torch.ones(()))

    @property
    def weight(self) -> Tensor:
        """Weights of all classes, (n_classes, n_features)."""
        return torch.cat([self.old, self.new])

    def cosines(self, features: Tensor) -> Tensor:
        """Return cos(f, w_c) of each feature and class, (n, n_classes), in float32."""
        # A cosine of bfloat16 has three digits, and η multiplies what is lost.
        with torch.autocast(features.device.type, enabled=False):
            unit = functional.normalize(features.float())
            return functional.linear(unit, functional.normalize(self.weight))

    def forward(self, features: Tensor) -> Tensor:
        """Return η · cos(f, w_c), (n, n_classes)."""
        return self.eta * self.cosines(features)


class CosineNetwork(nn.Module):
    """A backbone and a cosine classifier on its features.

    Parameters
    ----------
    backbone : Backbone
    n_old, n_new : int
        Classes whose weights are frozen and trained.
    generator : torch.Generator, optional
        On the CPU; draws the class weights.

    Examples
    --------
    >>> import torch
    >>> from acil.methods.lucir import CosineNetwork, imprinted
    >>> from acil.vision.backbones import build
    >>> network = CosineNetwork(build("smallcnn"), n_old=0, n_new=3)
    >>> features, labels = torch.rand(8, 64), torch.tensor([3, 3, 4, 4, 3, 4, 3, 4])
    >>> network.grow(imprinted(features, labels, [3, 4], network.classifier.weight))
    >>> network.n_classes, network.classifier.old.shape[0]
    (5, 3)
    """

    def __init__(
        self, backbone: Backbone, n_old: int, n_new: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.classifier = CosineClassifier(backbone.num_features, n_old, n_new, generator)

    @property
    def n_classes(self) -> int:
        """Number of outputs."""
        return len(self.classifier.old) + len(self.classifier.new)

    def features(self, x: Tensor) -> Tensor:
        """Return the backbone's features of normalised images, (n, num_features)."""
        found: Tensor = self.backbone(x)
        return found

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of normalised images, (n, n_classes)."""
        scores: Tensor = self.classifier(self.features(x))
        return scores

    def grow(self, weights: Tensor) -> None:
        """Freeze the weights of all classes so far and add new ones; η stays.

        Parameters
        ----------
        weights : Tensor of shape (new classes, num_features)
        """
        head = self.classifier
        grown = CosineClassifier(self.backbone.num_features, self.n_classes, len(weights))
        with torch.no_grad():
            grown.old.copy_(head.weight)
            grown.new.copy_(weights)
            grown.eta.copy_(head.eta)
        self.classifier = grown.to(head.new.device)


def imprinted(features: Tensor, labels: Tensor, classes: list[int], old_weights: Tensor) -> Tensor:
    """Return first weights of new classes from their features.

    w_c = ‖old‖ · normalise(mean over class c of normalise(f)), ‖old‖ the mean norm of the old weights.

    Parameters
    ----------
    features : Tensor of shape (n, num_features)
    labels : Tensor of shape (n,)
    classes : list of int
        Each must have at least one row.
    old_weights : Tensor of shape (old classes, num_features)

    Returns
    -------
    Tensor of shape (len(classes), num_features), on the features' device
    """
    unit = functional.normalize(features)
    means = torch.stack([unit[labels == label].mean(0) for label in classes])
    norm: Tensor = old_weights.detach().norm(dim=1).mean().to(features.device)
    return norm * functional.normalize(means)


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
        linear_probe(network, kept.pixels, kept.labels, self.context, plan)
        return network.eval()
