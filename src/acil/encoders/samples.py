"""Samples on the way from files to a learner: features, labels, and where they come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from acil.core.classifier import ACILClassifier
from acil.core.files.header import in_order
from acil.core.inputs import Rows
from acil.errors import InputError


@dataclass(frozen=True)
class Samples:
    """Images or texts as a model learns or forgets them."""

    features: npt.NDArray[np.float32]
    """Of shape (n, features)."""
    labels: npt.NDArray[np.str_]
    """Class of each sample, "" without labels."""
    digests: tuple[str, ...]
    """Hash of the pixels of each image, or of each text."""
    images: tuple[str, ...]
    """What each image is called; or the texts."""
    skipped: tuple[str, ...]
    """Messages about files that could not be read."""
    identity: dict[str, Any] | None
    """Of the network that the features come from; None if that is not known."""
    source: str | None
    """The name that the network was opened by."""
    seconds: float
    """Spent on decoding and features."""
    columns: tuple[str, ...] | None = None
    """Names of the features; None if they have none."""
    encoder: str = "images"
    """What the network takes, if it is known: "images" or "text"."""

    @property
    def counts(self) -> dict[str, int]:
        """Number of images of each class, by name."""
        return counted(self.labels.tolist())

    @property
    def names(self) -> list[str]:
        """Class of each of the digests."""
        names: list[str] = self.labels.tolist()
        return names

    def require_labels(self) -> Samples:
        """Return these samples, or raise if they have no labels."""
        if "" in self.names:
            raise InputError(
                "These features have no labels. Call the column of labels 'label' (in npz files the "
                "array 'labels'), or give one class for all (--class NAME)."
            )
        return self

    def rows_for(self, head: ACILClassifier) -> Rows:
        """Return the features as a head takes them: if both have names of columns, in its order."""
        names = getattr(head, "feature_names_in_", None)
        if names is None or self.columns is None:
            return Rows(self.features)
        learnt, place = set(names), {name: number for number, name in enumerate(self.columns)}
        lacking = [name for name in names if name not in place]
        strange = [name for name in self.columns if name not in learnt]
        if lacking or strange or len(names) != len(self.columns):
            said = [f"{name!r} is missing" for name in lacking[:1]]
            said += [f"{name!r} is not one of its columns" for name in strange[:1]]
            raise InputError(
                f"This model was learnt from {len(names)} columns, and these {len(self.columns)} are "
                f"others: {' and '.join(said)}. Give a file with the same columns, in any order."
            )
        return Rows(self.features[:, [place[name] for name in names]])

    def labels_for(self, head: ACILClassifier) -> npt.NDArray[Any]:
        """Return the labels as a head takes them: as numbers if those that it has learnt are."""
        known = getattr(head, "classes_", self.labels)
        try:
            return self.labels.astype(known.dtype) if known.dtype.kind in "if" else self.labels
        except ValueError:
            return self.labels  # which the head refuses in words

    def without(self, places: Sequence[int]) -> Samples:
        """Return the other samples."""
        left_out = set(places)
        remaining = [i for i in range(len(self.digests)) if i not in left_out]
        return replace(
            self,
            features=self.features[remaining],
            labels=self.labels[remaining],
            digests=tuple(self.digests[i] for i in remaining),
            images=tuple(self.images[i] for i in remaining),
        )


def counted(names: Iterable[str]) -> dict[str, int]:
    """Return how often each name comes, in the order of classes."""
    counts = Counter(names)
    return {name: counts[name] for name in in_order(counts)}
