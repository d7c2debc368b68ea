"""Moved to `acil.modelfile`."""

from acil.modelfile.header import *  # noqa: F403
from acil.modelfile.header import _ACTIVATIONS, _DTYPES, _PARAMETER_RULES  # noqa: F401
