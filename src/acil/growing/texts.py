"""TextClassifier: a network and a closed-form head, for own texts."""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch

from acil.encoders.images.embedder import Embedded, UnreadableError
from acil.encoders.samples import Samples
from acil.encoders.stored import open_stored
from acil.encoders.text import DEFAULT, TextEncoder, clean_text, open_encoder
from acil.encoders.text.tables import clean_label, read_texts, where
from acil.errors import InputError
from acil.growing.classifier import Classifier, Progress
from acil.growing.results import Shown
from acil.growing.snapshot import CallTracker

logger = logging.getLogger(__name__)

#: Width of the random expansion of a new model. One for all, because a model keeps what its first texts
#: were learnt with: a width that followed their number would depend on the order of phases.
EXPANSION_SIZE = 2048
#: Texts that cannot be used and are named in the message.
_TOLD = 5

#: A file or a folder of texts, or several texts.
GivenTexts = str | os.PathLike[str] | Iterable[str]


class TextClassifier(Classifier):
    """Classifier for texts that learns new classes in seconds and keeps no text.

    Texts are given as a list; or as a table (CSV, TSV, JSON lines, parquet) with columns ``text`` and
    ``label``, or a folder with a folder of .txt files for each class: see
    `acil.encoders.text.tables.read_texts`. A str is the path of a table or a folder.

    Parameters
    ----------
    backbone : str or TextEncoder, optional
        The frozen network, by default ``minilm``, which was trained on English; see
        `acil.encoders.text.open_encoder`. A model is bound to it: with another network, learn again
        from the texts.
    expansion_size : int or None, default=2048
        Width of the random expansion; None uses the features as they are.
    gamma : float or "auto", default="auto"
        Ridge strength γ; ``"auto"`` chooses it from the sums, see `ACILClassifier`.
    track : bool, default=True
        Keep a salted digest of each call that teaches ten texts or more, so that the same texts taught
        again are noticed and left out. Single texts are never tracked: their hashes could be guessed.
    random_state : int, default=0
        Seed of the expansion.
    device : str, default="auto"
        Of the head; the network runs on the CPU.
    clip_norm, min_class_samples
        See `ACILClassifier`.

    Notes
    -----
    Texts are compared, and given to the network, as `acil.encoders.text.clean_text` returns them. A text
    that comes twice in one call counts twice, and `Report` names it: so learning class by class gives
    what learning all at once gives.

    Changes, scores and forgetting are as those of `ImageClassifier`. Which texts were learnt is not
    known: only whoever forgets knows that they were, and under which class.

    Examples
    --------
    >>> from acil import TextClassifier
    >>> model = TextClassifier()
    >>> texts = ["my card was swallowed", "the machine kept my card", "will it rain today?"]
    >>> model.learn(texts, ["card", "card", "weather"]).totals
    {'card': 2, 'weather': 1}
    >>> model.predict(["the cash machine did not give my card back"], unknown_above=None)
    ['card']
    """

    thing, encoder, tracking = "text", "text", CallTracker

    def __init__(
        self,
        backbone: str | TextEncoder | None = None,
        *,
        expansion_size: int | None = EXPANSION_SIZE,
        gamma: float | Literal["auto"] = "auto",
        track: bool = True,
        random_state: int = 0,
        device: str = "auto",
        clip_norm: float | None = None,
        min_class_samples: int = 1,
    ) -> None:
        network = DEFAULT if backbone is None else backbone
        if not isinstance(network, str | TextEncoder):
            raise InputError(
                f"A network is given by its name or as a TextEncoder, not as {type(network).__name__}. "
                "An object with a method 'encode' needs acil.encoders.text.networks.ModuleEncoder."
            )
        super().__init__(
            network,
            track,
            expansion_size=expansion_size,
            gamma=gamma,
            random_state=random_state,
            device=device,
            clip_norm=clip_norm,
            min_class_samples=min_class_samples,
        )

    def _open(self, source: str, learnt: Mapping[str, Any] | None) -> TextEncoder:
        return open_stored(source, learnt, open_encoder)

    def _given(
        self, source: GivenTexts, labels: str | Sequence[str] | None, skip_bad: bool
    ) -> tuple[list[str], list[str], list[str]]:
        if isinstance(source, str | os.PathLike):
            table = read_texts(source, skip_bad=skip_bad)
            logger.info("%s", table.taken)
            if labels is not None and table.labels is not None:
                raise InputError(f"{os.fspath(source)} has labels itself: give no others.")
            texts, names, _ = self._given(
                table.texts, table.labels if labels is None else labels, skip_bad
            )
            return texts, names, [f"{where(place)}: {reason}" for place, reason in table.bad]
        texts = list(source)
        if not texts:
            raise InputError("There are no texts. Give at least one.")
        if labels is None:
            return texts, [""] * len(texts), []
        names = [labels] * len(texts) if isinstance(labels, str) else list(labels)
        if len(names) != len(texts):
            raise InputError(f"There are {len(texts)} texts but {len(names)} labels.")
        cleaned = {name: clean_label(name) for name in dict.fromkeys(names)}
        return texts, [cleaned[name] for name in names], []

    def _require_list(self, sources: object) -> None:
        if isinstance(sources, str | bytes | os.PathLike):
            raise InputError("Give a list of texts, even for one.")

    def _require_labels(self, source: GivenTexts, labels: object) -> None:
        if labels is None and not isinstance(source, str | os.PathLike):
            raise InputError("A list of texts needs labels: one for all, or one for each.")

    def _embedded(self, sources: Sequence[str], skip_bad: bool, progress: Progress | None) -> Embedded:
        texts, kept, bad = [], [], {}
        for place, source in enumerate(sources):
            try:
                texts.append(clean_text(source))
                kept.append(place)
            except InputError as error:
                bad[place] = f"Text {place + 1}: {error}"
        if bad and not (skip_bad and kept):
            told = [*bad.values()][:_TOLD]
            told += [f"And {len(bad) - _TOLD} more."] if len(bad) > _TOLD else []
            raise UnreadableError(
                f"{len(bad)} of {len(sources)} texts cannot be used; nothing was changed. "
                f"{' '.join(told)}",
                len(kept),
            )
        found = self.embedder.encode(texts, progress)
        if found.cut:
            logger.warning(
                "%d of %d texts have more than the %d tokens that the network reads: the rest of each "
                "was left out.",
                *(found.cut, len(texts), self.embedder.preprocessing["length"]),
            )
        digests = [hashlib.blake2b(text.encode(), digest_size=32).hexdigest() for text in texts]
        return Embedded(torch.from_numpy(found.features), digests, kept, bad)

    def _called(self, source: str, number: int) -> str:
        return source

    def _shown(self, sources: Sequence[str]) -> Shown:
        return lambda name: name

    def _remarks(self, samples: Samples) -> dict[str, Any]:
        times = Counter(samples.digests)
        if len(times) == len(samples.digests):
            return {}
        texts = dict(zip(samples.digests[::-1], samples.images[::-1], strict=True))  # the first of each
        pairs = {*zip(samples.digests, samples.names, strict=True)}
        several = Counter(digest for digest, _ in pairs)
        return {
            "duplicates": tuple(texts[digest] for digest, n in times.items() if n > 1),
            "contradictions": tuple(texts[digest] for digest in times if several[digest] > 1),
        }
