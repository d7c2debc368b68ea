"""What classifiers of images and of texts share: a frozen network, and a closed-form head that grows."""

from __future__ import annotations

import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NoReturn, Self

import numpy as np

from acil.core.classifier import ACILClassifier
from acil.core.files import load as load_head
from acil.core.files import save as save_head
from acil.core.files.header import in_order
from acil.encoders.images.embedder import Embedded
from acil.encoders.images.listing import check_class_name, first_of
from acil.encoders.samples import Samples
from acil.encoders.stored import FromFeaturesError, absolute, located, require_identity, without_folder
from acil.errors import InputError, NotFittedError
from acil.growing.history import keep_state, kept_states, remove_states, require_access
from acil.growing.results import Evaluation, Prediction, Report, Shown
from acil.growing.snapshot import UNKNOWN_ABOVE, Snapshot, Tracker
from acil.privacy import privatize

logger = logging.getLogger(__name__)

#: Called with the number of samples done and the number of all.
Progress = Callable[[int, int], None]


class Classifier(ABC):
    """A network that turns sources (images, or texts) into features, and what was learnt of these.

    Every change makes a new state beside the old one and then takes its place. So a call that fails
    changes nothing, and predictions in other threads go on with the state they began with.

    Parameters
    ----------
    network : str or object
        Name of the network, or the network itself.
    track : bool
        Whether to notice what comes again.
    **settings
        Parameters of the head, an `ACILClassifier` of discriminants.
    """

    #: What one sample is called, and what a model file says is in front of the head.
    thing: ClassVar[str]
    encoder: ClassVar[str]
    #: What notices samples that come again.
    tracking: ClassVar[type[Tracker]] = Tracker

    def __init__(self, network: Any, track: bool, **settings: Any) -> None:
        named = isinstance(network, str)
        self._network = None if named else network
        #: The name to open the network by, with its folder; None if it was given as an object.
        self.source = absolute(network) if named else None
        #: Replaced as a whole by every change: readers take it once and need no lock.
        self._snapshot: Snapshot | None = None
        self._opening = threading.Lock()
        self._settings = {**settings, "scores": "discriminant", "standardize": False}
        self._track: bool | None = track
        #: One change at a time.
        self._changing = threading.Lock()

    @abstractmethod
    def _open(self, source: str, learnt: Mapping[str, Any] | None) -> Any:
        """Open the network of this name; ``learnt`` is its identity in the model, if any."""

    @abstractmethod
    def _given(
        self, source: Any, labels: str | Sequence[str] | None, skip_bad: bool
    ) -> tuple[Sequence[Any], list[str], list[str]]:
        """Return samples, the class of each, "" without labels, and what is said of those left out."""

    @abstractmethod
    def _require_list(self, sources: Any) -> None:
        """Raise if one sample is given instead of a list."""

    @abstractmethod
    def _require_labels(self, source: Any, labels: object) -> None:
        """Raise if samples are given without labels, and nothing else tells them."""

    @abstractmethod
    def _embedded(self, sources: Sequence[Any], skip_bad: bool, progress: Progress | None) -> Embedded:
        """Return the features of samples."""

    @abstractmethod
    def _called(self, source: Any, number: int) -> str:
        """Return what a sample is called in results."""

    @abstractmethod
    def _shown(self, sources: Sequence[Any]) -> Shown:
        """Return what shows each of these samples in a report."""

    def _remarks(self, samples: Samples) -> dict[str, Any]:
        """Return what else a `Report` says of samples that are learnt."""
        return {}

    @property
    def embedder(self) -> Any:
        """The network, opened at first use and compared with the one that the model was learnt with."""
        with self._opening:
            snapshot = self._snapshot
            learnt = None if snapshot is None else snapshot.identity
            if snapshot is not None and learnt is None:
                raise FromFeaturesError("This model")
            if self._network is None:
                self._network = self._open(str(self.source), learnt)
            if learnt is not None and not self._network.predicts_for(learnt):
                require_identity(self._network.identity, learnt)
            return self._network

    @property
    def snapshot(self) -> Snapshot:
        """The present state. It never changes: `learn`, `forget` and `merge` make a new one."""
        if self._snapshot is None:
            raise NotFittedError(f"This model has not learnt any {self.thing} yet. Call 'learn' first.")
        return self._snapshot

    @property
    def classes_(self) -> list[str]:
        """Names of the classes, sorted."""
        return list(map(str, self.snapshot.head.classes_.tolist()))

    @property
    def counts_(self) -> dict[str, int]:
        """Number of samples learnt of each class."""
        return self.snapshot.totals

    def __repr__(self) -> str:
        snapshot, kind = self._snapshot, type(self).__name__
        if snapshot is None:
            return f"<{kind} of {self.source or self.embedder.name}: nothing learnt>"
        network = "features" if snapshot.identity is None else snapshot.identity["name"]
        n = sum(snapshot.totals.values())
        return f"<{kind} of {network}: {len(snapshot.totals)} classes from {n} samples>"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: networks cannot be."""
        kind = type(self).__name__
        raise TypeError(f"This {kind} cannot be pickled or copied. Use save and {kind}.load.")

    def prepare(
        self,
        source: Any,
        labels: str | Sequence[str] | None = None,
        *,
        skip_bad: bool = False,
        progress: Progress | None = None,
    ) -> Samples:
        """Turn what is given into samples, which other methods take; the model is not changed.

        Parameters
        ----------
        source
            As the class says.
        labels : str or sequence of str, optional
            Class of all, or of each. Samples without labels can only be classified.
        skip_bad : bool, default=False
            Leave out what cannot be read, instead of refusing all.
        progress : callable, optional
            Called with the number of samples done and the number of all.
        """
        start = time.perf_counter()
        sources, names, skipped = self._given(source, labels, skip_bad)
        embedder = self.embedder
        embedded = self._embedded(sources, skip_bad, progress)
        return Samples(
            embedded.features.numpy(),
            np.array([names[i] for i in embedded.kept], dtype=np.str_),
            tuple(embedded.digests),
            tuple(self._called(sources[i], i) for i in embedded.kept),
            (*skipped, *embedded.bad.values()),
            embedder.identity,
            self.source,
            time.perf_counter() - start,
            encoder=self.encoder,
        )

    def learn(
        self,
        source: Any,
        labels: str | Sequence[str] | None = None,
        *,
        skip_bad: bool = False,
        progress: Progress | None = None,
    ) -> Report:
        """Learn samples of new or known classes, or raise and change nothing.

        Takes what `prepare` takes, or samples that it returned. A model that tracks its images leaves
        out those that it has learnt already, under any class: to correct a class, forget first.
        """
        samples = self._samples(source, labels, skip_bad, progress)
        if samples.identity is not None and samples.encoder != self.encoder:
            raise InputError(
                f"A {type(self).__name__} takes {self.thing}s, and these are features of "
                f"{samples.encoder}. Learn them with the classifier of these."
            )
        with self._changing:
            start = time.perf_counter()
            before, tracker = self._snapshot, self._tracker(samples)
            if before is not None:
                require_identity(samples.identity, before.identity)
            places = tracker.repeated(samples.digests)
            repeated = tuple(samples.images[i] for i in places)
            all_samples, samples = samples, samples.without(places)
            learnt_images = dict(zip(samples.digests, samples.images, strict=True))
            pairs = ((all_samples.images[i], learnt_images.get(all_samples.digests[i])) for i in places)
            twins = tuple((image, twin) for image, twin in pairs if twin is not None)
            tracker = tracker.with_added(samples.digests, samples.names)
            misplaced = tuple(
                all_samples.images[i] for i in tracker.misplaced(all_samples.digests, all_samples.names)
            )
            if before is not None and not samples.digests:
                seconds = samples.seconds
                return Report({}, before.totals, samples.skipped, repeated, misplaced, seconds)
            if before is None:
                head = ACILClassifier(**self._settings)
                if samples.identity is not None:
                    head.backbone_, head.encoder_ = samples.identity, self.encoder
            else:
                head = before.copy_head()
            head.partial_fit(samples.rows_for(head), samples.labels_for(head))
            if before is None:
                if samples.columns is not None:
                    head.feature_names_in_ = np.array(samples.columns, dtype=object)
                self.source = samples.source
            report = self._replace(head, tracker, samples, start)
            remarks = self._remarks(samples)
            return replace(report, repeated=repeated, misplaced=misplaced, twins=twins, **remarks)

    def forget(
        self,
        source: Any,
        labels: str | Sequence[str] | None = None,
        *,
        progress: Progress | None = None,
    ) -> Report:
        """Forget samples: the head becomes the one that never learnt them; or raise and change nothing.

        Give the same samples and labels that were learnt, as in `prepare`. A class of which none is left
        disappears.
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
            if remaining := after.known(samples.digests):
                logger.warning(
                    "%d of these %ss had been learnt twice, by models that were merged: one copy of "
                    "each is left. Forget them once more.",
                    *(remaining, self.thing),
                )
            return self._replace(head, after, samples, start)

    def merge(self, other: Classifier) -> Self:
        """Add everything that another model has learnt, as if this one had seen its samples.

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

    def rename_classes(self, names: Mapping[str, str]) -> Report:
        """Give classes other names: the new one of each that gets one.

        Nothing else changes. A name that another class keeps is refused: see `merge_classes`.
        """
        called = Counter(names.get(name, name) for name in self.snapshot.totals)
        if twice := [name for name, number in called.items() if number > 1]:
            raise InputError(
                f"Several classes would be called {first_of(twice)}. Give another name, or make them "
                "one class (merge_classes, acil merge-classes)."
            )
        return self._renamed(names)

    def merge_classes(self, groups: Mapping[str, str]) -> Report:
        """Make one class of several: the name of the new class for each that becomes part of it.

        Exact, as if all samples had been learnt under that name. A class that has the name already
        becomes part of it, too.
        """
        return self._renamed(groups)

    def _renamed(self, names: Mapping[str, str]) -> Report:
        with self._changing:
            start = time.perf_counter()
            before = self.snapshot
            names = {old: new for old, new in names.items() if old != new}
            if not names:
                return Report({}, before.totals)
            labels = {str(label): label for label in before.head.classes_.tolist()}
            unknown = [name for name in names if name not in labels]
            if unknown:
                raise InputError(
                    f"This model has no class {first_of(unknown)}. Known are "
                    f"{first_of(list(before.totals))}."
                )
            if before.identity is not None:
                for name in names.values():
                    check_class_name(name)
            head = before.copy_head()
            head.rename_classes({labels[old]: self._label(new) for old, new in names.items()})
            tracker = before.tracker.renamed(names)
            self._snapshot = made = Snapshot.of(head, tracker, before.source)
            counts = {name: made.totals[name] for name in in_order({*names.values()})}
            return Report(counts, made.totals, head_seconds=time.perf_counter() - start)

    def _label(self, name: str) -> Any:
        """Return a name as a label of the kind that the head has: as a number, if these are numbers."""
        kind = self.snapshot.head.classes_.dtype
        try:
            return np.array([name]).astype(kind)[0].item() if kind.kind in "if" else name
        except ValueError:
            return name  # which the head refuses in words

    def release(self, epsilon: float, delta: float) -> ACILClassifier:
        """Return a differentially private release, of which this model then knows.

        See `acil.privacy.privatize`.
        """
        with self._changing:
            before = self.snapshot
            head = before.copy_head()
            made = privatize(head, epsilon, delta)
            self._snapshot = Snapshot.of(head, before.tracker, before.source)
        return made

    def predict(self, sources: Sequence[Any], unknown_above: float | None = UNKNOWN_ABOVE) -> list[str]:
        """Return the likeliest class of each sample, or ``"unknown"``; see `classify`."""
        return [p.label for p in self.classify(sources, 1, unknown_above)]

    def classify(
        self,
        sources: Sequence[Any] | Samples,
        top: int = 3,
        unknown_above: float | None = UNKNOWN_ABOVE,
        progress: Progress | None = None,
        *,
        skip_bad: bool = False,
    ) -> list[Prediction]:
        """Return what the model says of each sample.

        Parameters
        ----------
        sources : sequence, or Samples
            A list of what `prepare` takes; ``progress`` as there.
        top : int, default=3
            Number of classes to name.
        unknown_above : float or None, default=1
            Samples of a larger novelty are unknown; with None a class is always named.
        skip_bad : bool, default=False
            Of a sample that cannot be read, return a prediction that has an ``error`` and no label,
            instead of refusing all.
        """
        return self._classified(sources, top, unknown_above, progress, skip_bad, None)

    def _classified(
        self,
        sources: Sequence[Any] | Samples,
        top: int,
        unknown_above: float | None,
        progress: Progress | None,
        skip_bad: bool,
        names_given: Sequence[str] | None,
    ) -> list[Prediction]:
        """Classify samples, of which these are said to be the true classes."""
        if top < 1:
            raise InputError(f"top must be at least 1, got {top}.")
        snapshot = self.snapshot
        if isinstance(sources, Samples):
            require_identity(sources.identity, snapshot.identity)
            rows = sources.rows_for(snapshot.head)
            return snapshot.classify(rows, sources.images, top, unknown_above, names_given)
        self._require_list(sources)
        # First, because it says what is wrong with the network
        self.embedder  # noqa: B018
        embedded = self._embedded(sources, skip_bad, progress)
        names = [self._called(sources[i], i) for i in embedded.kept]
        readable_names = None if names_given is None else [names_given[i] for i in embedded.kept]
        answers = snapshot.classify(embedded.features.numpy(), names, top, unknown_above, readable_names)
        by_place = dict(zip(embedded.kept, answers, strict=True))
        return [
            by_place.get(i)
            or Prediction(
                *(self._called(source, i), "", False, (), None, embedded.bad.get(i)), thing=self.thing
            )
            for i, source in enumerate(sources)
        ]

    def suggest(
        self,
        sources: Sequence[Any] | Samples,
        number: int = 50,
        progress: Progress | None = None,
        *,
        skip_bad: bool = False,
    ) -> list[Prediction]:
        """Return what the model says of the samples whose label would teach it most, the best first.

        These are the samples that are nearest to the border between two classes. A model of one class
        has no border: then they are the most novel ones. What has been learnt already is left out.

        Parameters
        ----------
        sources : sequence, or Samples
            Samples without labels, as in `classify`.
        number : int, default=50
            Number of samples, at most. Learn their labels before asking for more.
        skip_bad : bool, default=False
            Leave out what cannot be read, instead of refusing all.
        """
        if number < 1:
            raise InputError(f"number must be at least 1, got {number}.")
        snapshot = self.snapshot
        if not isinstance(sources, Samples):
            self._require_list(sources)
            sources = self.prepare(sources, skip_bad=skip_bad, progress=progress)
        require_identity(sources.identity, snapshot.identity)
        return snapshot.suggest(sources)[:number]

    def evaluate(
        self,
        source: Any,
        labels: str | Sequence[str] | None = None,
        *,
        unknown_above: float | None = UNKNOWN_ABOVE,
        skip_bad: bool = False,
        progress: Progress | None = None,
    ) -> Evaluation:
        """Compare predictions with the true classes of samples, given as in `prepare`.

        `Evaluation.to_html` makes a page of it.
        """
        sources: Sequence[Any] | Samples
        skipped: Sequence[str] = ()
        if isinstance(source, Samples):
            sources, names = source, source.require_labels().names
        else:
            self._require_labels(source, labels)
            sources, names, skipped = self._given(source, labels, skip_bad)
        classes = list(self.snapshot.totals)
        if not set(names) & set(classes):
            raise InputError(
                f"None of these classes has been learnt: {first_of(sorted(set(names)))}. Known are "
                f"{first_of(classes)}."
            )
        predictions = self._classified(sources, 3, unknown_above, progress, skip_bad, names)
        shown = None if isinstance(sources, Samples) else self._shown(sources)
        return Evaluation.of(classes, names, predictions, unknown_above, shown, skipped)

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
            True keeps the state that the file has now, for `acil undo`; the file is to be locked, as
            `ModelFile` does. False removes all that are kept. By default it is kept if earlier ones are:
            the last of them has to be the state before the last change.
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
        backbone: Any = None,
        inference: bool = False,
        track: bool | None = None,
    ) -> Self:
        """Read a model that `save` has written.

        Parameters
        ----------
        backbone : str or object, optional
            The network; by default the one that the model names. A network that is Python code of a user
            (``module:…``) has to be given: a file does not decide which code runs.
        inference : bool, default=False
            Read only what prediction needs.
        track : bool, optional
            Whether to track samples from now on; False also drops the hashes of the file with the next
            change. By default as the model has done.
        """
        return cls.of_head(load_head(path, inference=inference), path, backbone=backbone, track=track)

    @classmethod
    def of_head(
        cls,
        head: ACILClassifier,
        path: str | os.PathLike[str],
        *,
        backbone: Any = None,
        track: bool | None = None,
    ) -> Self:
        """Return the model of a head that `acil.load` has read from this file; see `load`."""
        stored, learnt = getattr(head, "images_", None) or {}, getattr(head, "backbone_", None) or {}
        if stored and head.encoder_ != cls.encoder:
            other = "TextClassifier" if head.encoder_ == "text" else "ImageClassifier"
            raise InputError(
                f"{os.fspath(path)} is no model of {cls.thing}s: it was learnt from {head.encoder_}. "
                f"Open it with {other}.load."
            )
        # Labels of features may be anything; those of images and texts name folders.
        for label in head.classes_ if stored else ():
            check_class_name(str(label))
        source = stored.get("source")
        model = cls(backbone or located(source or learnt.get("name"), path))  # type: ignore[call-arg]
        model._track = track
        if isinstance(backbone, str):
            source = without_folder(backbone)
            model._network = model._open(str(model.source), None)
        tracker = cls.tracking.from_list(stored.get("tracked", ()))
        model._snapshot = Snapshot.of(head, tracker, source)
        if backbone is not None:
            model.embedder  # noqa: B018 (a wrong network is told at once)
        return model

    def _samples(
        self,
        source: Any,
        labels: str | Sequence[str] | None,
        skip_bad: bool,
        progress: Progress | None,
    ) -> Samples:
        if isinstance(source, Samples):
            return source.require_labels()
        self._require_labels(source, labels)
        return self.prepare(source, labels, skip_bad=skip_bad, progress=progress)

    def _tracker(self, samples: Samples) -> Tracker:
        """Return the tracker for learning these samples; equal rows of other data are no mistake."""
        tracker = self.tracking() if self._snapshot is None else self._snapshot.tracker
        if self._track is False or samples.identity is None:
            return self.tracking()
        return self.tracking.new() if self._track and not tracker.active else tracker

    def _replace(self, head: ACILClassifier, tracker: Tracker, samples: Samples, start: float) -> Report:
        before = self._snapshot
        source = before.source if before else without_folder(samples.source)
        self._snapshot = made = Snapshot.of(head, tracker, source)
        seconds = time.perf_counter() - start
        return Report(
            samples.counts,
            made.totals,
            samples.skipped,
            feature_seconds=samples.seconds,
            head_seconds=seconds,
        )
