"""ImageClassifier: a network and a closed-form head, for own images."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NoReturn

import numpy as np

from acil.core.classifier import ACILClassifier
from acil.core.files import load as load_head
from acil.core.files import save as save_head
from acil.encoders.images.decode import Source, thumbnail
from acil.encoders.images.embedder import Embedder, ImageProgress, embed_files
from acil.encoders.images.listing import (
    Given,
    check_class_name,
    first_of,
    images_and_labels,
    name_of,
    require_labels,
    require_list,
)
from acil.encoders.images.networks import DEFAULT, open_network
from acil.encoders.images.stored import (
    FromFeaturesError,
    absolute,
    located,
    open_stored,
    require_identity,
    without_folder,
)
from acil.encoders.samples import Samples
from acil.errors import InputError, NotFittedError
from acil.growing.results import Evaluation, Prediction, Report, Shown
from acil.growing.snapshot import UNKNOWN_ABOVE, Snapshot, Tracker
from acil.growing.undo import keep_state, kept_states, remove_states, require_access

logger = logging.getLogger(__name__)

#: Width and height of images in a report, at most, in pixels.
_THUMBNAIL = 160


class ImageClassifier:
    """Classifier for image files that learns new classes in seconds and keeps no image.

    Parameters
    ----------
    backbone : str or Embedder, default="efficientnet-lite0"
        The frozen network; see `acil.encoders.images.networks.open_network`.
    expansion_size : int or None, default=None
        Width of the random expansion. The default uses the features as they are: on few images a wider
        model was not better, and its file grows with the square of the width.
    gamma : float or "auto", default="auto"
        Ridge strength γ; ``"auto"`` chooses it from the sums, see `ACILClassifier`.
    track : bool, default=True
        Keep a salted hash of each image, and of its class: an image that comes again is left out, and
        one never learnt, or learnt as another class, cannot be forgotten. Whoever has the model and an
        image can then tell whether it was learnt; with False, no hash is kept.
    random_state : int, default=0
        Seed of the expansion.
    device : str, default="auto"
        Of the head; networks in ONNX run on the CPU.
    clip_norm, min_class_samples
        See `ACILClassifier`.

    Notes
    -----
    Every change makes a new state beside the old one and then takes its place. So a call that fails
    changes nothing, and predictions in other threads go on with the state they began with.

    Scores are linear discriminants (``scores="discriminant"`` of `ACILClassifier`): classes with few
    images hold their own beside classes with many, and probabilities are calibrated.

    `forget` is exact for the head; a network that was trained on the images still knows them.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from PIL import Image
    >>> from acil import ImageClassifier
    >>> from acil.encoders.images import build
    >>> from acil.encoders.images.embedder import TorchEmbedder
    >>> folder = tempfile.TemporaryDirectory()
    >>> for name, level in (("dark", 20), ("light", 230)):
    ...     place = pathlib.Path(folder.name, name); place.mkdir()
    ...     for i in range(3):
    ...         Image.new("L", (8, 8), level + i).save(place / f"{i}.png")
    >>> model = ImageClassifier(TorchEmbedder(build("smallcnn")))
    >>> model.learn(folder.name).totals
    {'dark': 3, 'light': 3}
    >>> model.predict([place / "0.png"])
    ['light']
    >>> folder.cleanup()
    """

    def __init__(
        self,
        backbone: str | Embedder = DEFAULT,
        *,
        expansion_size: int | None = None,
        gamma: float | Literal["auto"] = "auto",
        track: bool = True,
        random_state: int = 0,
        device: str = "auto",
        clip_norm: float | None = None,
        min_class_samples: int = 1,
    ) -> None:
        self._embedder = backbone if isinstance(backbone, Embedder) else None
        #: The name to open the network by, with its folder; None if it was given as an object.
        self.source = None if isinstance(backbone, Embedder) else absolute(backbone)
        #: Replaced as a whole by every change: readers take it once and need no lock.
        self._snapshot: Snapshot | None = None
        self._opening = threading.Lock()
        self._settings = {
            "expansion_size": expansion_size,
            "gamma": gamma,
            "random_state": random_state,
            "device": device,
            "clip_norm": clip_norm,
            "min_class_samples": min_class_samples,
            "scores": "discriminant",
            "standardize": False,
        }
        self._track: bool | None = track
        #: One change at a time.
        self._changing = threading.Lock()

    @property
    def embedder(self) -> Embedder:
        """The network, opened at first use and compared with the one that the model was learnt with."""
        with self._opening:
            snapshot = self._snapshot
            learnt = None if snapshot is None else snapshot.identity
            if snapshot is not None and learnt is None:
                raise FromFeaturesError("This model")
            if self._embedder is None:
                self._embedder = open_stored(self.source, learnt)
            if learnt is not None and not self._embedder.predicts_for(learnt):
                require_identity(self._embedder.identity, learnt)
            return self._embedder

    @property
    def snapshot(self) -> Snapshot:
        """The present state. It never changes: `learn`, `forget` and `merge` make a new one."""
        if self._snapshot is None:
            raise NotFittedError("This model has not learnt any image yet. Call 'learn' first.")
        return self._snapshot

    @property
    def classes_(self) -> list[str]:
        """Names of the classes, sorted."""
        return list(map(str, self.snapshot.head.classes_.tolist()))

    @property
    def counts_(self) -> dict[str, int]:
        """Number of images learnt of each class."""
        return self.snapshot.totals

    def __repr__(self) -> str:
        snapshot = self._snapshot
        if snapshot is None:
            return f"<ImageClassifier of {self.source or self.embedder.name}: nothing learnt>"
        network = "features" if snapshot.identity is None else snapshot.identity["name"]
        n = sum(snapshot.totals.values())
        return f"<ImageClassifier of {network}: {len(snapshot.totals)} classes from {n} samples>"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: networks cannot be."""
        raise TypeError(
            "An ImageClassifier cannot be pickled or copied. Use save and ImageClassifier.load."
        )

    def prepare(
        self,
        source: Given,
        labels: str | Sequence[str] | None = None,
        *,
        skip_bad: bool = False,
        progress: ImageProgress | None = None,
    ) -> Samples:
        """Turn images into samples, which other methods take; the model is not changed.

        Parameters
        ----------
        source : str, path-like or sequence of images
            As `acil.encoders.images.listing.list_images` takes it; or images: each a path, the content
            of a file (bytes), a PIL image or an array as `acil.encoders.images.decode` takes it.
        labels : str or sequence of str, optional
            Class of all images, or of each. Samples without labels can only be classified.
        skip_bad : bool, default=False
            Leave out files that cannot be read, instead of refusing all.
        progress : callable, optional
            Called with the number of images done and the number of all.
        """
        start = time.perf_counter()
        sources, names = images_and_labels(source, labels)
        embedder = self.embedder
        found = embed_files(sources, embedder, skip_bad, progress)
        return Samples(
            found.features.numpy(),
            np.array([names[i] for i in found.kept], dtype=np.str_),
            tuple(found.digests),
            tuple(name_of(sources[i], i) for i in found.kept),
            tuple(found.bad.values()),
            embedder.identity,
            self.source,
            time.perf_counter() - start,
        )

    def learn(
        self,
        source: Given | Samples,
        labels: str | Sequence[str] | None = None,
        *,
        skip_bad: bool = False,
        progress: ImageProgress | None = None,
    ) -> Report:
        """Learn images of new or known classes, or raise and change nothing.

        Takes what `prepare` takes, or samples that it returned. A model that tracks its images leaves
        out those that it has learnt already, under any class: to correct a class, forget first.
        """
        samples = self._samples(source, labels, skip_bad, progress)
        with self._changing:
            start = time.perf_counter()
            before, tracker = self._snapshot, self._tracker(samples)
            if before is not None:
                require_identity(samples.identity, before.identity)
            places = tracker.repeated(samples.digests)
            repeated = tuple(samples.images[i] for i in places)
            given, samples = samples, samples.without(places)
            kept = dict(zip(samples.digests, samples.images, strict=True))
            pairs = ((given.images[i], kept.get(given.digests[i])) for i in places)
            twins = tuple((image, twin) for image, twin in pairs if twin is not None)
            tracker = tracker.with_added(samples.digests, samples.names)
            misplaced = tuple(given.images[i] for i in tracker.misplaced(given.digests, given.names))
            if before is not None and not samples.digests:
                seconds = samples.seconds
                return Report({}, before.totals, samples.skipped, repeated, misplaced, seconds, 0.0)
            if before is None:
                head = ACILClassifier(**self._settings)  # type: ignore[arg-type]
                if samples.identity is not None:
                    head.backbone_ = samples.identity
            else:
                head = before.copy_head()
            head.partial_fit(samples.rows_for(head), samples.labels_for(head))
            if before is None:
                if samples.columns is not None:
                    head.feature_names_in_ = np.array(samples.columns, dtype=object)
                self.source = samples.source
            report = self._replace(head, tracker, samples, start)
            return replace(report, repeated=repeated, misplaced=misplaced, twins=twins)

    def forget(
        self,
        source: Given | Samples,
        labels: str | Sequence[str] | None = None,
        *,
        progress: ImageProgress | None = None,
    ) -> Report:
        """Forget images: the head becomes the one that never learnt them; or raise and change nothing.

        Give the same images and labels that were learnt, as in `prepare`, or samples. A class of which
        none is left disappears.
        """
        samples = self._samples(source, labels, False, progress)
        with self._changing:
            start = time.perf_counter()
            before = self.snapshot
            require_identity(samples.identity, before.identity)
            tracker, complete = before.tracker, len(before.tracker) == before.head.n_samples_
            tracker.require_learnt(samples, complete)
            if len(samples.labels) == before.head.n_samples_:
                raise InputError(
                    f"All {before.head.n_samples_} would be forgotten: nothing would be left. Delete "
                    "the model instead."
                )
            head = before.copy_head()
            head.forget(samples.rows_for(head), samples.labels_for(head))
            after = tracker.without(samples.digests, samples.names)
            if left := after.known(samples.digests):
                logger.warning(
                    "%d of these images had been learnt twice, by models that were merged: one copy of "
                    "each is left. Forget them once more.",
                    left,
                )
            return self._replace(head, after, samples, start)

    def merge(self, other: ImageClassifier) -> ImageClassifier:
        """Add everything that another model has learnt, as if this one had seen its images.

        The other has the same network and expansion, and is not changed.
        """
        theirs = other.snapshot
        with self._changing:
            before = self.snapshot
            require_identity(theirs.identity, before.identity)
            tracker = before.tracker.merged(theirs.tracker)
            head = before.copy_head()
            head.merge(theirs.head)
            self._snapshot = Snapshot.of(head, tracker, before.source)
        return self

    def predict(
        self, sources: Sequence[Source], unknown_above: float | None = UNKNOWN_ABOVE
    ) -> list[str]:
        """Return the likeliest class of each image, or ``"unknown"``; see `classify`."""
        return [p.label for p in self.classify(sources, 1, unknown_above)]

    def classify(
        self,
        sources: Sequence[Source] | Samples,
        top: int = 3,
        unknown_above: float | None = UNKNOWN_ABOVE,
        progress: ImageProgress | None = None,
        *,
        skip_bad: bool = False,
    ) -> list[Prediction]:
        """Return what the model says of each image; images and ``progress`` as in `prepare`.

        Parameters
        ----------
        sources : sequence of images, or Samples
            Each a path, the content of a file, a PIL image or an array.
        top : int, default=3
            Number of classes to name.
        unknown_above : float or None, default=1
            Images of a larger novelty are unknown; with None a class is always named.
        skip_bad : bool, default=False
            Of an image that cannot be read, return a prediction that has an ``error`` and no label,
            instead of refusing all.
        """
        return self._classified(sources, top, unknown_above, progress, skip_bad, None)

    def _classified(
        self,
        sources: Sequence[Source] | Samples,
        top: int,
        unknown_above: float | None,
        progress: ImageProgress | None,
        skip_bad: bool,
        given: Sequence[str] | None,
    ) -> list[Prediction]:
        """Classify images, of which these are said to be the true classes."""
        require_list(sources)
        if top < 1:
            raise InputError(f"top must be at least 1, got {top}.")
        snapshot = self.snapshot
        if isinstance(sources, Samples):
            require_identity(sources.identity, snapshot.identity)
            rows = sources.rows_for(snapshot.head)
            return snapshot.classify(rows, sources.images, top, unknown_above, given)
        found = embed_files(sources, self.embedder, skip_bad, progress)
        names = [name_of(sources[i], i) for i in found.kept]
        kept = None if given is None else [given[i] for i in found.kept]
        answers = snapshot.classify(found.features.numpy(), names, top, unknown_above, kept)
        by_place = dict(zip(found.kept, answers, strict=True))
        return [
            by_place.get(i) or Prediction(name_of(source, i), "", False, (), None, found.bad.get(i))
            for i, source in enumerate(sources)
        ]

    def evaluate(
        self,
        source: Given | Samples,
        labels: str | Sequence[str] | None = None,
        *,
        unknown_above: float | None = UNKNOWN_ABOVE,
        skip_bad: bool = False,
        progress: ImageProgress | None = None,
    ) -> Evaluation:
        """Compare predictions with the true classes of images, given as in `prepare`.

        `Evaluation.to_html` makes a page of it.
        """
        sources: Sequence[Source] | Samples
        if isinstance(source, Samples):
            sources, names = source, source.require_labels().names
        else:
            require_labels(source, labels)
            sources, names = images_and_labels(source, labels)
        classes = list(self.snapshot.totals)
        if not set(names) & set(classes):
            raise InputError(
                f"None of these classes has been learnt: {first_of(sorted(set(names)))}. Known are "
                f"{first_of(classes)}."
            )
        predictions = self._classified(sources, 3, unknown_above, progress, skip_bad, names)
        shown = None if isinstance(sources, Samples) else _thumbnails(sources)
        return Evaluation.of(classes, names, predictions, unknown_above, shown)

    def save(
        self, path: str | os.PathLike[str], *, inference: bool = False, undo: bool | None = None
    ) -> None:
        """Write the model to one file, completely or not at all.

        Parameters
        ----------
        path : str or path-like
        inference : bool, default=False
            Store only what prediction needs: such a model cannot learn, forget, merge or tell what is
            unknown.
        undo : bool, optional
            True keeps the state that the file has now, for `acil undo`; the file is to be locked.
            False removes all that are kept. By default it is kept if earlier ones are: the last of them
            has to be the state before the last change.
        """
        snapshot = self.snapshot
        if undo is False:
            require_access(path)
        elif undo or kept_states(path):
            keep_state(path)
        save_head(snapshot.head, path, inference=inference)
        if undo is False:
            remove_states(path)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        backbone: str | Embedder | None = None,
        inference: bool = False,
        track: bool | None = None,
    ) -> ImageClassifier:
        """Read a model that `save` has written.

        Parameters
        ----------
        backbone : str or Embedder, optional
            The network; by default the one that the model names. A network that is Python code of a user
            (``module:…``) has to be given: a file does not decide which code runs.
        inference : bool, default=False
            Read only what prediction needs.
        track : bool, optional
            Whether to track images from now on; False also drops the hashes of the file with the next
            change. By default as the model has done.
        """
        head = load_head(path, inference=inference)
        stored, learnt = getattr(head, "images_", None) or {}, getattr(head, "backbone_", None) or {}
        for label in head.classes_:
            check_class_name(str(label))
        source = stored.get("source")
        model = cls(backbone or located(source or learnt.get("name"), path))
        model._track = track
        if isinstance(backbone, str):
            source = without_folder(backbone)
            model._embedder = open_network(backbone)
        model._snapshot = Snapshot.of(head, Tracker.from_list(stored.get("tracked", ())), source)
        if backbone is not None:
            model.embedder  # noqa: B018 (a wrong network is told at once)
        return model

    def _samples(
        self,
        source: Given | Samples,
        labels: str | Sequence[str] | None,
        skip_bad: bool,
        progress: ImageProgress | None,
    ) -> Samples:
        if isinstance(source, Samples):
            return source.require_labels()
        require_labels(source, labels)
        return self.prepare(source, labels, skip_bad=skip_bad, progress=progress)

    def _tracker(self, samples: Samples) -> Tracker:
        """Return the tracker for learning these samples; equal rows of other data are no mistake."""
        tracker = Tracker() if self._snapshot is None else self._snapshot.tracker
        if self._track is False or samples.identity is None:
            return Tracker()
        return Tracker.new() if self._track and not tracker.active else tracker

    def _replace(
        self,
        head: ACILClassifier,
        tracker: Tracker,
        samples: Samples,
        start: float,
    ) -> Report:
        before = self._snapshot
        source = before.source if before else without_folder(samples.source)
        self._snapshot = made = Snapshot.of(head, tracker, source)
        seconds, skipped = time.perf_counter() - start, samples.skipped
        return Report(samples.counts, made.totals, skipped, (), (), samples.seconds, seconds)


def _thumbnails(sources: Sequence[Source]) -> Shown:
    """Return what shows each of these images in a report."""
    by_name = {name_of(source, i): source for i, source in enumerate(sources)}
    return lambda name: thumbnail(by_name[name], _THUMBNAIL)
