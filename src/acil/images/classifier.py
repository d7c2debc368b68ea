"""ImageClassifier: a network and a closed-form head, for own images."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from acil.classifier import ACILClassifier
from acil.errors import InputError, NotFittedError
from acil.images.results import (
    Evaluation,
    Given,
    Prediction,
    Report,
    Samples,
    images_and_labels,
    name_of,
)
from acil.images.snapshot import UNKNOWN_ABOVE, Facts, Snapshot, Tracker
from acil.modelfile import describe
from acil.modelfile import load as load_head
from acil.modelfile.schema import names_file
from acil.vision.embedder import Embedder, ImageProgress, Source, embed_files
from acil.vision.listing import check_class_name, first_of
from acil.vision.networks import DEFAULT, open_network


class ImageClassifier:
    """Classifier for image files that learns new classes in seconds and keeps no image.

    Parameters
    ----------
    backbone : str or Embedder, default="efficientnet-lite0"
        The frozen network; see `acil.vision.networks.open_network`.
    expansion_size : int or None, default=None
        Width of the random expansion. The default uses the features as they are: on few images a wider
        model was not better, and its file grows with the square of the width.
    gamma : float or "auto", default="auto"
        Ridge strength γ; ``"auto"`` chooses it from the sums, see `ACILClassifier`.
    track : bool, default=False
        Keep salted hashes of the images and their classes; refuse to learn one twice, and to forget
        one never learnt, or learnt as another class.
    random_state : int, default=0
        Seed of the expansion.
    device : str, default="auto"
        Of the head; networks in ONNX run on the CPU.

    Notes
    -----
    Every change makes a new state beside the old one and then takes its place. So a call that fails
    changes nothing, and predictions in other threads go on with the state they began with.

    Scores are linear discriminants (``scores="discriminant"`` of `ACILClassifier`): classes with few
    images hold their own beside classes with many, and probabilities are calibrated.

    `forget` is exact for the head. The network was trained on other images and never saw these.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from PIL import Image
    >>> from acil import ImageClassifier
    >>> from acil.vision import build
    >>> from acil.vision.embedder import TorchEmbedder
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
        track: bool = False,
        random_state: int = 0,
        device: str = "auto",
    ) -> None:
        self._embedder = backbone if isinstance(backbone, Embedder) else None
        self._source = None if isinstance(backbone, Embedder) else _absolute(backbone)
        #: Replaced as a whole by every change: readers take it once and need no lock.
        self._snapshot: Snapshot | None = None
        self._opening = threading.Lock()
        self._settings = {
            "expansion_size": expansion_size,
            "gamma": gamma,
            "random_state": random_state,
            "device": device,
            "scores": "discriminant",
        }
        self._track = track
        #: One change at a time.
        self._changing = threading.Lock()

    @property
    def embedder(self) -> Embedder:
        """The network, opened at first use and compared with the one that the model was learnt with."""
        with self._opening:
            if self._embedder is None:
                learnt = None if self._snapshot is None else self._snapshot.head.backbone_
                self._embedder = _open_network_of(self.source, learnt)
            if self._snapshot is not None:
                require_identity(self._embedder.identity, self._snapshot.head.backbone_)
            return self._embedder

    @property
    def source(self) -> str | None:
        """The name to open the network by, with its folder; None if it was given as an object."""
        return self._source

    @property
    def snapshot(self) -> Snapshot:
        """The present state. It never changes: `learn`, `forget` and `merge` make a new one."""
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
        progress: ImageProgress | None = None,
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
        sources, names = images_and_labels(source, labels)
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

    def learn(
        self,
        source: Given | Samples,
        labels: str | Sequence[str] | None = None,
        *,
        skip_bad: bool = False,
        progress: ImageProgress | None = None,
    ) -> Report:
        """Learn images of new or known classes, or raise and change nothing.

        Parameters
        ----------
        source, labels, skip_bad, progress
            As in `prepare`; or samples that it returned.
        """
        samples = self._samples(source, labels, skip_bad, progress)
        with self._changing:
            start = time.perf_counter()
            before = self._snapshot
            tracker = Tracker() if before is None else before.tracker
            if self._track and not tracker.active:
                tracker = Tracker.new()
            if tracker.active:
                tracker = tracker.with_added(samples.digests, samples.names)
            if before is None:
                head = ACILClassifier(**self._settings)  # type: ignore[arg-type]
                head.backbone_ = samples.identity
            else:
                require_identity(samples.identity, before.head.backbone_)
                head = before.copy_head()
            samples.teach(head)
            return self._replace(head, tracker, samples, start)

    def forget(
        self,
        source: Given | Samples,
        labels: str | Sequence[str] | None = None,
        *,
        progress: ImageProgress | None = None,
    ) -> Report:
        """Forget images: the head becomes the one that never learnt them; or raise and change nothing.

        Parameters
        ----------
        source, labels, progress
            The same images and labels that were learnt. A class of which none is left disappears.
        """
        samples = self._samples(source, labels, False, progress)
        with self._changing:
            start = time.perf_counter()
            before = self.snapshot
            require_identity(samples.identity, before.head.backbone_)
            if len(samples.labels) >= before.head.n_samples_:
                raise InputError(
                    f"Of {before.head.n_samples_} learnt, {len(samples.labels)} would be forgotten: "
                    "nothing would be left. Delete the model instead."
                )
            tracker, complete = before.tracker, len(before.tracker) == before.head.n_samples_
            tracker.require_learnt(samples.digests, samples.names, complete)
            head = before.copy_head()
            head.forget(samples.features, samples.labels)
            after = tracker.without(samples.digests, samples.names)
            return self._replace(head, after, samples, start)

    def merge(self, other: ImageClassifier) -> ImageClassifier:
        """Add everything that another model has learnt, as if this one had seen its images.

        Parameters
        ----------
        other : ImageClassifier
            With the same network and expansion; it is not changed.
        """
        theirs = other.snapshot
        with self._changing:
            before = self.snapshot
            require_identity(theirs.head.backbone_, before.head.backbone_)
            tracker = before.tracker.merged(theirs.tracker)
            head = before.copy_head()
            head.merge(theirs.head)
            self._snapshot = Snapshot.of(head, tracker, before.facts)
        return self

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
        progress: ImageProgress | None = None,
    ) -> list[Prediction]:
        """Return what the model says of each image.

        Parameters
        ----------
        sources : sequence of str, path-like or bytes
        top : int, default=3
            Number of classes to name.
        unknown_above : float or None, default=1
            Images of a larger novelty are unknown; None calls none so.
        progress : callable, optional
        """
        if isinstance(sources, str | os.PathLike | bytes):
            raise InputError("Give a list of images, even for one.")
        if top < 1:
            raise InputError(f"top must be at least 1, got {top}.")
        snapshot = self.snapshot
        features = embed_files(sources, self.embedder, progress=progress).features.numpy()
        rows = snapshot.classify(features, top, unknown_above)
        return [
            Prediction(name_of(source, number), *row)
            for number, (source, row) in enumerate(zip(sources, rows, strict=True))
        ]

    def evaluate(
        self,
        source: Given,
        labels: str | Sequence[str] | None = None,
        *,
        unknown_above: float | None = UNKNOWN_ABOVE,
        progress: ImageProgress | None = None,
    ) -> Evaluation:
        """Compare predictions with the true classes of images.

        Parameters
        ----------
        source, labels, progress
            As in `prepare`.
        unknown_above : float or None, default=1
        """
        sources, names = images_and_labels(source, labels)
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

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        backbone: str | Embedder | None = None,
        inference: bool = False,
        track: bool = False,
    ) -> ImageClassifier:
        """Read a model that `save` has written.

        Parameters
        ----------
        path : str or path-like
        backbone : str or Embedder, optional
            The network; by default the one that the model names. A network that is Python code of a user
            (``module:…``) has to be given: a file does not decide which code runs.
        inference : bool, default=False
            Read only what prediction needs.
        track : bool, default=False
            Track images from now on, also where the model has not done so.
        """
        return cls.from_head(load_head(path, inference=inference), backbone, track, os.fspath(path))

    @classmethod
    def from_head(
        cls, head: ACILClassifier, backbone: str | Embedder | None, track: bool, name: str
    ) -> ImageClassifier:
        """Return the model of a head that was learnt from images.

        Parameters
        ----------
        head : ACILClassifier
            Nobody else's from now on.
        backbone, track
            As in `load`.
        name : str
            What to call the model where it is refused.
        """
        facts = _facts_of(getattr(head, "images_", None), getattr(head, "backbone_", None), name)
        for label in head.classes_:
            check_class_name(str(label))
        model = cls(backbone or _located(facts.source or head.backbone_.get("name"), name), track=track)
        if isinstance(backbone, str):
            facts = replace(facts, source=_without_folder(backbone))
        model._snapshot = Snapshot.of(head, Tracker.from_list(head.images_.get("tracked")), facts)
        if isinstance(backbone, str):
            model._embedder = open_network(backbone)
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
            return source
        return self.prepare(source, labels, skip_bad=skip_bad, progress=progress)

    def _replace(self, head: ACILClassifier, tracker: Tracker, samples: Samples, start: float) -> Report:
        before = self._snapshot
        facts = Facts(_without_folder(self._source)) if before is None else before.facts
        made = Snapshot.of(head, tracker, facts)
        self._snapshot = made
        return Report(
            samples.counts, made.totals, samples.skipped, samples.seconds, time.perf_counter() - start
        )


