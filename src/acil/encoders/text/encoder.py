"""Texts to features: one interface for all networks, and the rules for texts that hold for each."""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from acil.errors import InputError

#: Called with the number of texts done and the number of all.
TextProgress = Callable[[int, int], None]
#: Characters that are looked at, for each token that the network takes: no language needs so many, and
#: a text of a hundred megabytes is not taken apart for the few tokens that are read.
CHARACTERS_PER_TOKEN = 128
#: Texts that are taken apart at once.
_CHUNK = 4096
#: Controls but tab and ends of lines.
_CONTROLS = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_SURROGATES = re.compile("[\ud800-\udfff]")
#: More accents on one character than any language has: to sort them takes the square of their number.
_MOST_ACCENTS = 256
_ACCENTS = re.compile(rb"[^\0]{%d}" % (_MOST_ACCENTS + 1))


def clean_text(text: str) -> str:
    r"""Return a text as networks get it, by which texts are also told apart; raise if there is none.

    That is: Unicode's composed form (NFC), a space for each control character but tabs and ends of
    lines, and no white space around it.

    Examples
    --------
    >>> clean_text(" Cafe\u0301\0 ")
    'Café'
    """
    if not isinstance(text, str):
        raise InputError(f"A text must be a str, got {type(text).__name__}.")
    if _SURROGATES.search(text):
        raise InputError(
            "it has bytes that are not UTF-8, or half of a pair of surrogates: save it as UTF-8."
        )
    if not text.isascii() and _ACCENTS.search(bytes(map(unicodedata.combining, text))):
        raise InputError(f"it has more than {_MOST_ACCENTS} accents on one character.")
    cleaned = unicodedata.normalize("NFC", _CONTROLS.sub(" ", text)).strip()
    if not any(c.isprintable() and not c.isspace() for c in cleaned):
        raise InputError("it is empty, or has no character that can be seen.")
    return cleaned


@dataclass(frozen=True)
class EncodedTexts:
    """Features of texts, in the order in which they were given."""

    features: npt.NDArray[np.float32]
    """Of shape (n, dimension)."""
    cut: int
    """Number of texts that were longer than the network takes: the rest of each was not read."""


@dataclass(eq=False)
class TextEncoder(ABC):
    """A network that turns texts into features.

    Parameters
    ----------
    name : str
        Names the network, not a place on this machine.
    weights : str
        Hash of the weights.
    preprocessing : mapping
        What else decides the features: ``tokenizer`` (a hash), ``pooling`` and ``length``, the number of
        tokens that are read.
    engine : str
        What runs the network: features of different engines differ in the last digits.

    Notes
    -----
    The features of a text do not depend on the texts beside it, nor on their order: only so can it be
    forgotten exactly, and phases give what all texts at once give.
    """

    name: str
    weights: str
    preprocessing: Mapping[str, Any]
    engine: str
    #: Of the features.
    dimension: int = field(init=False)

    @property
    def identity(self) -> dict[str, Any]:
        """What a model file keeps of the network, and compares before it is used."""
        return {
            "name": self.name,
            "weights": self.weights,
            "preprocessing": dict(self.preprocessing),
            "engine": self.engine,
        }

    def predicts_for(self, learnt: Mapping[str, Any]) -> bool:
        """Say whether a model learnt with the network of this identity may predict with this one."""
        return self.identity == learnt

    def encode(self, texts: Sequence[str], progress: TextProgress | None = None) -> EncodedTexts:
        """Return the features of texts, each as `clean_text` returns it.

        What is longer than ``length`` tokens is cut, and so is what is longer than 128 times as many
        characters.
        """
        if isinstance(texts, str):
            raise InputError("Give a list of texts, even for one.")
        cleaned, cut = [], 0
        most = CHARACTERS_PER_TOKEN * int(self.preprocessing["length"])
        for number, text in enumerate(texts, start=1):
            try:
                clean = clean_text(text)
            except InputError as error:
                raise InputError(f"Text {number} cannot be used: {error}") from None
            cleaned.append(clean[:most])
        long = {place for place, text in enumerate(cleaned) if len(text) == most}
        features = np.empty((len(cleaned), self.dimension), dtype=np.float32)
        for start in range(0, len(cleaned), _CHUNK):
            chunk = cleaned[start : start + _CHUNK]

            def tell(done: int, start: int = start) -> None:
                if progress is not None:
                    progress(start + done, len(cleaned))

            rows, places = self._encode(chunk, tell)
            features[start : start + len(chunk)] = rows
            cut += len({start + place for place in places} | long & {*range(start, start + len(chunk))})
        return EncodedTexts(features, cut)

    @abstractmethod
    def _encode(
        self, texts: list[str], tell: Callable[[int], None]
    ) -> tuple[npt.NDArray[np.float32], list[int]]:
        """Return the features of clean texts, and the places of those that were cut.

        ``tell`` is called with the number of texts done; the method may be called from several threads.
        """
