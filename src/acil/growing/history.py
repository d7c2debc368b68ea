"""The past of a model file: numbers of each change, and the states before the last ones, for undo.

The numbers are in the header of the file. They have no sample, no name of a file and no name of a
class, because names outlive what is forgotten. So they go with every copy of the file, and an earlier
state that comes back brings its own.

The states are in a hidden folder beside the file. A state is a hard link to the file that a change
replaces: it takes no time, and it is there before the new file is.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from numbers import Real
from pathlib import Path
from typing import Any, Self

from acil.core.files import describe
from acil.core.files.header import require_whole
from acil.core.files.writing import replacing
from acil.errors import InputError, ModelFileError
from acil.growing.snapshot import Snapshot

logger = logging.getLogger(__name__)

#: Changes that a file remembers; their numbers go on.
MAX_CHANGES = 100
#: At most so many states are kept, and at most so many bytes.
MAX_STATES, MAX_BYTES = 10, 2**30


@dataclass(frozen=True)
class Entry:
    """One change of a model file."""

    number: int
    """1 is the first change that was recorded."""
    time: str
    """In UTC, as ISO 8601 has it."""
    action: str
    """Such as "learn"."""
    change: int
    """Samples that came; negative if they went."""
    touched: int
    """Classes of these samples, or that got other names."""
    samples: int
    """Samples in the model afterwards."""
    classes: int
    """Classes of the model afterwards."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """What a gate has measured, such as ``accuracy`` in percent and the number of ``samples``."""

    def to_dict(self) -> dict[str, Any]:
        """Return the values as JSON has them."""
        return asdict(self)

    @classmethod
    def next(
        cls,
        action: str,
        before: Snapshot | None,
        after: Snapshot,
        touched: int,
        measured: Mapping[str, Any] | None,
    ) -> Self:
        """Return the entry of a change, which a header takes; of what was measured, the numbers."""
        earlier = getattr(after.head, "history_", [])
        number = earlier[-1]["number"] + 1 if earlier else 1
        samples = sum(after.totals.values())
        change = samples - (0 if before is None else sum(before.totals.values()))
        numbers = {
            str(name): float(value)
            for name, value in (measured or {}).items()
            if isinstance(value, Real) and math.isfinite(value)
        }
        time = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(number, time, action, change, touched, samples, len(after.totals), numbers)


def record(after: Snapshot, entry: Entry) -> None:
    """Add a change to the history of a state that nobody has yet; the oldest ones go."""
    earlier = getattr(after.head, "history_", [])
    after.head.history_ = [*earlier, entry.to_dict()][-MAX_CHANGES:]


def history_of(path: str | os.PathLike[str]) -> list[Entry]:
    r"""Return the changes that a model file remembers, the oldest first.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from acil.encoders.tables import read_features
    >>> from acil.growing import ImageClassifier, ModelFile
    >>> from acil.growing.history import history_of
    >>> folder = tempfile.TemporaryDirectory()
    >>> table = pathlib.Path(folder.name, "rows.csv")
    >>> _ = table.write_text("a,b,label\n0,0,x\n0,1,x\n3,1,y\n")
    >>> file = ModelFile(table.with_suffix(".acil"), new=ImageClassifier)
    >>> _ = file.learn(read_features(table))
    >>> _ = file.rename_classes({"y": "z"})
    >>> [(entry.number, entry.action, entry.change, entry.samples) for entry in history_of(file.path)]
    [(1, 'learn', 3, 3), (2, 'rename', 0, 3)]
    >>> folder.cleanup()
    """
    return [Entry(**entry) for entry in describe(path)["history"]]


def kept_states(model: str | os.PathLike[str]) -> list[Path]:
    """Return the files of the earlier states of a model file, the oldest first."""
    path = Path(model).resolve()
    earlier = []
    for state in _states(path):
        with suppress(FileNotFoundError):  # removed by another process
            # A change that did not come to its end leaves the present state there, and going back
            # several states also later ones.
            if path.exists() and state.samefile(path):
                break
            earlier.append(state)
    return earlier


def keep_state(model: str | os.PathLike[str]) -> None:
    """Keep the present state of a model file, locked by the caller, which is about to be replaced.

    If there is none, states of an earlier file of that name are removed.
    """
    path = Path(model).resolve()
    if not path.exists():
        remove_states(path)
        return
    folder = _folder(path)
    try:
        states = _settled(path)
        number = 1 + max((int(state.stem) for state in states), default=0)
        folder.mkdir(exist_ok=True)
        states.append(folder / f"{number:09}.acil")
        _link(path, states[-1])
        size = 0
        for count, state in enumerate(reversed(states), start=1):
            size += state.stat().st_size
            if count > MAX_STATES or size > MAX_BYTES:
                state.unlink()
    except OSError as error:
        logger.warning("This change of %s cannot be undone: %s.", path, error.strerror or error)


def require_access(model: str | os.PathLike[str]) -> None:
    """Raise if states cannot be added or removed: the last would not be that before the last change."""
    folder = _folder(Path(model).resolve())
    if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
        raise ModelFileError(
            f"You may not write in {folder}, which has earlier states of the model. Change its "
            "permissions, or move it away. Nothing was changed."
        )


def undo(model: str | os.PathLike[str], to: Path | None = None) -> None:
    """Put a state kept, by default the last, in the place of a model file, or change nothing.

    The file is locked by the caller. This state and later ones are then no earlier ones, and go.
    """
    path = Path(model).resolve()
    states = _settled(path)
    if not states:
        raise InputError(f"No earlier state of {model} is kept: there is nothing to undo.")
    state = states[-1] if to is None else to
    require_whole(state)  # a damaged file must not replace the model
    with replacing(path) as draft:
        draft.unlink()
        _link(state, draft)
    for later in reversed(states[states.index(state) :]):
        later.unlink()


def remove_states(model: str | os.PathLike[str]) -> None:
    """Remove all earlier states of a model file."""
    folder = _folder(Path(model).resolve())
    try:
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        raise ModelFileError(
            f"Cannot remove {folder}, which has earlier states of the model: {error.strerror}. Remove "
            "it yourself."
        ) from error


def _settled(path: Path) -> list[Path]:
    """Return the earlier states, and remove what a change that did not come to its end has left.

    It would be taken for an earlier state as soon as the file is another one.
    """
    require_access(path)
    states = kept_states(path)
    for state in {*_states(path)} - {*states}:
        state.unlink(missing_ok=True)
    return states


def _folder(path: Path) -> Path:
    return path.with_name(f".{path.name}.undo")


def _states(path: Path) -> list[Path]:
    return sorted(file for file in _folder(path).glob("*.acil") if file.stem.isdecimal())


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:  # a file system without hard links
        part = target.with_suffix(".part")
        shutil.copy2(source, part)
        part.replace(target)
