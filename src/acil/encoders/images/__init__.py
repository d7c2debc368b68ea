"""Images to features: decoding, augmentation, backbones, extraction and a cache."""

from acil.encoders.images.backbones import Backbone, Preprocessing, build, load_backbone, save_backbone
from acil.encoders.images.extract import FeatureExtractor, FeatureSettings
from acil.encoders.images.imageset import ImageSet, content_identity
from acil.encoders.images.networks import WrappedBackbone

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
