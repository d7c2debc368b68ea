"""Undo: the states that a model file had before its last changes, in a hidden folder beside it.

A state is a hard link to the file that a change replaces: it takes no time, and it is there before the
new file is.
"""

from __future__ import annotations

import logging
import os
import shutil
from contextlib import suppress
from pathlib import Path

from acil.core.files.header import require_whole
from acil.core.files.writing import replacing
from acil.errors import InputError, ModelFileError

logger = logging.getLogger(__name__)

#: At most so many states are kept, and at most so many bytes.
MAX_STATES, MAX_BYTES = 10, 2**30


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
