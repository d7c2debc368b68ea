"""Model files: save and load, describe without torch, take turns."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from acil.core.files.header import describe
from acil.core.files.writing import locked

if TYPE_CHECKING:
    from acil.core.files.saving import Check, load, pack, save, unpack, verify

__all__ = ["Check", "describe", "load", "locked", "pack", "save", "unpack", "verify"]


def __getattr__(name: str) -> Any:
    # These need torch, which takes seconds to import; `describe` and `locked` do not.
    if name not in __all__:
        raise AttributeError(f"module 'acil.core.files' has no attribute {name!r}")
    return getattr(importlib.import_module("acil.core.files.saving"), name)
