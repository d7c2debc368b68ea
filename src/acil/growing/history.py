"""The history of a model file: numbers of each change, in the header of the file.

It has no sample, no name of a file and no name of a class, because names outlive what is forgotten. So
it goes with every copy of the file, and an earlier state that comes back brings its own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from numbers import Real
from typing import Any, Self

from acil.core.files import describe
from acil.growing.snapshot import Snapshot

#: Changes that a file remembers; their numbers go on.
MAX_CHANGES = 100


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
