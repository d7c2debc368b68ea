"""A gate: a change is refused if the model would do worse on held-out samples of classes it knows."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from acil.core.files.header import in_order
from acil.encoders.images.listing import first_of
from acil.encoders.samples import Samples
from acil.errors import GateError, InputError
from acil.growing.snapshot import Snapshot

logger = logging.getLogger(__name__)

#: Percentage points by which accuracy may drop, by default.
MAX_DROP = 0.5
#: Classes that the table of an error has.
_MOST_CLASSES = 12


@dataclass(frozen=True)
class Kept:
    """Held-out samples of classes known before and after a change, and how many of them are right."""

    samples: int
    right_before: int
    right_after: int

    @property
    def before(self) -> float:
        """Accuracy before the change, in percent."""
        return 100.0 * self.right_before / self.samples

    @property
    def after(self) -> float:
        """Accuracy after the change, in percent."""
        return 100.0 * self.right_after / self.samples

    @property
    def drop(self) -> float:
        """Percentage points that are lost; negative if some are won."""
        return 100.0 * (self.right_before - self.right_after) / self.samples

    def to_dict(self) -> dict[str, float]:
        """Return the number of samples and the accuracies."""
        return {"samples": self.samples, "before": self.before, "after": self.after}


class Gate:
    r"""Refuses a change of a model after which it would do worse on held-out samples.

    Accuracy is the share of samples whose likeliest class is the right one, among those of the classes
    that the model knows before and after the change. So a new class counts from the next change on, and
    one that is forgotten as a whole counts no more.

    Parameters
    ----------
    held_out : Samples
        With labels, and never learnt; `ModelFile.prepare` makes them.
    max_drop : float, default=0.5
        Percentage points that accuracy may lose by one change.

    Examples
    --------
    A row that is learnt under a wrong class:

    >>> import tempfile, pathlib
    >>> from acil import ACILClassifier, save
    >>> from acil.encoders.tables import read_features
    >>> from acil.errors import GateError
    >>> from acil.growing import Gate, ModelFile
    >>> folder = tempfile.TemporaryDirectory()
    >>> place = pathlib.Path(folder.name)
    >>> X, y = [[0, 0], [0, 1], [5, 0], [5, 1]], ["low", "low", "high", "high"]
    >>> save(ACILClassifier(expansion_size=None).fit(X, y), place / "m.acil")
    >>> _ = (place / "held.csv").write_text("a,b,label\n0,2,low\n2.2,0,low\n5,2,high\n")
    >>> _ = (place / "wrong.csv").write_text("a,b,label\n0,1,high\n")
    >>> file = ModelFile(place / "m.acil")
    >>> file.gate = Gate(read_features(place / "held.csv"))
    >>> try:
    ...     _ = file.learn(read_features(place / "wrong.csv"))
    ... except GateError as refused:
    ...     print(str(refused).splitlines()[-1])
    low          2  100.0 %   50.0 %
    >>> folder.cleanup()
    """

    def __init__(self, held_out: Samples, max_drop: float = MAX_DROP) -> None:
        if not 0 <= max_drop <= 100:
            raise InputError(f"max_drop must be from 0 to 100 percentage points, got {max_drop}.")
        self.held_out, self.max_drop = held_out.require_labels(), max_drop
        self._names = np.array(self.held_out.names)

    def __call__(self, before: Snapshot | None, after: Snapshot) -> dict[str, float]:
        """Return how the state after a change does, or raise a `GateError` if that is too much worse.

        ``accuracy`` is that of all ``samples`` whose class it knows; ``before`` and ``after`` are those
        of the classes known before and after.
        """
        if before is not None and not self._known(before).any():
            raise InputError(
                "None of the held-out samples is of a class that the model knows: they are of "
                f"{first_of(in_order({*self.held_out.names}))}, and known are "
                f"{first_of(list(before.totals))}. Hold out samples of these."
            )
        if learnt := after.tracker.known(self.held_out.digests):
            logger.warning(
                "%d of the held-out samples have been learnt: the model does better on these than on "
                "others. Hold out samples that are not learnt.",
                learnt,
            )
        known, right = self._known(after), self._right(after)
        measured = {"samples": float(known.sum())}
        if known.any():
            measured["accuracy"] = 100.0 * float(right[known].mean())
        if before is None or not (known & self._known(before)).any():
            return measured
        every, per_class = compared(self._names, known & self._known(before), self._right(before), right)
        if every.drop > self.max_drop:
            raise GateError(
                f"This change was refused, and nothing was changed: on {every.samples:,} held-out "
                f"samples of the classes known before, accuracy would fall from {every.before:.2f} to "
                f"{every.after:.2f} %, and may lose {self.max_drop:g} points. Look at the classes that "
                "lose; or allow more (--max-drop).\n" + _table(every, per_class),
                {**every.to_dict(), "per_class": {n: k.to_dict() for n, k in per_class.items()}},
            )
        return {**measured, "before": every.before, "after": every.after}

    def _known(self, state: Snapshot) -> npt.NDArray[np.bool_]:
        return np.isin(self._names, list(state.totals))

    def _right(self, state: Snapshot) -> npt.NDArray[np.bool_]:
        head = state.solved()
        labels = head.predict(self.held_out.rows_for(head)).tolist()
        return np.array([str(label) == name for label, name in zip(labels, self._names, strict=True)])


def compared(
    names: npt.NDArray[np.str_],
    kept: npt.NDArray[np.bool_],
    right_before: npt.NDArray[np.bool_],
    right_after: npt.NDArray[np.bool_],
) -> tuple[Kept, dict[str, Kept]]:
    """Count the samples that are kept and of these the right ones, of all classes and of each.

    Parameters
    ----------
    names : ndarray of str
        Class of each sample.
    kept : ndarray of bool
        Whether it is of a class known before and after.
    right_before, right_after : ndarray of bool
        Whether its likeliest class is the right one.
    """

    def count(these: npt.NDArray[np.bool_]) -> Kept:
        return Kept(*(int((these & right).sum()) for right in (these, right_before, right_after)))

    return count(kept), {
        name: count(kept & (names == name)) for name in in_order({*names[kept].tolist()})
    }


def _table(every: Kept, per_class: Mapping[str, Kept]) -> str:
    """Return all samples, and the classes that change, those first that lose most."""
    changed = {name: kept for name, kept in per_class.items() if kept.drop}
    worst = sorted(changed, key=lambda name: -changed[name].drop)
    rows = [("all", every), *((name, changed[name]) for name in worst[:_MOST_CLASSES])]
    width = max(map(len, ["class", *worst[:_MOST_CLASSES]]))
    lines = [f"{'class':{width}}  samples   before    after"]
    for name, kept in rows:
        lines.append(f"{name:{width}}  {kept.samples:7,}  {kept.before:5.1f} %  {kept.after:5.1f} %")
    if len(worst) > _MOST_CLASSES:
        lines.append(f"… and {len(worst) - _MOST_CLASSES:,} more classes that change")
    return "\n".join(lines)
