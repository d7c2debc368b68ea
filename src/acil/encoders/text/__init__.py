"""Texts to features: what texts are, networks by name, and tables and folders of texts."""

from acil.encoders.text.encoder import EncodedTexts, TextEncoder, TextProgress, clean_text
from acil.encoders.text.networks import DEFAULT, open_encoder

__all__ = ["DEFAULT", "EncodedTexts", "TextEncoder", "TextProgress", "clean_text", "open_encoder"]
