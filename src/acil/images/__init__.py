"""`ImageClassifier`: a frozen network and a closed-form head, for own images."""

from acil.images.classifier import ImageClassifier
from acil.images.network import network_of
from acil.images.results import Evaluation, Prediction, Report, Samples
from acil.images.snapshot import UNKNOWN_ABOVE

__all__ = [
    "UNKNOWN_ABOVE",
    "Evaluation",
    "ImageClassifier",
    "Prediction",
    "Report",
    "Samples",
    "network_of",
]
