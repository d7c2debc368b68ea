"""What an image classifier does without changing: images in, samples or predictions out."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

import numpy as np

from acil.errors import InputError, NotFittedError
from acil.images.inputs import Given, listed, name_of, reopened, require_identity, settled
from acil.images.results import Evaluation, Prediction, Samples
from acil.images.snapshot import UNKNOWN_ABOVE, Snapshot
from acil.vision.embedder import Embedder, Progress, Source, embed_files
from acil.vision.listing import first_of


class ImageReader:
    """A network and the state that was learnt with it, if any: what `ImageClassifier` reads with.

    Parameters
    ----------
    backbone : str or Embedder
        The frozen network.
    """

    def __init__(self, backbone: str | Embedder) -> None:
        self._embedder = backbone if isinstance(backbone, Embedder) else None
        self._source = None if isinstance(backbone, Embedder) else settled(backbone)
        #: Replaced as a whole by every change: readers take it once and need no lock.
        self._snapshot: Snapshot | None = None
        self._opening = threading.Lock()

    @property
    def embedder(self) -> Embedder:
        """The network, opened when it is first needed and compared with the one that was learnt with."""
        with self._opening:
            if self._embedder is None:
                self._embedder = reopened(self.source, self._snapshot)
            if self._snapshot is not None:
                require_identity(self._embedder.identity, self._snapshot.head.backbone_)
            return self._embedder

    @property
    def source(self) -> str | None:
        """How the network was named; None where it was given as an object."""
        return self._source if self._snapshot is None else self._snapshot.facts.source

    @property
    def snapshot(self) -> Snapshot:
        """The present state, which never changes: later calls of `learn` and the like make new ones."""
        if self._snapshot is None:
            raise NotFittedError("This model has not learnt any image yet. Call 'learn' first.")
        return self._snapshot

    @property
    def classes_(self) -> list[str]:
        """Names of the classes, sorted."""
        return list(self.snapshot.totals)

    @property
    def counts_(self) -> dict[str, int]:
        """Number of images learnt of each class."""
        return self.snapshot.totals

    def prepare(
        self,
        source: Given,
        labels: str | Sequence[str] | None = None,
        *,
        skip_bad: bool = False,
        progress: Progress | None = None,
    ) -> Samples:
        """Turn images into samples, which `learn` and `forget` take; the model is not changed.

        Parameters
        ----------
        source : str, path-like or sequence of str, path-like or bytes
            A folder with one folder for each class, or a CSV file of path and label; with ``labels``,
            images or a folder of images.
        labels : str or sequence of str, optional
            Class of all images, or of each.
        skip_bad : bool, default=False
            Leave out files that cannot be read, instead of refusing all.
        progress : callable, optional
            Called with the number of images done and the number of all.
        """
        start = time.perf_counter()
        sources, names = listed(source, labels)
        embedder = self.embedder
        found = embed_files(sources, embedder, skip_bad, progress)
        return Samples(
            found.features.numpy(),
            np.array([names[i] for i in found.kept], dtype=np.str_),
            tuple(found.digests),
            tuple(found.bad.values()),
            embedder.identity,
            time.perf_counter() - start,
        )

    def predict(self, sources: Sequence[Source], unknown_above: float | None = None) -> list[str]:
        """Return the likeliest class of each image.

        Parameters
        ----------
        sources : sequence of str, path-like or bytes
            Image files, or their content.
        unknown_above : float, optional
            Say ``"unknown"`` beyond this novelty; by default a class is always named.
        """
        return [p.label for p in self.classify(sources, 1, unknown_above)]

    def classify(
        self,
        sources: Sequence[Source],
        top: int = 3,
        unknown_above: float | None = UNKNOWN_ABOVE,
        progress: Progress | None = None,
    ) -> list[Prediction]:
        """Return what the model says of each image.

        Parameters
        ----------
        sources : sequence of str, path-like or bytes
        top : int, default=3
            Number of classes to name.
        unknown_above : float or None, default=1.7
            Images of a larger novelty are unknown; None calls none so.
        progress : callable, optional
        """
        if isinstance(sources, str | os.PathLike | bytes):
            raise InputError("Give a list of images, even for one.")
        if top < 1:
            raise InputError(f"top must be at least 1, got {top}.")
        snapshot = self.snapshot
        found = embed_files(sources, self.embedder, progress=progress)
        judged = snapshot.judge(found.features.numpy(), top, unknown_above)
        return [
            Prediction(name_of(source, number), *judgement)
            for number, (source, judgement) in enumerate(zip(sources, judged, strict=True))
        ]

    def evaluate(
        self,
        source: Given,
        labels: str | Sequence[str] | None = None,
        *,
        unknown_above: float | None = UNKNOWN_ABOVE,
        progress: Progress | None = None,
    ) -> Evaluation:
        """Compare predictions with the true classes of images.

        Parameters
        ----------
        source, labels, progress
            As in `prepare`.
        unknown_above : float or None, default=1.7
        """
        sources, names = listed(source, labels)
        snapshot = self.snapshot
        classes = list(snapshot.totals)
        if not set(names) & set(classes):
            raise InputError(
                f"None of these classes has been learnt: {first_of(sorted(set(names)))}. Known are "
                f"{first_of(classes)}."
            )
        return Evaluation.of(classes, names, self.classify(sources, 1, unknown_above, progress))

    def save(self, path: str | os.PathLike[str], *, inference: bool = False) -> None:
        """Write the model to one file, completely or not at all.

        Parameters
        ----------
        path : str or path-like
        inference : bool, default=False
            Store only what prediction needs: such a model cannot learn, forget, merge or tell what is
            unknown.
        """
        self.snapshot.save(path, inference)
