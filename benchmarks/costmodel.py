"""A cost model of learning: formulas with fitted coefficients, and what they say for large tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import nnls

#: What time is made of → its terms. A coefficient is seconds for one unit of its term.
TERMS: dict[str, tuple[str, ...]] = {
    "learn": ("1", "n d", "n d f", "n d²"),
    "solve": ("1", "d²", "d² c", "d³"),
    "start": ("d²", "d f"),
    "memory": ("1", "d²"),
    # The header has what only the whole inverse tells (degrees of freedom), hence d³.
    "save": ("1", "bytes", "d³"),
    "reduce2": ("1", "bytes"),
    "reduce4": ("1", "bytes"),
}


@dataclass(frozen=True)
class Size:
    """Of one step: n rows of f features, expanded to width d, and c classes; or some bytes."""

    n: float = 0
    f: float = 0
    d: float = 0
    c: float = 0
    bytes: float = 0

    def terms(self, kind: str) -> list[float]:
        """Return the value of each term of one kind of cost."""
        values = {
            "1": 1.0,
            "n d": self.n * self.d,
            "n d f": self.n * self.d * self.f,
            "n d²": self.n * self.d**2,
            "d²": self.d**2,
            "d² c": self.d**2 * self.c,
            "d³": self.d**3,
            "d f": self.d * self.f,
            "bytes": self.bytes,
        }
        return [values[term] for term in TERMS[kind]]


def fitted(
    kind: str,
    sizes: Sequence[Size],
    measured: Sequence[float],
    scales: Sequence[float] | None = None,
) -> dict[str, float]:
    """Return coefficients that are not negative, by least squares of relative errors.

    Parameters
    ----------
    kind : str
    sizes : sequence of Size
    measured : sequence of float
    scales : sequence of float, optional
        What errors are relative to; by default what was measured.

    Examples
    --------
    >>> sizes = [Size(d=d) for d in (10, 20, 40)]
    >>> found = fitted("memory", sizes, [5 + 2 * size.d**2 for size in sizes])
    >>> {term: round(value, 9) for term, value in found.items()}
    {'1': 5.0, 'd²': 2.0}
    """
    scale = np.array(measured if scales is None else scales)
    matrix = np.array([size.terms(kind) for size in sizes]) / scale[:, None]
    # Columns of the same length: terms differ by many orders of magnitude.
    lengths = np.linalg.norm(matrix, axis=0)
    lengths[lengths == 0] = 1.0
    found, _ = nnls(matrix / lengths, np.array(measured) / scale)
    return dict(zip(TERMS[kind], (found / lengths).tolist(), strict=True))


class CostModel:
    """Predictions from coefficients, by kind (see `TERMS`)."""

    def __init__(self, coefficients: dict[str, dict[str, float]]) -> None:
        self.coefficients = coefficients

    def cost(self, kind: str, size: Size) -> float:
        """Return the seconds (of ``memory``: bytes) of one step."""
        values = zip(self.coefficients[kind].values(), size.terms(kind), strict=True)
        return sum(coefficient * term for coefficient, term in values)

    def run(self, phases: Iterable[Size]) -> float:
        """Return the seconds of learning all phases in one process, weights after each."""
        phases = list(phases)
        first = self.cost("start", phases[0]) if phases else 0.0
        return first + sum(self.cost("learn", size) + self.cost("solve", size) for size in phases)


def phase_sizes(rows: int, classes: int, phases: int, f: int, d: int) -> list[Size]:
    """Return the steps of a base of half of the rows and classes, then phases with the others."""
    later = [Size(rows / 2 / phases, f, d, classes / 2 * (1 + (k + 1) / phases)) for k in range(phases)]
    return [Size(rows / 2, f, d, classes / 2), *later]


def sum_bytes(d: int, c: float) -> float:
    """Return the bytes of one reduction: a triangle, the columns of c classes, counts and weights."""
    return 8 * (d * (d + 1) / 2 + d * c) + 16 * c


def file_bytes(d: int, c: float, f: int) -> float:
    """Return the bytes of a model file: a triangle, moment, weights and the expansion."""
    return 8 * (d * (d + 1) / 2 + 2 * d * c) + 4 * d * f


@dataclass(frozen=True)
class Assumptions:
    """What was not measured here.

    Attributes
    ----------
    bandwidth : float
        Bytes a second that a process sends and receives in a reduction.
    image_bytes : float
        Of an image file.
    storage : float
        Bytes a second that a process reads of image files.
    """

    bandwidth: float = 25e9
    image_bytes: float = 110e3
    storage: float = 1e9


@dataclass(frozen=True)
class Task:
    """A task to plan: images, classes, phases, features of an image, width."""

    rows: int
    classes: int
    phases: int
    f: int
    d: int


def plan(
    model: CostModel, task: Task, processes: int, rate: float, assumed: Assumptions
) -> dict[str, Any]:
    """Return what a task takes with some processes, each of which extracts features at a rate.

    Each process adds up its part of the rows; sums travel once a phase; all solve the same equations.
    """
    sizes = phase_sizes(task.rows, task.classes, task.phases, task.f, task.d)
    own = [Size(size.n / processes, size.f, size.d, size.c) for size in sizes]
    features = task.rows / processes * max(1 / rate, assumed.image_bytes / assumed.storage)
    sums = sum(model.cost("learn", size) for size in own)
    weights = model.cost("start", own[0]) + sum(model.cost("solve", size) for size in own)
    new = task.classes / 2
    payload = [sum_bytes(task.d, new), *[sum_bytes(task.d, new / task.phases)] * task.phases]
    share = 2 * (processes - 1) / processes
    travel = sum(payload) * share / assumed.bandwidth
    # As gloo between two or four processes of one machine has moved them, where that was measured
    kind = "reduce2" if processes == 2 else "reduce4"
    slow = None
    if processes > 1 and kind in model.coefficients:
        slow = sum(model.cost(kind, Size(bytes=size)) for size in payload)
    total = features + sums + weights + travel
    return {
        "processes": processes,
        "features": features,
        "sums": sums,
        "weights": weights,
        "network": travel,
        "gloo": slow,
        "total": total,
        "head": sums + weights + travel,
        # Beside d × d matrices: moment, weights and right-hand side, which few classes do not show
        "memory": model.cost("memory", Size(d=task.d)) + 24 * task.d * task.classes,
    }
