"""Images to features: decoding, augmentation, backbones, extraction and a cache."""

from acil.vision.backbones import (
    BACKBONES,
    Backbone,
    Preprocessing,
    build,
    fingerprint,
    load_backbone,
    normalise,
    save_backbone,
)
from acil.vision.cache import FeatureCache
from acil.vision.extract import FeatureExtractor, FeatureSettings
from acil.vision.imageset import ImageSet, content_identity
from acil.vision.networks import WrappedBackbone

__all__ = [
    "BACKBONES",
    "Backbone",
    "FeatureCache",
    "FeatureExtractor",
    "FeatureSettings",
    "ImageSet",
    "Preprocessing",
    "WrappedBackbone",
    "build",
    "content_identity",
    "fingerprint",
    "load_backbone",
    "normalise",
    "save_backbone",
]
