"""Models in files: saving, loading, looking at them, and taking turns."""

from acil.locking import locked
from acil.modelfile import describe
from acil.storage.files import load, pack, save, unpack

__all__ = ["describe", "load", "locked", "pack", "save", "unpack"]
