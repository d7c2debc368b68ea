"""FeTrIL: old classes stand in by new samples moved to the old means, and a linear classifier on top.

Paper: Petit et al., *FeTrIL: Feature Translation for Exemplar-Free Class-Incremental Learning*, WACV
2023.

Of each class only the mean feature μ_c is kept. In each phase, for each old class c, let s be the class
of the phase whose mean is nearest to μ_c. The features of s become pseudo-features of c:

    x̂ = x − μ_s + μ_c   for x of class s.

All rows, real and pseudo, are scaled to length 1, and a linear classifier is trained on them anew.

Differences from the original:

1. All rows are scaled to length 1. The authors' code leaves the first 512 rows as they are, a bug.
2. The base network is the recipe's. The authors use ResNet-18 at 224 pixels with longer training.
3. The layer is drawn anew from the seed in each phase, and trained by the common loop: SGD with
   momentum 0.9, batches of 128, a cosine schedule, weight decay 2e-4.
4. A class that comes back has its mean updated and its new samples used; it needs no pseudo-features
   then.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC
from torch import Tensor
from torch.nn import functional

from acil.methods.base import Context, MemoryUse, Phase
from acil.methods.class_means import ClassMeans, MeansMethod, Scorer, by_class
from acil.training.fields import Settings
from acil.training.loop import train
from acil.training.network import linear
from acil.training.settings import Training

logger = logging.getLogger(__name__)
#: Newton steps of the SVC, scikit-learn's usual number; some ten suffice.
_MOST_STEPS = 1000


@dataclass(frozen=True)
class FeTrILSettings(Settings):
    """What can be set; published values."""

    #: scikit-learn's LinearSVC, as the authors have it; or a linear layer trained with cross entropy.
    fetril_classifier: Literal["svc", "fc"] = "svc"
    fetril_similarity: Literal["euclidean", "cosine"] = "euclidean"  # the authors' code, or PyCIL
    fetril_C: Annotated[float, "positive"] = 1.0  # of the SVC
    fetril_tolerance: Annotated[float, "positive"] = 1e-4
    fetril_epochs: Annotated[int, "at least 1"] = 50  # of the layer
    fetril_learning_rate: Annotated[float, "positive"] = 0.05


class FeTrIL(MeansMethod):
    """Feature translation and a linear classifier, on frozen features."""

    settings_type = FeTrILSettings

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.weight = torch.zeros(0, 0, dtype=torch.float64, device=context.device)
        self.bias = torch.zeros(0, dtype=torch.float64, device=context.device)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "weight": self.weight.cpu(), "bias": self.bias.cpu()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.weight = state["weight"].clone().to(self.context.device)
        self.bias = state["bias"].clone().to(self.context.device)

    def scorer(self) -> Scorer:
        return lambda rows: functional.normalize(rows) @ self.weight.mT + self.bias

    def _learn(self, features: Tensor, phase: Phase) -> None:
        super()._learn(features, phase)
        real = dict(by_class(features, phase.labels, self.context.device))
        rows, targets = training_rows(self.means, real, self.settings.fetril_similarity)
        fit = self._fit_svc if self.settings.fetril_classifier == "svc" else self._fit_layer
        self.weight, self.bias = fit(functional.normalize(rows), targets)

    def _fit_svc(self, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        classes, settings = len(self.means.labels), self.settings
        if classes == 1:
            # There is nothing to tell apart.
            return rows.new_zeros(1, rows.shape[1]), rows.new_zeros(1)
        svc = LinearSVC(
            C=settings.fetril_C, tol=settings.fetril_tolerance, dual=False, max_iter=_MOST_STEPS
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            svc.fit(rows.cpu().numpy(), targets.numpy())
        if svc.n_iter_ >= _MOST_STEPS:
            logger.warning("fetril, %d classes: the classifier has not converged", classes)
        weight, bias = torch.from_numpy(svc.coef_).to(rows), torch.from_numpy(svc.intercept_).to(rows)
        if classes == 2:
            # One row says how much a sample is of the second class.
            return torch.cat([-weight, weight]), torch.cat([-bias, bias])
        return weight, bias

    def _fit_layer(self, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(self.context.seed)
        layer = linear(rows.shape[1], len(self.means.labels), generator)
        train(
            layer,
            rows.float(),
            targets,
            Training(
                epochs=self.settings.fetril_epochs,
                learning_rate=self.settings.fetril_learning_rate,
                schedule="cosine",
                weight_decay=2e-4,
            ),
            preprocessing=None,
            seed=self.context.seed,
            device=self.context.device,
        )
        return layer.weight.detach().double(), layer.bias.detach().double()

    def _memory(self) -> MemoryUse:
        """Count means and classifier; pseudo-features live only while a phase is learnt."""
        return replace(super()._memory(), weights=self.weight.nbytes + self.bias.nbytes)


def training_rows(
    means: ClassMeans, real: Mapping[int, Tensor], similarity: Literal["euclidean", "cosine"]
) -> tuple[Tensor, Tensor]:
    """Return the rows of a phase, pseudo-features of all other classes, and the positions of classes.

    ``means`` has all classes, those of the phase included; ``real`` has the rows of each class of the
    phase. The positions are those in ``means``, int64, on the CPU.
    """
    present = torch.tensor([means.position(label, means.means.shape[1]) for label in real])
    centres = means.means[present.to(means.means.device)]
    if similarity == "cosine":
        nearness = functional.normalize(means.means) @ functional.normalize(centres).mT
    else:
        nearness = -torch.cdist(means.means, centres)
    sources = nearness.argmax(dim=1).tolist()
    labels, rows, targets = list(real), [], []
    for position, label in enumerate(means.labels.tolist()):
        if label in real:
            part = real[label]
        else:
            near = real[labels[sources[position]]]
            # x̂ = x − μ_s + μ_c; the mean of these rows, so that a class that came back fits too
            part = near - near.mean(dim=0) + means.means[position]
        rows.append(part)
        targets.append(torch.full((len(part),), position))
    return torch.cat(rows), torch.cat(targets)
