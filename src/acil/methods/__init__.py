"""Class-incremental methods, one readable file each, behind one protocol."""

from acil.methods.base import Context, MemoryUse, Method, Phase
from acil.methods.registry import available, register, resolve

__all__ = ["Context", "MemoryUse", "Method", "Phase", "available", "register", "resolve"]
