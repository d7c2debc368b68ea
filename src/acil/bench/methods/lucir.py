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

Differences from the original:

1. With fewer than K new classes, all of them are candidates (the authors' code fails with one).
2. Balanced fine-tuning trains class weights and η on features of the exemplars, without augmentation.
3. Pixels are normalised as for all methods here (the authors' code has another deviation).
4. A backbone that is given keeps its ReLU and shortcuts, and only a cosine classifier is fitted on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from acil.bench.methods.base import Phase
from acil.bench.methods.base_network import linear_probe, network_features, own_base_network
from acil.bench.methods.exemplars import mean_features
from acil.bench.methods.incremental import IncrementalNetwork
from acil.bench.training.network import FeatureNetwork
from acil.bench.training.objectives import Capturable, Scored
from acil.bench.training.settings import Settings
from acil.encoders.images.backbones import Backbone

#: λ₀ where the authors give another value than 5, by recipe.
_DISTILLATION = {"imagenet": 10.0}


@dataclass(frozen=True)
class LUCIRSettings(Settings):
    """``memory_rule``, and what ``lucir_NAME`` sets."""

    memory_rule: str = "20 per class"
    distillation: Annotated[float | None, "at least 0"] = None  # λ₀; None is the authors' value
    margin: float = 0.5
    candidates: Annotated[int, "at least 1"] = 2  # K
    ranking: Annotated[float, "at least 0"] = 1.0  # ρ
    #: Epochs of balanced fine-tuning after each phase; the authors use 20 on ImageNet-Full alone.
    balanced_epochs: Annotated[int, "at least 0"] = 0
    balanced_rate: Annotated[float, "positive"] = 0.01  # divided by 10 half-way


@dataclass(frozen=True, eq=False)
class Rebalancing(Capturable):
    """Cross entropy of η cos, direction of features, and margin."""

    teacher: nn.Module = field(repr=False)  # backbone of the phase before, in evaluation mode
    n_old: int
    distillation: float
    margin: float
    candidates: int  # at most the number of new classes
    ranking: float

    def __call__(self, network: Any, x: Tensor, y: Tensor, indices: Tensor) -> Scored:
        features = network.features(x).float()
        with torch.no_grad():
            before = self.teacher(x).float()
        cosines = network.classifier.similarities(features)
        scores = network.classifier.eta * cosines
        loss = (
            functional.cross_entropy(scores, y)
            + self.distillation * (1 - functional.cosine_similarity(features, before).mean())
            + self.ranking * margin_ranking(cosines, y, self.n_old, self.margin, self.candidates)
        )
        return loss, scores


def margin_ranking(cosines: Tensor, y: Tensor, n_old: int, margin: float, candidates: int) -> Tensor:
    """Return the mean of max(0, margin − cos_y + cos_k) over images of old classes; 0 without any.

    The cosines have shape (n, classes). Classes below ``n_old`` are old; of the others those with the
    largest cosine are the candidates k.
    """
    cosines_of_class = cosines.gather(1, y[:, None])
    nearest = cosines[:, n_old:].topk(candidates).values
    each = functional.relu(margin - cosines_of_class + nearest).mean(1)
    # A mask and not a selection: shapes must not depend on labels.
    old = (y < n_old).float()
    return (old * each).sum() / old.sum().clamp(min=1)


class SplitClassifier(nn.Module):
    """Scores η · similarity of features and class weights, with one learned η, which starts at 1.

    The weights (classes, …) of the first ``n_old`` classes are a parameter of their own that is not
    trained: neither gradient nor weight decay moves it.
    """

    def __init__(self, weight: Tensor, n_old: int = 0) -> None:
        super().__init__()
        self.old = nn.Parameter(weight[:n_old].detach().clone(), requires_grad=False)
        self.new = nn.Parameter(weight[n_old:].detach().clone())
        self.eta = nn.Parameter(torch.ones((), device=weight.device))

    @property
    def weight(self) -> Tensor:
        """Weights of all classes."""
        return torch.cat([self.old, self.new])

    def similarities(self, features: Tensor) -> Tensor:
        """Return the similarity of each feature to each class, (n, classes), in float32."""
        raise NotImplementedError

    def forward(self, features: Tensor) -> Tensor:
        """Return the scores of features, (n, classes)."""
        return self.eta * self.similarities(features)

    def grown(self, weight: Tensor) -> SplitClassifier:
        """Return a classifier with more classes; those of this one are frozen, and η stays."""
        old = self.weight
        return self._like(torch.cat([old, weight.to(old.device)]), len(old))

    def thawed(self) -> SplitClassifier:
        """Return a classifier in which the weights of all classes are trained."""
        return self._like(self.weight, 0)

    def _like(self, weight: Tensor, n_old: int) -> SplitClassifier:
        made = type(self)(weight, n_old)
        made.eta.data.copy_(self.eta)
        return made


class CosineClassifier(SplitClassifier):
    """Scores η · cos(f, w_c).

    Examples
    --------
    >>> import torch
    >>> classifier = CosineClassifier(torch.eye(2)).grown(torch.tensor([[3.0, 4.0]]))
    >>> classifier(torch.tensor([[2.0, 0.0]])).detach().round(decimals=2)
    tensor([[1.0000, 0.0000, 0.6000]])
    """

    @classmethod
    def drawn(cls, shape: tuple[int, int], generator: torch.Generator) -> CosineClassifier:
        """Return one with weights (classes, features) uniform in ± 1/√(number of features)."""
        bound = 1 / math.sqrt(shape[1])
        return cls(torch.empty(shape).uniform_(-bound, bound, generator=generator))

    def similarities(self, features: Tensor) -> Tensor:
        # A cosine of bfloat16 has three digits, and η multiplies what is lost.
        with torch.autocast(features.device.type, enabled=False):
            unit = functional.normalize(features.float())
            return functional.linear(unit, functional.normalize(self.weight))


def imprinted(features: Tensor, labels: Tensor, old_weights: Tensor) -> Tensor:
    """Return first weights of new classes, in rising order, from features: (classes, features).

    w_c = ‖old‖ · normalise(mean over class c of normalise(f)), ‖old‖ the mean norm of the old weights.
    """
    means = mean_features(functional.normalize(features), labels)
    norm: Tensor = old_weights.detach().norm(dim=1).mean().to(features.device)
    return norm * functional.normalize(means)


class LUCIR(IncrementalNetwork):
    """Rebalance old and new classes by cosines, direction and margin."""

    name = "lucir"
    settings_type = LUCIRSettings

    def base(self, phase: Phase) -> FeatureNetwork:
        """Return the method's own base network, with cosine scores."""
        return own_base_network(
            self.context,
            phase,
            self.name,
            lambda width, generator: CosineClassifier.drawn((len(phase.classes), width), generator),
            {"option": "B", "last_relu": False},
            self.context.recipe.training,
        )

    @property
    def own_base_inputs(self) -> int:
        return self.context.recipe.training.inputs_per_image

    def increment(self, phase: Phase) -> Any:
        settings, n_new = self.settings, len(phase.classes)
        features = network_features(self.network.backbone, phase.images, self.context.device)
        student: FeatureNetwork = self.student()
        head = student.classifier
        student.classifier = head.grown(imprinted(features, phase.labels, head.weight))
        strength = settings.distillation
        if strength is None:
            strength = _DISTILLATION.get(self.context.recipe.name, 5.0)
        objective = Rebalancing(
            self.network.backbone,
            self.n_seen,
            # λ = λ₀ √(n/m)
            distillation=strength * math.sqrt(self.n_seen / n_new),
            margin=settings.margin,
            candidates=min(settings.candidates, n_new),
            ranking=settings.ranking,
        )
        return self.fit(student, self.data(phase), phase, objective)

    def rebuilt(self, backbone: Backbone, weights: Mapping[str, Tensor]) -> FeatureNetwork:
        old, new = weights["classifier.old"], weights["classifier.new"]
        return FeatureNetwork(backbone, CosineClassifier(torch.cat([old, new]), len(old)))

    def balanced(self, before: Any) -> FeatureNetwork:
        """Return the network with all class weights and η trained on the exemplars."""
        epochs, exemplars = self.settings.balanced_epochs, self.exemplars
        network = FeatureNetwork(self.network.backbone, self.network.classifier.thawed())
        plan = replace(
            self.training,
            epochs=epochs,
            learning_rate=self.settings.balanced_rate,
            schedule="step",
            milestones=(epochs // 2,) if epochs > 1 else (),
            decay=0.1,
            warmup=0,
        )
        linear_probe(network, exemplars.pixels, exemplars.labels, self.context, plan)
        return network.eval()
