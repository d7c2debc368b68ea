"""A model file that changes: the one way, for commands, the service and Python.

A change locks the file, reads it, makes the new state beside the old one, asks the gate, keeps the old
state for undo, saves, and writes a receipt of what was forgotten. Whatever fails before the new file is
in place changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from acil.core.classifier import ACILClassifier, adopt, learnt_of
from acil.core.files import describe, load
from acil.core.files.writing import locked
from acil.encoders.images.embedder import Embedder
from acil.encoders.images.listing import first_of
from acil.encoders.samples import Samples
from acil.encoders.stored import network_of
from acil.encoders.text import TextEncoder
from acil.errors import InputError, ModelFileError
from acil.growing.classifier import Classifier, Progress
from acil.growing.history import Entry, history_of, kept_states, record, remove_states, undo
from acil.growing.images import ImageClassifier
from acil.growing.results import Report
from acil.growing.snapshot import Snapshot
from acil.growing.texts import TextClassifier
from acil.privacy.receipts import file_hash, receipts_file, write_receipt

#: Identifies one version of a file.
Signature = tuple[int, int, int, int]
#: Called before anything is saved, with the states before (None if the change makes the model) and
#: after: raises to refuse the change, or returns what it has measured. See `acil.growing.gate`.
GateLike = Callable[[Snapshot | None, Snapshot], Mapping[str, Any] | None]

#: Changes that a gate has no say in: what held-out samples are called, or other files, change with them.
_UNGATED = ("rename", "merge-classes", "release", "learn-anew")


@dataclass(frozen=True)
class Change:
    """What a change of a model file did."""

    action: str
    """Such as "learn"."""
    report: Report
    before: Snapshot | None
    """The state that was changed; None if the model was made."""
    after: Snapshot
    """The state of the file now; that before, if there was nothing to change."""
    earlier: Signature | None
    """Of the file before; None if there was none."""
    signature: Signature | None
    """Of the file now."""
    measured: Mapping[str, Any] | None = None
    """What the gate has measured."""
    receipt: tuple[Path, dict[str, Any]] | None = None
    """Of what was forgotten: the file of receipts, and what was added to it."""


class ModelFile:
    r"""A model file, and the one way to change it.

    Parameters
    ----------
    path : str or path-like
        The file; the first `learn` makes it, if ``new`` says how.
    new : callable, optional
        Returns a classifier that has learnt nothing, for a file that is not there yet.
    backbone : str, Embedder or TextEncoder, optional
        The network; by default the one that the file names. See `ImageClassifier.load`.
    track : bool, optional
        Whether to track samples from now on; by default as the model has done.
    undo : bool, default=True
        Keep the state before a change, or remove all that are kept.
    gate : callable, optional
        Gets the states before and after a change, and raises an error to refuse it, such as a `Gate`;
        also later, as the attribute ``gate``.
    timeout : float, optional
        Seconds to wait for others that change the file; by default as long as it takes.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> import numpy as np
    >>> from acil import ACILClassifier, save
    >>> from acil.encoders.tables import read_features
    >>> from acil.growing import ModelFile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "m.acil")
    >>> save(ACILClassifier(expansion_size=8).fit(np.eye(4), ["cat", "cat", "dog", "owl"]), path)
    >>> table = path.with_suffix(".csv")
    >>> _ = table.write_text("a,b,c,d,label\n0,0,0,1,owl\n")
    >>> file = ModelFile(path)
    >>> file.forget(read_features(table)).after.totals
    {'cat': 2, 'dog': 1}
    >>> _ = file.undo()
    >>> file.read().counts_
    {'cat': 2, 'dog': 1, 'owl': 1}
    >>> folder.cleanup()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        new: Callable[[], Classifier] | None = None,
        backbone: str | Embedder | TextEncoder | None = None,
        track: bool | None = None,
        undo: bool = True,
        gate: GateLike | None = None,
        timeout: float | None = None,
    ) -> None:
        self.path = Path(path)
        self._new, self._backbone, self._track = new, backbone, track
        self._undo, self._timeout = undo, timeout
        self.gate = gate

    @property
    def undo_left(self) -> int:
        """How many of the last changes can be taken back."""
        return len(kept_states(self.path)) if self.path.exists() else 0

    def read(self, path: str | os.PathLike[str] | None = None) -> Classifier:
        """Return the model as the file has it now; or that of another file, opened alike."""
        place = self.path if path is None else path
        try:
            return load_classifier(place, backbone=self._backbone, track=self._track)
        except ModelFileError:
            raise
        except InputError as error:  # of another network: the file is not the one that is meant
            raise ModelFileError(str(error)) from error

    def prepare(
        self,
        source: Any,
        labels: str | Sequence[str] | None = None,
        *,
        skip_bad: bool = False,
        progress: Progress | None = None,
    ) -> Samples:
        """Turn images or texts into samples for this model, as `Classifier.prepare`; needs no lock."""
        if isinstance(source, Samples):
            return source
        if self._new is not None and not self.path.exists():
            reader = self._new()
        else:
            reader = reader_of(self.path, self._backbone)
        samples = reader.prepare(source, labels, skip_bad=skip_bad, progress=progress)
        self._backbone = reader.embedder
        return samples

    def learn(self, source: Any, labels: str | Sequence[str] | None = None) -> Change:
        """Learn samples of new or known classes; see `Classifier.learn`."""
        samples = self.prepare(source, labels)
        return self.change("learn", lambda model: model.learn(samples))

    def learn_anew(self, samples: Samples) -> Change:
        """Replace the model by one that ``new`` makes and that learns these samples, of any network.

        For another network: features of two cannot be mixed. The samples have to be at least as many of
        each class as the file has learnt, or nothing is changed. The gate is not asked.
        """
        if self._new is None:
            raise InputError("To learn anew, say how a model is made (new=…).")
        with locked(self.path, self._timeout):
            old, model = load_classifier(self.path).snapshot, self._new()
            given = samples.require_labels().counts
            lost = {name: n for name, n in old.totals.items() if given.get(name, 0) < n}
            if lost:
                some = first_of([f"{name}: {given.get(name, 0)} of {n}" for name, n in lost.items()])
                network = (old.identity or {}).get("name")
                raise InputError(
                    f"{self.path.name} was learnt with another network ({network!r}). Learning it anew "
                    f"needs all its samples, and too few are given ({some}). Give all the files that "
                    "were learnt, or learn with the network of the model."
                )
            report = model.learn(samples)
            _inherit(model.snapshot.head, old.head)
            return self._saved("learn-anew", model, old, report, self._undo)

    def forget(self, source: Any, labels: str | Sequence[str] | None = None) -> Change:
        """Forget samples; see `Classifier.forget`."""
        samples = self.prepare(source, labels)
        return self.change("forget", lambda model: model.forget(samples))

    def rename_classes(self, names: Mapping[str, str]) -> Change:
        """Give classes other names; see `Classifier.rename_classes`. The gate is not asked."""
        return self.change("rename", lambda model: model.rename_classes(names))

    def merge_classes(self, groups: Mapping[str, str]) -> Change:
        """Make one class of several; see `Classifier.merge_classes`. The gate is not asked."""
        return self.change("merge-classes", lambda model: model.merge_classes(groups))

    def change(self, action: str, work: Callable[[Classifier], Report]) -> Change:
        """Change the model that the file has: read, work on it, save it.

        ``work`` changes the model or leaves it as it is; if it raises, nothing is changed.
        """
        with locked(self.path, self._timeout):
            return self._changed(action, work, self._undo)

    def merge(self, models: Sequence[str | os.PathLike[str]], *, force: bool = False) -> Change:
        """Write what several model files have learnt together; the settings of the first stay.

        With ``force`` a file that is there is replaced, and can be had again by `undo`.
        """
        with locked(self.path, self._timeout):
            if self.path.exists() and not force:
                raise InputError(f"{self.path} exists. Replace it with --force, or give another name.")
            merged, *others = [self._mergeable(path) for path in models]
            before = merged.snapshot
            for other in others:
                merged.merge(other)
            known = before.totals
            gained = {name: count - known.get(name, 0) for name, count in merged.counts_.items()}
            report = Report({name: count for name, count in gained.items() if count}, merged.counts_)
            return self._saved("merge", merged, before, report, self._undo)

    def release(self, epsilon: float, delta: float) -> ACILClassifier:
        """Return a differentially private release of the model, of which the file then knows.

        Earlier states of the file are removed: they do not know of it.
        """
        made: list[ACILClassifier] = []

        def work(model: Classifier) -> Report:
            made.append(model.release(epsilon, delta))
            return Report({}, model.counts_)

        with locked(self.path, self._timeout):
            self._changed("release", work, undo=False)
        return made[0]

    def history(self) -> list[Entry]:
        """Return the changes that the file remembers, the oldest first."""
        return history_of(self.path)

    def undo(
        self, accept: Callable[[Path], Any] | None = None, to: int | None = None
    ) -> tuple[Any, Signature | None]:
        """Put an earlier state that is kept in the place of the file, or raise and change nothing.

        That is the last one, or the one after the change of number ``to`` in the history; what was
        changed since is gone. ``accept`` gets the file of that state first, and may refuse it by an
        error. Return what it returned, and the signature of the file.
        """
        with locked(self.path, self._timeout):
            states = kept_states(self.path)
            if not states:
                raise InputError(
                    f"No earlier state of {self.path.name} is kept: there is nothing to undo."
                )
            state = states[-1] if to is None else self._state_after(to)
            accepted = None if accept is None else accept(state)
            undo(self.path, state)
            return accepted, signature_of(self.path)

    def states(self) -> dict[Path, int | None]:
        """Return the files of the earlier states that are kept, the oldest first.

        With each the number of the last change before it, None if that was not recorded.
        """
        numbers: dict[Path, int | None] = {}
        for state in kept_states(self.path):
            numbers[state] = None
            with suppress(ModelFileError):  # damaged: `undo` says so
                numbers[state] = _last(history_of(state))
        return numbers

    def _state_after(self, number: int) -> Path:
        """Return the kept state after the change of a number."""
        states = self.states()
        for state, after in states.items():  # the first: what was not recorded may have come after it
            if after == number:
                return state
        if self.path.exists() and _last(self.history()) == number:
            raise InputError(f"{self.path.name} is as it was after change {number}: nothing to undo.")
        kept = ", ".join(str(after) for after in states.values() if after is not None)
        raise InputError(
            f"The state of {self.path.name} after change {number} is not kept; kept are those after "
            f"{kept or 'no change that was recorded'}. See acil history."
        )

    def remove_states(self) -> int:
        """Remove all earlier states of the file; return how many there were."""
        with locked(self.path, self._timeout):
            number = len(kept_states(self.path))
            remove_states(self.path)
            return number

    def _mergeable(self, path: str | os.PathLike[str]) -> Classifier:
        model = self.read(path)
        if not model.snapshot.can_learn:
            raise InputError(
                f"{path} can only predict: it has no exact sums to merge. Give the full model file."
            )
        return model

    def _changed(self, action: str, work: Callable[[Classifier], Report], undo: bool) -> Change:
        """Change the file, which is locked."""
        if self._new is not None and not self.path.exists():
            model, before = self._new(), None
        else:
            model = self.read()
            before = model.snapshot
        return self._saved(action, model, before, work(model), undo)

    def _saved(
        self, action: str, model: Classifier, before: Snapshot | None, report: Report, undo: bool
    ) -> Change:
        """Put the new state of a model into the file, which is locked."""
        after, earlier = model.snapshot, signature_of(self.path)
        if after is before:
            return Change(action, report, before, after, earlier, earlier)
        gate = None if action in _UNGATED else self.gate
        measured = None if gate is None else gate(before, after)
        forgets = action == "forget"
        if forgets:
            receipts_file(self.path)  # raises while nothing has been changed
            hashed = file_hash(self.path)
        record(after, Entry.next(action, before, after, len(report.counts), measured))
        model.save(self.path, undo=undo)
        now, receipt = signature_of(self.path), None
        if forgets:
            gone = report.counts
            receipt = write_receipt(self.path, hashed, sum(gone.values()), len(gone))
        return Change(action, report, before, after, earlier, now, measured, receipt)


