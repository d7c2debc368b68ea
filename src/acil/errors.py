"""The errors that several parts of acil raise, under one base class.

Input errors are also ``ValueError``s, so that code written for scikit-learn catches them unchanged.
"""

from typing import Any


class ACILError(Exception):
    """Base class of all errors raised by acil."""


class InputError(ACILError, ValueError):
    """An argument, an array or a file is not what the call needs; nothing was changed."""


class InputTypeError(InputError, TypeError):
    """An argument has a type that is not supported, such as a sparse matrix."""


class NotFittedError(InputError, AttributeError):
    """The model has not learnt anything yet."""


class UnsupportedError(InputError):
    """The model exists, but cannot do this with the settings it was made with."""


class GateError(InputError):
    """A change was refused: the model would do worse on held-out samples; nothing was changed.

    ``comparison`` has ``samples``, ``before`` and ``after`` (accuracies in percent) of the classes known
    before and after, and ``per_class``, the same of each.
    """

    def __init__(self, message: str, comparison: dict[str, Any]) -> None:
        super().__init__(message)
        self.comparison = comparison


class InterruptedModelError(ACILError, RuntimeError):
    """Learning was interrupted half-way, so the model in memory cannot be trusted."""


class SingularMatrixError(InputError, ArithmeticError):
    """The matrix gram + γI is not positive definite to working precision."""


class ModelFileError(InputError):
    """A model file is missing, damaged, hostile or written by another version."""


class MissingExtraError(ACILError, ImportError):
    """An optional package is not installed."""


class RemoteError(ACILError, RuntimeError):
    """Another process of the group failed, with an error that is none of these."""


class ProcessLostError(ACILError, RuntimeError):
    """Another process of the group is gone or cannot be reached; the model has not changed."""
