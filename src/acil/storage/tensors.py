"""Moved to `acil.modelfile`."""

from acil.modelfile.saving import pack_lower, unpack_lower_  # noqa: F401
