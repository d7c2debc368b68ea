"""Fitting a classifier alone, on features of a backbone that stays as it is."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor

from acil.methods.base import Context
from acil.methods.readout import network_features
from acil.methods.schedule import derived_seed
from acil.training.auxiliary import Auxiliary
from acil.training.loop import Objective, train
from acil.training.settings import Training
from acil.vision.imageset import ImageSet


def fit_classifier(
    network: Any,
    images: ImageSet | Tensor,
    labels: Tensor,
    context: Context,
    settings: Training | None = None,
    objective: Objective | None = None,
) -> None:
    """Train a network's classifier in place, on features of images that are not augmented.

    Parameters
    ----------
    network : Network or CosineNetwork
    images : ImageSet or Tensor of shape (n, channels, height, width), uint8
    labels : Tensor of shape (n,), int64
    context : Context
    settings : Training, optional
        By default the recipe's. Its augmentation and auxiliary tasks are left out.
    objective : Objective, optional
        Of the classifier, which takes features.
    """
    features = network_features(network.backbone, images, context.device)
    train(
        network.classifier,
        features,
        labels,
        dataclasses.replace(
            settings or context.recipe.training, augment=(), compile=False, auxiliary=Auxiliary()
        ),
        preprocessing=None,
        seed=derived_seed(context.seed, "classifier on frozen features"),
        device=context.device,
        objective=objective,
        progress=context.progress,
    )
