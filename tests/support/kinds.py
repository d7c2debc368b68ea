"""Images and texts by the same words: what both classifiers promise is tested with each."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acil import ImageClassifier, TextClassifier
from support.pictures import COLOURS, draw, network
from support.texts import sentences, tiny_encoder

#: The topic of each class; white has words of none.
_TOPICS = {"blue": "travel", "green": "weather", "red": "card", "white": ""}


@dataclass(frozen=True)
class Kind:
    """How a test makes classifiers and samples of one kind."""

    thing: str
    classifier: type
    network: Callable[..., Any]
    #: Writes folder/CLASS with so many samples each, of names and a seed.
    write: Callable[..., Path]
    #: The samples of such a folder, as a list that the classifier takes.
    samples: Callable[[Path], list[Any]]

    def new(self, **options: Any) -> Any:
        """Return a classifier with a small network that has learnt nothing."""
        return self.classifier(self.network(), **{"expansion_size": None, **options})


def write_texts(folder: Path, per_class: int, names=tuple(COLOURS), seed: int = 0) -> Path:
    """Write texts into folder/CLASS/*.txt."""
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for index, text in enumerate(sentences(_TOPICS[name], per_class, seed)):
            (folder / name / f"{seed}-{index}.txt").write_text(text)
    return folder


def _files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def _texts(folder: Path) -> list[str]:
    return [path.read_text() for path in _files(folder)]


KINDS = (
    Kind("image", ImageClassifier, network, draw, _files),
    Kind("text", TextClassifier, tiny_encoder, write_texts, _texts),
)
