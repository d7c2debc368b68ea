"""The closed-form learner: tensors and integers, no labels, no files, no printing."""

from acil.analytic.expansion import ACTIVATIONS as ACTIVATIONS
from acil.analytic.expansion import Expansion as Expansion
from acil.analytic.model import AnalyticModel as AnalyticModel
from acil.analytic.model import Frozen as Frozen
from acil.analytic.recursion import Recursion as Recursion
from acil.analytic.ridge import Ridge as Ridge
from acil.analytic.sums import PRECISIONS as PRECISIONS
from acil.analytic.sums import Sums as Sums
