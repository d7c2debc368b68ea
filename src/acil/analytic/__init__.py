"""The closed-form learner: tensors and integers, no labels, no files, no printing."""

from acil.analytic.expansion import ACTIVATIONS, Expansion
from acil.analytic.model import AnalyticModel, Frozen
from acil.analytic.recursion import Recursion
from acil.analytic.ridge import Ridge
from acil.analytic.sums import PRECISIONS, Precision, Sums

__all__ = [
    "ACTIVATIONS",
    "PRECISIONS",
    "AnalyticModel",
    "Expansion",
    "Frozen",
    "Precision",
    "Recursion",
    "Ridge",
    "Sums",
]
