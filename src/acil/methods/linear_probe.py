"""Features and scores of a network as it is now, and a classifier fitted on its features."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from acil.methods.base import Context
from acil.training.loop import train
from acil.training.network import FeatureNetwork
from acil.training.objectives import Objective
from acil.training.settings import Auxiliary, Training
from acil.vision.backbones import Backbone
from acil.vision.extract import FeatureExtractor, exact_inference
from acil.vision.imageset import ImageSet


def network_features(backbone: Backbone, images: ImageSet | Tensor, device: torch.device) -> Tensor:
    """Return features of images, or of uint8 pixels, as the network sees them now: float32, on the CPU.

    The network moves to the device.
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
    network: FeatureNetwork,
    images: ImageSet | Tensor,
    labels: Tensor,
    context: Context,
    settings: Training | None = None,
    objective: Objective | None = None,
) -> None:
    """Train a network's classifier in place, on features of images that are not augmented.

    The settings are by default the recipe's; augmentation and auxiliary tasks are left out. The
    objective is one of the classifier, which takes features.
    """
    plan = settings or context.recipe.training
    train(
        network.classifier,
        network_features(network.backbone, images, context.device),
        labels,
        dataclasses.replace(plan, augment=(), compile=False, auxiliary=Auxiliary()),
        preprocessing=None,
        seed=context.seed_for("classifier on frozen features"),
        device=context.device,
        objective=objective,
        progress=context.progress,
    )
