"""Start faster: leave out what scikit-learn imports and this command never uses."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

#: Takes a fifth of all imports. scikit-learn imports it for one function, which nothing here calls.
POSTPONED = ("scipy.stats",)


class _Postponed(ModuleType):
    """Stands for a module until somebody takes something out of it."""

    def __getattr__(self, name: str) -> Any:
        # `inspect` asks every module for its file; only who imports a submodule asks for the path.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} yet")
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def postpone_imports() -> None:
    """Import the modules of `POSTPONED` only when they are used; for a process of our own."""
    for name in POSTPONED:
        if name not in sys.modules:
            sys.modules[name] = _Postponed(name)
