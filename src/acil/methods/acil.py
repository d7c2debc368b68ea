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

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from acil.classifier import ACILClassifier
from acil.methods.base import Context, MemoryUse, Phase
from acil.methods.pretrain import base_backbone
from acil.storage import pack, unpack
from acil.vision.extract import FeatureExtractor
from acil.vision.imageset import ImageSet


class ACIL:
    """The paper's method, end to end.

    Parameters
    ----------
    context : Context
    """

    grouping_free = True

    def __init__(self, context: Context) -> None:
        recipe, settings = context.recipe, context.settings
        self.context = context
        self.extractor: FeatureExtractor | None = None
        self.classifier = ACILClassifier(
            expansion_size=settings.get("expansion_size", recipe.expansion_size),
            gamma=settings.get("gamma", recipe.gamma),
            solver=settings.get("solver", "gram"),
            dtype=settings.get("dtype", recipe.dtype),
            random_state=context.seed,
            device=str(context.device),
        )

    def learn(self, phase: Phase) -> None:
        """Train the network if this is the base phase, then add the phase to the head."""
        if self.extractor is None and phase.images.has_pixels:
            self._set_backbone(phase)
        # Solve from the sums alone: a resumed run has no factor to correct and must give the same bits.
        self.classifier.compact()
        self.classifier.partial_fit(self._features(phase.images), phase.labels)

    def predict(self, images: ImageSet) -> Tensor:
        """Return the label of each image."""
        labels: Tensor = self.classifier.predict(self._features(images))
        return labels.cpu()

    def memory(self) -> MemoryUse:
        """Count sums (one triangle of the matrix), weights, expansion and network."""
        parts = self.classifier.stored_bytes()
        weights = sum(parts.pop(name, 0) for name in ("coef", "intercept", "projection"))
        if self.extractor is not None:
            tensors = self.extractor.backbone.state_dict().values()
            weights += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return MemoryUse(samples=0, statistics=sum(parts.values()), weights=weights)

    def state_dict(self) -> dict[str, Any]:
        """Return sums, weights and expansion; the network is in the shared checkpoint folder."""
        return pack(self.classifier)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from sums that were saved; the network comes from the base phase's checkpoint."""
        self.classifier = unpack(state, device=str(self.context.device))

    def resume(self, base: Phase) -> None:
        """Take up the network of the base phase after `load_state_dict`."""
        if self.extractor is None and base.images.has_pixels:
            self._set_backbone(base)

    def compare_with_joint(self, images: ImageSet, labels: Tensor, test: ImageSet) -> dict[str, float]:
        """Measure how far the scores are from those of learning everything at once.

        Parameters
        ----------
        images, labels
            All training data seen, for this comparison only.
        test : ImageSet

        Returns
        -------
        dict
            ``joint_difference``, the relative difference of the test scores, ``condition`` and
            ``gamma_relative`` (solver "gram").
        """
        joint = ACILClassifier(**self.classifier.get_params())
        joint.fit(self._features(images), labels)
        features = self._features(test)
        expected, found = joint.decision_function(features), self.classifier.decision_function(features)
        report = {
            "joint_difference": float((found - expected).norm() / expected.norm()),
            "condition": self.classifier.condition_,
        }
        if self.classifier.solver == "gram":
            report["gamma_relative"] = self.classifier.gamma_relative_
        return report

    def _set_backbone(self, phase: Phase) -> None:
        context = self.context
        backbone = base_backbone(context, phase)
        self.extractor = FeatureExtractor(
            backbone, context.recipe.features, context.device, cache=context.cache
        )

    def _features(self, images: ImageSet) -> Tensor:
        return images.features(self.extractor)
