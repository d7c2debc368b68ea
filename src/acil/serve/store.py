"""The model of a server: a file, and an immutable snapshot of it that answers requests."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from acil.encoders.stored import require_network
from acil.errors import ACILError, InputError, ModelFileError, NotFittedError
from acil.growing import ImageClassifier, ModelFile, TextClassifier, load_classifier
from acil.growing.classifier import Classifier
from acil.growing.modelfile import Change, Signature, signature_of
from acil.growing.snapshot import Snapshot
from acil.serve.settings import Settings

logger = logging.getLogger(__name__)

#: Seconds to wait for another process that changes the file.
LOCK_SECONDS = 30.0


@dataclass(frozen=True)
class Served:
    """One state of the model, as it was served."""

    snapshot: Snapshot
    revision: str  # hash of classes and weights: the same for the same state, also after a restart
    signature: Signature | None  # of the file that holds this state; None if it is gone
    #: What classes are called that were renamed here, by what held-out samples have as their class.
    names: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot, signature: Signature | None) -> Served:
        """Publish a state."""
        # Solve now, not when the first prediction waits for it.
        head = snapshot.solved()
        digest = hashlib.blake2b(digest_size=8)
        for name, count in snapshot.totals.items():
            digest.update(f"{name}\0{count}\0".encode())
        digest.update(head.coef_.tobytes())
        return cls(snapshot, digest.hexdigest(), signature)


class Store:
    """A model file and the state of it that is being served.

    Each change reads the file under its lock, makes the new state, saves it, and only then serves it. So
    other processes may change the same file, a change that fails changes nothing, and a server that is
    killed leaves the old state or the new one. If there is no file, the first change makes it.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.path = settings.model
        self._changing = threading.Lock()
        #: The state that is served now; None until something has been taught.
        self.published: Served | None = None
        #: `Served.names` of the states before classes were renamed, by revision.
        self._former: dict[str, Mapping[str, str]] = {}
        self._refused: Signature | None = None
        #: What is wrong with the file, without its path: everybody can read it.
        self.fault: str | None = None
        self._logged: tuple[str | None, str] = (None, "")
        #: Turns images or texts into samples; never changed.
        self.reader: Classifier
        signature = signature_of(self.path)
        if signature is None:
            self.reader = self._new()
        else:
            require_network(self.path)
            self.reader = load_classifier(self.path, backbone=settings.backbone)
            if settings.texts and self.reader.thing != "text":
                raise InputError(f"{self.path} is a model of images. Leave out --texts.")
            self.published = Served.of(self.reader.snapshot, signature)
        self.embedder = self.reader.embedder
        #: Through which the file is changed.
        self.file = ModelFile(
            self.path, new=self._new, backbone=self.embedder, undo=settings.undo, timeout=LOCK_SECONDS
        )

    def require(self) -> Served:
        """Return the state that is served now, or raise if there is none."""
        if self.published is None:
            raise NotFittedError("This model has not been taught anything yet. Teach a class first.")
        return self.published

    def refresh(self) -> None:
        """Serve the file as it is now, if another process has changed it; never raise.

        Whatever is wrong with the file (it is gone, damaged, of another network, cannot be read …) is
        logged once, and `fault` tells it; the old state stays.
        """
        try:
            self._refreshed()
        except ACILError as error:
            self._found("The model file has changed, but cannot be served.", str(error))
        except Exception as error:  # a server that stops looking would serve an old state for ever
            self._found("The model file cannot be watched.", f"{type(error).__name__}: {error}")

    def _found(self, fault: str | None, details: str = "") -> None:
        if fault is not None and (fault, details) != self._logged:
            logger.warning("%s: %s Predicting goes on. %s", self.path, fault, details)
        self.fault, self._logged = fault, (fault, details)

    def _refreshed(self) -> None:
        signature = signature_of(self.path)
        if signature is None:
            gone = None if self.published is None else "The model file is gone. Nothing can be changed."
            self._found(gone)
        elif self.published is not None and signature == self.published.signature:
            self._found(None)
        # A change that is being made reads the file itself.
        elif signature != self._refused and self._changing.acquire(blocking=False):
            try:
                self.published = self._served(self.file.read().snapshot, signature)
            except ACILError as error:
                # What could not be read may be readable later, with no other change of the file.
                if not isinstance(error.__cause__, OSError):
                    self._refused = signature
                raise
            finally:
                self._changing.release()
            self._found(None)
            logger.info("%s has been changed by another process: reloaded.", self.path)

    def change(
        self, work: Callable[[ModelFile], Change], renamed: Mapping[str, str] | None = None
    ) -> tuple[Change, Served | None, Served]:
        """Change the file and serve its new state; return what was done, and both states.

        ``renamed`` has the new names of classes that are renamed.
        """
        with self._changing:
            done, before = work(self.file), self.published
            if done.before is not None and (before is None or before.signature != done.earlier):
                # Another process had made the file, or changed it.
                before = self._served(done.before, done.earlier)
            if before is not None and done.after is done.before:
                return done, before, before
            after = self._served(done.after, done.signature)
            if renamed and before is not None:
                self._former[before.revision] = before.names
                # A class that had been renamed before is still found by its first name.
                now = {then: renamed.get(name, name) for then, name in before.names.items()}
                after = replace(after, names={**renamed, **now})
            self.published = after
        return done, before, after

    @property
    def undo_left(self) -> int:
        """How many of the last changes can be taken back."""
        return self.file.undo_left

    def undo(self) -> Served | None:
        """Take the last change of the file back, and serve the state before it.

        Return the state that was taken back; None if another process made it and it was never served.
        """

        def accept(state: Path) -> tuple[Served | None, Snapshot]:
            served, signature = self.published, signature_of(self.path)
            if signature is None:  # states of a model that is gone
                raise InputError(
                    "This model has not been taught anything yet: there is nothing to undo."
                )
            if served is None or served.signature != signature:
                self.file.read()  # a file that cannot be served may be another model: it stays
                served = None
            # All of it: what is damaged must not replace the model.
            return served, self.file.read(state).snapshot

        with self._changing:
            self._require_present()
            undone: Served | None
            (undone, before), now = self.file.undo(accept)
            self.published = self._served(before, now)
            return undone

    def _served(self, snapshot: Snapshot, signature: Signature | None) -> Served:
        """Return a state to serve; its classes are called as now, or as when it was served before."""
        made, now = Served.of(snapshot, signature), self.published
        return replace(made, names=self._former.get(made.revision, now.names if now else {}))

    def _new(self) -> Classifier:
        """Return a model that has learnt nothing, as long as no file has been made."""
        self._require_present()
        made = TextClassifier if self._settings.texts else ImageClassifier
        return made(self._settings.backbone, track=self._settings.track)

    def _require_present(self) -> None:
        if self.published is not None and signature_of(self.path) is None:
            raise ModelFileError(
                f"{self.path} has been removed while it was served. Put it back, or restart the server "
                "to begin anew."
            )
