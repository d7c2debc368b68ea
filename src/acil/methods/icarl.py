"""iCaRL as the tables have it: softmax losses, and the nearest mean of exemplars as the read-out.

Paper: Rebuffi et al., *iCaRL: Incremental Classifier and Representation Learning*, CVPR 2017; here in
the variant of LUCIR's code, from which the tables of later papers come. The original is ``icarl-bce``.

Training is that of ``lwf-exemplars``: L = CE(z, y) + KD over the old classes, T = 2, weight 1, on new
images and exemplars; linear classifier with bias; the recipe's training. Read-out: with f(x) the
features at length 1 and μ_c the mean of f over the exemplars of c and their mirror images, at length 1,

    label(x) = argmin_c ‖f(x) − μ_c‖

Settings: ``memory_rule`` = "20 per class" (chosen by herding), ``icarl_distillation`` = 1,
``icarl_temperature`` = 2; ``increment.NAME`` changes the training.

Differences from the original:

1. Softmax losses and a growing classifier instead of sigmoids over all classes to come.
2. The mirror image is the image with left and right swapped. LUCIR's code swaps the colour channels
   instead, by an error in the layout of arrays.
3. The last ReLU stays: the base network is the one that other methods share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from acil.methods.base import MemoryUse, Phase
from acil.methods.incremental import IncrementalNetwork
from acil.methods.lwf_exemplars import LwFExemplars
from acil.methods.readout import exemplar_means, nearest_mean, network_features
from acil.vision.imageset import ImageSet


class NearestMeanOfExemplars(IncrementalNetwork):
    """A method with exemplars, whose nearest mean under the present network decides."""

    _means: tuple[Tensor, Tensor] | None = None

    def learn(self, phase: Phase) -> None:
        """Learn one phase; the means follow from network and exemplars when they are asked for."""
        super().learn(phase)
        self._means = None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, exactly."""
        super().load_state_dict(state)
        self._means = None

    def predict(self, images: ImageSet) -> Tensor:
        """Return the class whose mean is nearest to each image."""
        self._require_learnt()
        features = network_features(self.network.backbone, images, self.context.device)
        return nearest_mean(features, *self.means())

    def means(self) -> tuple[Tensor, Tensor]:
        """Return classes and means of their exemplars' features, computed once a phase."""
        if self._means is None:
            kept = self.exemplars
            self._means = exemplar_means(
                self.network.backbone, kept.pixels, kept.labels, self.context.device
            )
        return self._means

    def memory(self) -> MemoryUse:
        """Count exemplars, network and means."""
        use, means = super().memory(), self.means()[1]
        return MemoryUse(samples=use.samples, weights=use.weights + means.nbytes)


class ICaRL(NearestMeanOfExemplars, LwFExemplars):
    """Distil on new images and exemplars; the nearest mean decides."""

    name = "icarl"