def _file_of(network: str) -> tuple[str, Path]:
    """Return what comes before the path in the name of a network, and the path."""
    kind = "onnx:" if network.startswith("onnx:") else ""
    return kind, Path(network.removeprefix(kind))


def _absolute(network: str) -> str:
    """Return the name of a network with an absolute path, so that it works from any folder."""
    kind, path = _file_of(network)
    return f"{kind}{path.absolute()}" if names_file(network) else network


def _without_folder(network: str | None) -> str | None:
    """Return the name of a network as a model file has it: no file tells where others lie."""
    if network is None or not names_file(network):
        return network
    kind, path = _file_of(network)
    return f"{kind}{path.name}"


def _located(stored: str | None, model: str | os.PathLike[str]) -> str:
    """Return the name of a network with the place of its file: beside the model, or else here."""
    name = _without_folder(stored) or DEFAULT
    if names_file(name):
        kind, path = _file_of(name)
        beside = Path(model).absolute().parent / path
        return f"{kind}{beside if beside.is_file() else path.absolute()}"
    return name


def network_of(path: str | os.PathLike[str], backbone: str | None = None) -> tuple[Embedder, str | None]:
    """Open the network of a model file, of which only the header is read.

    Parameters
    ----------
    path : str or path-like
    backbone : str, optional
        As in `ImageClassifier.load`.

    Returns
    -------
    embedder : Embedder
        The network that the model was learnt with.
    source : str or None
        The name that it was opened by.
    """
    header = describe(path)
    facts = _facts_of(header["images"], header["backbone"], os.fspath(path))
    learnt = header["backbone"]
    source = backbone or _located(facts.source or learnt.get("name"), path)
    embedder = _open_network_of(source, learnt) if backbone is None else open_network(backbone)
    require_identity(embedder.identity, learnt)
    return embedder, source


