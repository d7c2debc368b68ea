"""Images to features: decoding, augmentation, backbones, extraction and a cache."""

from acil.vision.backbones import Backbone, Preprocessing, build, load_backbone, save_backbone
from acil.vision.extract import FeatureExtractor, FeatureSettings
from acil.vision.imageset import ImageSet, content_identity
from acil.vision.networks import WrappedBackbone

__all__ = [
    "Backbone",
    "FeatureExtractor",
    "FeatureSettings",
    "ImageSet",
    "Preprocessing",
    "WrappedBackbone",
    "build",
    "content_identity",
    "load_backbone",
    "save_backbone",
]
