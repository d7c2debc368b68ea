"""The model of a server: a file, and an immutable snapshot of it that answers requests."""

from __future__ import annotations

import hashlib
import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from acil.core.files import locked
from acil.encoders.images.networks import DEFAULT
from acil.encoders.images.stored import require_network
from acil.errors import ACILError, InputError, ModelFileError, NotFittedError
from acil.growing import ImageClassifier, Report, Samples
from acil.growing.snapshot import Snapshot
from acil.growing.undo import kept_states, undo
from acil.serve.settings import Settings

logger = logging.getLogger(__name__)

#: Seconds to wait for another process that changes the file.
LOCK_SECONDS = 30.0
#: A change of the model.
Action = Literal["learn", "forget"]
#: Identifies one version of a file.
Signature = tuple[int, int, int, int]


@dataclass(frozen=True)
class Served:
    """One state of the model, as it was served."""

    snapshot: Snapshot
    revision: str  # hash of classes and weights: the same for the same state, also after a restart
    signature: Signature | None  # of the file that holds this state; None if it is gone

    @classmethod
    def of(cls, classifier: ImageClassifier, signature: Signature | None) -> Served:
        """Publish the state of a classifier that is not changed any more."""
        snapshot = classifier.snapshot
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
        signature = _signature(self.path)
        if signature is None:
            self.reader = self._new()
        else:
            require_network(self.path)
            self.reader = ImageClassifier.load(self.path, backbone=settings.backbone)
            self.published = Served.of(self.reader, signature)
        self.embedder = self.reader.embedder

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
        signature = _signature(self.path)
        if signature is None:
            gone = None if self.published is None else "The model file is gone. Nothing can be changed."
            self._found(gone)
        elif self.published is not None and signature == self.published.signature:
            self._found(None)
        # A change that is being made reads the file itself.
        elif signature != self._refused and self._changing.acquire(blocking=False):
            try:
                self.published = Served.of(self._load(self.path), signature)
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
        with self._changing, locked(self.path, timeout=LOCK_SECONDS):
            signature, before = self._present(), self.published
            classifier = self._new() if signature is None else self._load(self.path)
            if signature is not None and (before is None or before.signature != signature):
                # Another process has made the file, or changed it.
                before = Served.of(classifier, signature)
            report = classifier.learn(samples) if action == "learn" else classifier.forget(samples)
            if before is not None and not report.counts:
                return report, before, before
            classifier.save(self.path, undo=self._settings.undo)
            after = Served.of(classifier, _signature(self.path))
            self.published = after
        return report, before, after

    @property
    def undo_left(self) -> int:
        """How many of the last changes can be taken back."""
        return len(kept_states(self.path)) if self.path.exists() else 0

    def undo(self) -> Served | None:
        """Take the last change of the file back, and serve the state before it.

        Return the state that was taken back; None if another process made it and it was never served.
        """
        with self._changing, locked(self.path, timeout=LOCK_SECONDS):
            served, signature = self.published, self._present()
            kept = kept_states(self.path) if signature is not None else []
            if not kept:
                raise InputError("No earlier state is kept: there is nothing to undo.")
            if served is None or served.signature != signature:
                self._load(self.path)  # a file that cannot be served may be another model: it stays
                served = None
            before = self._load(kept[-1])  # all of it: what is damaged must not replace the model
            undo(self.path)
            self.published = Served.of(before, _signature(self.path))
            return served

    def _present(self) -> Signature | None:
        """Return the signature of the file; None as long as none has been made."""
        signature = _signature(self.path)
        if signature is None and self.published is not None:
            raise ModelFileError(
                f"{self.path} has been removed while it was served. Put it back, or restart the server "
                "to begin anew."
            )
        return signature

    def _load(self, path: Path) -> ImageClassifier:
        try:
            return ImageClassifier.load(path, backbone=self.embedder)
        except ModelFileError:
            raise
        except InputError as error:  # of another network: not a fault of the request
            raise ModelFileError(str(error)) from error

    def _new(self) -> ImageClassifier:
        return ImageClassifier(self._settings.backbone or DEFAULT, track=self._settings.track)


def _signature(path: Path) -> Signature | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelFileError(f"Cannot look at {path}: {error.strerror}.") from error
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
