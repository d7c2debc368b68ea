"""Features and scores of a network as it is now, and a classifier fitted on its features."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from acil.methods.base import Context, derived_seed
from acil.training.auxiliary import Auxiliary
from acil.training.loop import Objective, train
from acil.training.settings import Training
from acil.vision.backbones import Backbone
from acil.vision.extract import FeatureExtractor, exact_inference
from acil.vision.imageset import ImageSet


def network_features(backbone: Backbone, images: ImageSet | Tensor, device: torch.device) -> Tensor:
    """Return the features of images as the network sees them now, float32 on the CPU.

    Parameters
    ----------
    backbone : Backbone
        Moves to the device.
    images : ImageSet or Tensor of shape (n, channels, height, width), uint8
    device : torch.device
    """
    if isinstance(images, Tensor):
        images = ImageSet(images, None, "")
    # No cache: these features are of a network that the next phase changes.
    return FeatureExtractor(backbone, device=device).features(images)


def classifier_scores(classifier: nn.Module, features: Tensor, device: torch.device) -> Tensor:
    """Return the scores of features, float32 on the CPU; no gradient, no reduced precision."""
    with exact_inference(classifier, device):
        scores: Tensor = classifier(features.to(device))
    return scores.cpu()


def linear_probe(
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
