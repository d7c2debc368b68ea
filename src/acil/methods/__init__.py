"""Class-incremental methods, one readable file each, with one base class."""

from acil.methods.base import Context, MemoryUse, Method, Phase
from acil.methods.registry import available, resolve

__all__ = ["Context", "MemoryUse", "Method", "Phase", "available", "resolve"]
