"""A model file that changes: the one way, for commands, the service and Python.

A change locks the file, reads it, makes the new state beside the old one, asks the gate, keeps the old
state for undo, saves, and writes a receipt of what was forgotten. Whatever fails before the new file is
in place changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acil.core.classifier import ACILClassifier
from acil.core.files.writing import locked
from acil.encoders.images.embedder import Embedder, ImageProgress
from acil.encoders.images.listing import Given
from acil.encoders.images.stored import network_of
from acil.encoders.samples import Samples
from acil.errors import InputError, ModelFileError
from acil.growing.images import ImageClassifier
from acil.growing.results import Report
from acil.growing.snapshot import Snapshot
from acil.growing.undo import kept_states, remove_states, undo
from acil.privacy.receipts import file_hash, receipts_file, write_receipt

#: Identifies one version of a file.
Signature = tuple[int, int, int, int]
#: Called before anything is saved, with the states before (None if the change makes the model) and
#: after: raises to refuse the change, or returns what it has measured. See `acil.growing.gate`.
GateLike = Callable[[Snapshot | None, Snapshot], Mapping[str, Any] | None]

#: Changes that a gate has no say in: what held-out samples are called, or other files, change with them.
_UNGATED = ("rename", "merge-classes", "release")


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
        Returns an `ImageClassifier` that has learnt nothing, for a file that is not there yet.
    backbone : str or Embedder, optional
        The network; by default the one that the file names. See `ImageClassifier.load`.
    track : bool, optional
        Whether to track images from now on; by default as the model has done.
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
        new: Callable[[], ImageClassifier] | None = None,
        backbone: str | Embedder | None = None,
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

    def read(self, path: str | os.PathLike[str] | None = None) -> ImageClassifier:
        """Return the model as the file has it now; or that of another file, opened alike."""
        place = self.path if path is None else path
        try:
            return ImageClassifier.load(place, backbone=self._backbone, track=self._track)
        except ModelFileError:
            raise
        except InputError as error:  # of another network: the file is not the one that is meant
            raise ModelFileError(str(error)) from error

    def prepare(
        self,
        source: Given | Samples,
        labels: str | Sequence[str] | None = None,
        *,
        skip_bad: bool = False,
        progress: ImageProgress | None = None,
    ) -> Samples:
        """Turn images into samples for this model, as `ImageClassifier.prepare`; no lock is needed."""
        if isinstance(source, Samples):
            return source
        if self._new is not None and not self.path.exists():
            reader = self._new()
        else:
            named = self._backbone
            reader = ImageClassifier(
                named if isinstance(named, Embedder) else network_of(self.path, named)
            )
        samples = reader.prepare(source, labels, skip_bad=skip_bad, progress=progress)
        self._backbone = reader.embedder
        return samples

    def learn(self, source: Given | Samples, labels: str | Sequence[str] | None = None) -> Change:
        """Learn images of new or known classes; see `ImageClassifier.learn`."""
        samples = self.prepare(source, labels)
        return self.change("learn", lambda model: model.learn(samples))

    def forget(self, source: Given | Samples, labels: str | Sequence[str] | None = None) -> Change:
        """Forget images; see `ImageClassifier.forget`."""
        samples = self.prepare(source, labels)
        return self.change("forget", lambda model: model.forget(samples))

    def rename_classes(self, names: Mapping[str, str]) -> Change:
        """Give classes other names; see `Classifier.rename_classes`. The gate is not asked."""
        return self.change("rename", lambda model: model.rename_classes(names))

    def merge_classes(self, groups: Mapping[str, str]) -> Change:
        """Make one class of several; see `Classifier.merge_classes`. The gate is not asked."""
        return self.change("merge-classes", lambda model: model.merge_classes(groups))

    def change(self, action: str, work: Callable[[ImageClassifier], Report]) -> Change:
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

        def work(model: ImageClassifier) -> Report:
            made.append(model.release(epsilon, delta))
            return Report({}, model.counts_)

        with locked(self.path, self._timeout):
            self._changed("release", work, undo=False)
        return made[0]

    def undo(self, accept: Callable[[Path], Any] | None = None) -> tuple[Any, Signature | None]:
        """Put the last state that is kept in the place of the file, or raise and change nothing.

        ``accept`` gets the file of that state first, and may refuse it by an error. Return what it
        returned, and the signature of the file.
        """
        with locked(self.path, self._timeout):
            states = kept_states(self.path)
            if not states:
                raise InputError(
                    f"No earlier state of {self.path.name} is kept: there is nothing to undo."
                )
            accepted = None if accept is None else accept(states[-1])
            undo(self.path)
            return accepted, signature_of(self.path)

    def remove_states(self) -> int:
        """Remove all earlier states of the file; return how many there were."""
        with locked(self.path, self._timeout):
            number = len(kept_states(self.path))
            remove_states(self.path)
            return number

    def _mergeable(self, path: str | os.PathLike[str]) -> ImageClassifier:
        model = self.read(path)
        if not model.snapshot.can_learn:
            raise InputError(
                f"{path} can only predict: it has no exact sums to merge. Give the full model file."
            )
        return model

    def _changed(self, action: str, work: Callable[[ImageClassifier], Report], undo: bool) -> Change:
        """Change the file, which is locked."""
        if self._new is not None and not self.path.exists():
            model, before = self._new(), None
        else:
            model = self.read()
            before = model.snapshot
        return self._saved(action, model, before, work(model), undo)

    def _saved(
        self, action: str, model: ImageClassifier, before: Snapshot | None, report: Report, undo: bool
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
        model.save(self.path, undo=undo)
        now, receipt = signature_of(self.path), None
        if forgets:
            gone = report.counts
            receipt = write_receipt(self.path, hashed, sum(gone.values()), len(gone))
        return Change(action, report, before, after, earlier, now, measured, receipt)


def signature_of(path: Path) -> Signature | None:
    """Return what identifies the present version of a file; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelFileError(f"Cannot look at {path}: {error.strerror}.") from error
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
