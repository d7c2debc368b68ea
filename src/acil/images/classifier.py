"""ImageClassifier: a network and a closed-form head, for own images."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from acil.classifier import ACILClassifier
from acil.errors import InputError
from acil.images.inputs import Given, require_identity, settled
from acil.images.reader import ImageReader
from acil.images.results import Report, Samples
from acil.images.snapshot import Facts, Snapshot
from acil.images.tracking import Tracker
from acil.storage import load as load_head
from acil.vision.embedder import Embedder, Progress
from acil.vision.listing import check_class_name
from acil.vision.networks import DEFAULT, open_network


class ImageClassifier(ImageReader):
    """Classifier for image files that learns new classes in seconds and keeps no image.

    Parameters
    ----------
    backbone : str or Embedder, default="efficientnet-lite0"
        The frozen network; see `acil.vision.networks.open_network`.
    expansion_size : int or None, default=None
        Width of the random expansion. The default uses the features as they are: on few images a wider
        model was not better, and its file grows with the square of the width.
    gamma : float, default=0.1
        Ridge strength, in units of the mean squared length of a sample: so it suits every network.
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
        gamma: float = 0.1,
        track: bool = False,
        random_state: int = 0,
        device: str = "auto",
    ) -> None:
        super().__init__(backbone)
        self._gamma = gamma
        self._settings = {
            "expansion_size": expansion_size,
            "gamma": gamma,
            "random_state": random_state,
            "device": device,
        }
        self._track = track
        #: One change at a time.
        self._changing = threading.Lock()

    def learn(
        self,
        source: Given | Samples,
        labels: str | Sequence[str] | None = None,
        *,
        skip_bad: bool = False,
        progress: Progress | None = None,
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
                head = before.twin()
            samples.teach(head)
            return self._replace(head, tracker, samples, start)

    def forget(
        self,
        source: Given | Samples,
        labels: str | Sequence[str] | None = None,
        *,
        progress: Progress | None = None,
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
            head = before.twin()
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
            head = before.twin()
            head.merge(theirs.head)
            head.set_gamma(before.facts.gamma, relative=True)
            self._snapshot = Snapshot.of(head, tracker, before.facts)
        return self

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
        return cls.around(load_head(path, inference=inference), backbone, track, os.fspath(path))

    @classmethod
    def around(
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
        stored = getattr(head, "images_", None)
        if stored is None or getattr(head, "backbone_", None) is None:
            raise InputError(
                f"{name} was learnt from features, not from images: it names no network. Use acil.load."
            )
        for label in head.classes_:
            check_class_name(str(label))
        facts = Facts.read(stored)
        if isinstance(backbone, str):
            facts = replace(facts, source=settled(backbone))
        model = cls(backbone if isinstance(backbone, Embedder) else DEFAULT, track=track)
        model._snapshot = Snapshot.of(head, Tracker.from_list(stored.get("tracked")), facts)
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
        progress: Progress | None,
    ) -> Samples:
        if isinstance(source, Samples):
            return source
        return self.prepare(source, labels, skip_bad=skip_bad, progress=progress)

    def _replace(self, head: ACILClassifier, tracker: Tracker, samples: Samples, start: float) -> Report:
        before = self._snapshot
        facts = Facts(self._source, self._gamma) if before is None else before.facts
        head.set_gamma(facts.gamma, relative=True)
        made = Snapshot.of(head, tracker, facts)
        self._snapshot = made
        return Report(
            samples.counts, made.totals, samples.skipped, samples.seconds, time.perf_counter() - start
        )
