"""Names of modules that 0.1 moved: each still leads to the module that has taken its place."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

#: What documents and examples named before 0.1, and where it is. Modules inside go with it.
MOVED = {
    "acil.analytic": "acil.core",
    "acil.benchmark": "acil.bench",
    "acil.classifier": "acil.core.classifier",
    "acil.distributed": "acil.scale",
    "acil.export": "acil.growing.export",
    "acil.growing.undo": "acil.growing.history",
    "acil.images": "acil.growing",
    "acil.images.classifier": "acil.growing.images",
    "acil.images.features": "acil.encoders.tables",
    "acil.images.network": "acil.encoders.stored",
    "acil.methods": "acil.bench.methods",
    "acil.modelfile": "acil.core.files",
    "acil.river": "acil.scale.river",
    "acil.scores": "acil.core.scores",
    "acil.training": "acil.bench.training",
    "acil.vision": "acil.encoders.images",
    "acil.vision.augment": "acil.bench.training.augment",
}


def new_name(name: str) -> str | None:
    """Return where a module is now, or None if it has not moved."""
    inside = ""
    while name not in MOVED:
        name, _, last = name.rpartition(".")
        if not name:
            return None
        inside = f".{last}{inside}"
    return MOVED[name] + inside


class Forwarding:
    """Import a module that has moved under its new name: both names are then one module."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return how a module is found, or None to leave it to others."""
        if not name.startswith("acil.") or new_name(name) is None:
            return None
        return ModuleSpec(name, self)  # type: ignore[arg-type]  # no abstract class of the import system

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to the import system to make a module, which `exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of the new name in the place of this one."""
        sys.modules[module.__name__] = importlib.import_module(str(new_name(module.__name__)))


def forward() -> None:
    """Have old names forwarded."""
    # First, because a module inside a package that was forwarded would be found and loaded twice.
    sys.meta_path.insert(0, Forwarding())
