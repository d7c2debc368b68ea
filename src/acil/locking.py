"""Moved to `acil.modelfile`."""

from acil.modelfile.writing import locked  # noqa: F401
