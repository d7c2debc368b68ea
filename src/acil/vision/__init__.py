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
from acil.vision.base import WrappedBackbone
from acil.vision.cache import FeatureCache
from acil.vision.extract import FeatureExtractor, FeatureSettings
from acil.vision.imageset import ImageSet, content_identity

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
