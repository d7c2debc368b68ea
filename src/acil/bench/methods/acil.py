"""ACIL: a frozen base network, a random expansion, and a ridge regression updated in closed form.

Paper: Zhuang et al., *ACIL: Analytic Class-Incremental Learning with Absolute Memorization and Privacy
Protection*, NeurIPS 2022.

Base agenda: train the network on the base classes by back-propagation, drop its classifier, freeze it;
re-align: W = (XᵀX + γI)⁻¹ XᵀY with X = relu(X_cnn W_fe) (Eq. 2 and 4). Incremental agenda: update W from
the present phase alone (Eq. 9 and 10), or solve again from the sums, which is the same.

Settings, beyond the recipe's: ``expansion_size`` (None: no expansion), ``gamma``, ``solver``, ``dtype``.
Departures from the paper are numbered in docs/differences.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import acil
from acil import scale
from acil.bench.methods.base import Context, MemoryUse, Phase
from acil.bench.methods.frozen_features import FrozenMethod, FrozenPlanning, own_images
from acil.core import files
from acil.core.parameters import PARAMETERS, check_parameters
from acil.encoders.images.imageset import ImageSet
from acil.scale import Group

if TYPE_CHECKING:
    from acil import ACILClassifier

#: Seed of the order of rows in which the joint fit sees all data.
_JOINT_ORDER = 1


class ACILPlanning(FrozenPlanning):
    """What a run asks about ACIL."""

    def takes_shards(self, settings: Mapping[str, Any]) -> bool:
        """Say whether several processes can learn together: by adding sums, which recursion lacks."""
        return bool(settings.get("solver", "gram") == "gram")

    def compare_with_joint(
        self, method: ACIL, images: ImageSet, labels: Tensor, test: ImageSet
    ) -> dict[str, float]:
        """Return ``joint_difference``, ``condition`` and, of the solver "gram", ``gamma_relative``.

        The first is the relative difference of the test scores to those of learning everything at once.
        """
        group, phased = method.context.group, method.classifier
        method.make_room()
        joint = acil.ACILClassifier(**phased.get_params())
        # In another order of rows: with the same one, a run of a single phase would differ by nothing.
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(_JOINT_ORDER))
        images, labels = own_images(images.subset(order), labels[order], group)
        learn(joint, *method.features.training_rows(images, labels), group)
        test, _ = own_images(test, torch.empty(len(test)), group)
        squares = [0.0, 0.0]
        if len(test):
            features = method.features(test)
            expected = joint.decision_function(features)
            scores = phased.decision_function(features)
            squares = [float((scores - expected).square().sum()), float(expected.square().sum())]
        # Its matrices are not needed beside the factor that the condition number takes.
        del joint
        if group is not None:
            squares = [sum(parts) for parts in zip(*group.exchange(squares), strict=True)]
        report = {
            "joint_difference": math.sqrt(squares[0] / squares[1]) if squares[0] else 0.0,
            "condition": phased.condition_,
        }
        if phased.solver == "gram":
            report["gamma_relative"] = phased.gamma_relative_
        return report


class ACIL(FrozenMethod):
    """The paper's method, end to end."""

    planning: type[FrozenPlanning] = ACILPlanning
    grouping_free = True
    analytic_heads = 1

    def __init__(self, context: Context, **parameters: Any) -> None:
        super().__init__(context)
        self.parameters = head_parameters(context, **parameters)

    @cached_property
    def classifier(self) -> ACILClassifier:
        """The head, made when it is needed: a plan does not wait for scikit-learn."""
        return acil.ACILClassifier(**self.parameters)

    def _state(self) -> dict[str, Any]:
        """Return sums, weights and expansion; the network is in the shared checkpoint folder."""
        self.make_room()
        return files.pack(self.classifier)

    def _load(self, state: Mapping[str, Any]) -> None:
        """Go on from sums that were saved; the network comes from the base phase's checkpoint."""
        self.classifier = files.unpack(state, device=str(self.context.device))

    def make_room(self) -> None:
        """Give the factor's memory to what comes next; the weights are kept."""
        if self.classifier.__sklearn_is_fitted__():
            self.classifier.predict(torch.zeros(1, self.classifier.n_features_in_))
        self.classifier.compact()

    def _learn(self, features: Tensor, phase: Phase) -> None:
        learn_phase(self.classifier, features, phase, self.context.group)

    def _predict(self, features: Tensor) -> Tensor:
        if len(features) == 0:
            return torch.zeros(0, dtype=torch.int64)
        labels: Tensor = self.classifier.predict(features)
        return labels.cpu()

    def _memory(self) -> MemoryUse:
        return classifier_memory(self.classifier)


def head_parameters(context: Context, **parameters: Any) -> dict[str, Any]:
    """Return the parameters of a head that recipe, settings and the method itself ask for, checked."""
    recipe, settings = context.recipe, context.settings
    asked = {
        "expansion_size": settings.get("expansion_size", recipe.expansion_size),
        "gamma": settings.get("gamma", recipe.gamma),
        "solver": settings.get("solver", "gram"),
        "dtype": settings.get("dtype", recipe.dtype),
        "scores": "ridge",
        "random_state": context.seed,
        "device": str(context.device),
        **parameters,
    }
    defaults = {name: parameter.default for name, parameter in PARAMETERS.items()}
    check_parameters(SimpleNamespace(**defaults | asked))
    return asked


def new_classifier(context: Context, **parameters: Any) -> ACILClassifier:
    """Return an untrained head of these parameters."""
    return acil.ACILClassifier(**head_parameters(context, **parameters))


def learn_phase(
    classifier: ACILClassifier,
    features: Tensor,
    phase: Phase,
    group: Group | None = None,
    weights: Tensor | None = None,
) -> None:
    """Add a phase to a head, so that a resumed run goes on with the same bits."""
    # Solve from the sums alone: a resumed run has no factor to correct.
    classifier.compact(memory=False)
    learn(classifier, features, phase.labels, group, weights)


def learn(
    classifier: ACILClassifier,
    features: Tensor,
    labels: Tensor,
    group: Group | None,
    weights: Tensor | None = None,
) -> None:
    """Add samples to a head; in a group, those of all processes."""
    if group is None:
        classifier.partial_fit(features, labels, sample_weight=weights)
    else:
        scale.partial_fit(classifier, features, labels, sample_weight=weights, group=group)


def classifier_memory(classifier: ACILClassifier) -> MemoryUse:
    """Count the bytes of a head: what it learns on with, and what it predicts with."""
    parts = classifier.stored_bytes()
    weights = sum(parts.pop(name, 0) for name in ("coef", "intercept", "projection"))
    return MemoryUse(statistics=sum(parts.values()), weights=weights)
