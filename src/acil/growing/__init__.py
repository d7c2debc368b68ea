"""A frozen network and a closed-form head in one file, for own images and texts; how it changes."""

from acil.encoders.samples import Samples
from acil.encoders.stored import network_of
from acil.growing.classifier import Classifier
from acil.growing.gate import Gate
from acil.growing.images import ImageClassifier
from acil.growing.modelfile import Change, ModelFile, load_classifier, reader_of
from acil.growing.results import Evaluation, Prediction, Report
from acil.growing.snapshot import UNKNOWN_ABOVE
from acil.growing.texts import TextClassifier

__all__ = [
    "UNKNOWN_ABOVE",
    "Change",
    "Classifier",
    "Evaluation",
    "Gate",
    "ImageClassifier",
    "ModelFile",
    "Prediction",
    "Report",
    "Samples",
    "TextClassifier",
    "load_classifier",
    "network_of",
    "reader_of",
]
