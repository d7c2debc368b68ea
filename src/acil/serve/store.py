"""The model of a server: a file, and an immutable snapshot of it that answers requests."""

from __future__ import annotations

import hashlib
import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from acil.encoders.stored import require_network
from acil.errors import ACILError, InputError, ModelFileError, NotFittedError
from acil.growing import ImageClassifier, ModelFile, Report, Samples
from acil.growing.modelfile import Signature, signature_of
from acil.growing.snapshot import Snapshot
from acil.serve.settings import Settings

logger = logging.getLogger(__name__)

#: Seconds to wait for another process that changes the file.
LOCK_SECONDS = 30.0
#: A change of the model.
Action = Literal["learn", "forget"]


@dataclass(frozen=True)
class Served:
    """One state of the model, as it was served."""

    snapshot: Snapshot
    revision: str  # hash of classes and weights: the same for the same state, also after a restart
    signature: Signature | None  # of the file that holds this state; None if it is gone

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
        self._refused: Signature | None = None
        #: What is wrong with the file, without its path: everybody can read it.
        self.fault: str | None = None
        self._logged: tuple[str | None, str] = (None, "")
        #: Turns images into samples; never changed.
        self.reader: ImageClassifier
        signature = signature_of(self.path)
        if signature is None:
            self.reader = self._new()
        else:
            require_network(self.path)
            self.reader = ImageClassifier.load(self.path, backbone=settings.backbone)
            self.published = Served.of(self.reader.snapshot, signature)
        self.embedder = self.reader.embedder
        self._file = ModelFile(
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
                self.published = Served.of(self._file.read().snapshot, signature)
            except ACILError as error:
                # What could not be read may be readable later, with no other change of the file.
                if not isinstance(error.__cause__, OSError):
                    self._refused = signature
                raise
            finally:
                self._changing.release()
            self._found(None)
            logger.info("%s has been changed by another process: reloaded.", self.path)

    def change(self, action: Action, samples: Samples) -> tuple[Report, Served | None, Served]:
        """Learn or forget samples, save, and serve the new state; return a report and both states."""
        if action == "forget":
            self.require()
        with self._changing:
            work = self._file.learn if action == "learn" else self._file.forget
            done, before = work(samples), self.published
            if done.before is not None and (before is None or before.signature != done.earlier):
                # Another process had made the file, or changed it.
                before = Served.of(done.before, done.earlier)
            if before is not None and done.after is done.before:
                return done.report, before, before
            after = Served.of(done.after, done.signature)
            self.published = after
        return done.report, before, after

    @property
    def undo_left(self) -> int:
        """How many of the last changes can be taken back."""
        return self._file.undo_left

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
                self._file.read()  # a file that cannot be served may be another model: it stays
                served = None
            # All of it: what is damaged must not replace the model.
            return served, self._file.read(state).snapshot

        with self._changing:
            self._require_present()
            undone: Served | None
            (undone, before), now = self._file.undo(accept)
            self.published = Served.of(before, now)
            return undone

    def _new(self) -> ImageClassifier:
        """Return a model that has learnt nothing, as long as no file has been made."""
        self._require_present()
        return ImageClassifier(self._settings.backbone, track=self._settings.track)

    def _require_present(self) -> None:
        if self.published is not None and signature_of(self.path) is None:
            raise ModelFileError(
                f"{self.path} has been removed while it was served. Put it back, or restart the server "
                "to begin anew."
            )
