"""Class-incremental methods, one readable file each, with one base class."""

from acil.bench.methods.base import Context, MemoryUse, Method, Phase, Planning
from acil.bench.methods.registry import available, resolve

__all__ = ["Context", "MemoryUse", "Method", "Phase", "Planning", "available", "resolve"]
