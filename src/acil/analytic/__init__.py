"""The closed-form learner: tensors and integers, no labels, no files, no printing."""

from acil.analytic.expansion import ACTIVATIONS, Expansion
from acil.analytic.frozen import FrozenHead
from acil.analytic.head import GramHead
from acil.analytic.model import AnalyticModel
from acil.analytic.precision import PRECISIONS, Precision
from acil.analytic.recursion import RecursiveHead
from acil.analytic.repeatable import Repeatable
from acil.analytic.selection import GammaCurve, generalized_cross_validation
from acil.analytic.statistics import Statistics

__all__ = [
    "ACTIVATIONS",
    "PRECISIONS",
    "AnalyticModel",
    "Expansion",
    "FrozenHead",
    "GammaCurve",
    "GramHead",
    "Precision",
    "RecursiveHead",
    "Repeatable",
    "Statistics",
    "generalized_cross_validation",
]
