"""Analytic class-incremental learning: exact, fast, without keeping a sample."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from acil.moved import forward

if TYPE_CHECKING:
    from acil.core.classifier import ACILClassifier
    from acil.core.exchange import ModelSums
    from acil.core.files import load, save
    from acil.growing import ImageClassifier, TextClassifier

__version__ = "0.1.0"

__all__ = [
    "ACILClassifier",
    "ImageClassifier",
    "ModelSums",
    "TextClassifier",
    "__version__",
    "load",
    "save",
]

# torch takes seconds to import: `acil --help` must not wait for it.
_HOMES = {
    "ACILClassifier": "acil.core.classifier",
    "ImageClassifier": "acil.growing",
    "ModelSums": "acil.core.exchange",
    "TextClassifier": "acil.growing",
    "load": "acil.core.files",
    "save": "acil.core.files",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'acil' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


forward()