def load_classifier(
    path: str | os.PathLike[str],
    *,
    backbone: Any = None,
    inference: bool = False,
    track: bool | None = None,
) -> Classifier:
    """Read the model of a file: a classifier of texts or of images, as the file says.

    A model that was learnt from features is opened as one of images. Arguments are those of
    `Classifier.load`.
    """
    head = load(path, inference=inference)
    kind = _kind_of(getattr(head, "encoder_", "features"))
    return kind.of_head(head, path, backbone=backbone, track=track)


def reader_of(path: str | os.PathLike[str], backbone: Any = None) -> Classifier:
    """Return what turns samples into features for a model file, of which only the header is read."""
    opened = backbone is None or isinstance(backbone, str)
    network: Any = network_of(path, backbone) if opened else backbone
    return _kind_of(describe(path)["encoder"])(network)


def _kind_of(encoder: str) -> type[ImageClassifier] | type[TextClassifier]:
    return TextClassifier if encoder == "text" else ImageClassifier


def _inherit(head: ACILClassifier, former: ACILClassifier) -> None:
    """Have a head that learnt the samples of a former one know its history, and its releases."""
    if hasattr(former, "history_"):
        head.history_ = former.history_
    adopt(head, replace(learnt_of(head), release=learnt_of(former).release))


def _last(history: Sequence[Entry]) -> int | None:
    """Return the number of the last change, None if none was recorded."""
    return history[-1].number if history else None


def signature_of(path: Path) -> Signature | None:
    """Return what identifies the present version of a file; None if there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelFileError(f"Cannot look at {path}: {error.strerror}.") from error
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
