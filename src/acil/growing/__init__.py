"""A frozen network and a closed-form head in one file, for own images; and the one way to change it."""

from acil.encoders.images.stored import network_of
from acil.encoders.samples import Samples
from acil.growing.gate import Gate
from acil.growing.images import ImageClassifier
from acil.growing.modelfile import Change, ModelFile
from acil.growing.results import Evaluation, Prediction, Report
from acil.growing.snapshot import UNKNOWN_ABOVE

__all__ = [
    "UNKNOWN_ABOVE",
    "Change",
    "Evaluation",
    "Gate",
    "ImageClassifier",
    "ModelFile",
    "Prediction",
    "Report",
    "Samples",
    "network_of",
]
