"""Moved to `acil.modelfile`."""

from acil.modelfile import describe, load, locked, pack, save, unpack  # noqa: F401
