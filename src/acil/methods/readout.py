"""From a trained network to labels: scores of its classifier, or the nearest mean of exemplars."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from acil.vision.backbones import Backbone
from acil.vision.exact import exact_inference
from acil.vision.extract import FeatureExtractor
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


def exemplar_means(
    backbone: Backbone, pixels: Tensor, labels: Tensor, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the classes and the mean of each class's exemplars and their mirror images, at length 1.

    μ_c = normalise(mean over the exemplars x of c of (normalise f(x) + normalise f(mirror x)) / 2)

    Parameters
    ----------
    backbone : Backbone
    pixels : Tensor of shape (n, channels, height, width), uint8
    labels : Tensor of shape (n,), int64
    device : torch.device

    Returns
    -------
    classes : Tensor of shape (classes,), int64
    means : Tensor of shape (classes, num_features)
    """
    views = [network_features(backbone, view, device) for view in (pixels, pixels.flip(3))]
    both = torch.stack([functional.normalize(view) for view in views]).mean(0)
    classes = sorted(set(labels.tolist()))
    means = torch.stack([both[labels == label].mean(0) for label in classes])
    return torch.tensor(classes), functional.normalize(means)


def nearest_mean(features: Tensor, classes: Tensor, means: Tensor) -> Tensor:
    """Return the class whose mean is nearest to each feature at length 1.

    Parameters
    ----------
    features : Tensor of shape (n, d)
    classes : Tensor of shape (k,)
    means : Tensor of shape (k, d), rows of length 1
        Then the nearest by distance is the one with the largest product.
    """
    return classes[(functional.normalize(features) @ means.T).argmax(1)]
