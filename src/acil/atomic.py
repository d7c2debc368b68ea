"""Moved to `acil.modelfile`."""

from acil.modelfile.writing import cannot_write, replacing  # noqa: F401