def _facts_of(stored: Any, identity: Any, name: str) -> Facts:
    """Return how a model was made, or raise if it was not learnt from images."""
    if stored is None or identity is None:
        raise InputError(
            f"{name} was learnt from features, not from images: it names no network. Use acil.load."
        )
    return Facts.read(stored)


def _open_network_of(source: str | None, learnt: Mapping[str, Any] | None) -> Embedder:
    """Open the network that a user, or a model file, names; ``learnt`` is its identity in a model."""
    spec, stored = source or DEFAULT, learnt is not None
    if stored and spec.startswith("module:"):
        raise InputError(
            f"This model was learnt with the network {spec!r}, which is Python code. A file does not "
            "decide which code runs: name the network yourself (--backbone)."
        )
    try:
        if names_file(spec) and not _file_of(spec)[1].is_file():
            raise InputError(f"There is no file {_file_of(spec)[1]}.")
        return open_network(spec)
    except InputError as error:
        if not stored:
            raise
        raise InputError(
            f"The network of this model cannot be opened: {error} If it lies elsewhere now, name it "
            "(--backbone)."
        ) from error


def require_identity(given: Mapping[str, Any], learnt: Mapping[str, Any]) -> None:
    """Raise unless two identities are those of the same network.

    Parameters
    ----------
    given, learnt : mapping
        See `Embedder.identity`.
    """
    if given == learnt:
        return
    differing = [
        key
        for key in ("name", "weights", "preprocessing", "engine")
        if given.get(key) != learnt.get(key)
    ]
    shown = "; ".join(f"{key}: {given.get(key)!r} instead of {learnt.get(key)!r}" for key in differing)
    raise InputError(
        f"The features come from another network than those this model has learnt ({shown}). Use the "
        f"same network ({learnt.get('name')!r}, run by {learnt.get('engine')!r})."
    )
