"""`ImageClassifier`: a frozen network and a closed-form head, for own images."""

from acil.encoders.images.stored import network_of
from acil.encoders.samples import Samples
from acil.growing.images import ImageClassifier
from acil.growing.results import Evaluation, Prediction, Report
from acil.growing.snapshot import UNKNOWN_ABOVE

__all__ = [
    "UNKNOWN_ABOVE",
    "Evaluation",
    "ImageClassifier",
    "Prediction",
    "Report",
    "Samples",
    "network_of",
]
