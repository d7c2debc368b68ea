"""What a run has to compute: variants of methods, classes of each phase, and the jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from acil.errors import InputError

#: Classes of each phase, the base phase first.
Grouping = tuple[tuple[int, ...], ...]

#: Suite → settings of each variant. "main", "compare" and "table1" run the methods as they are.
_VARIANTS: dict[str, list[dict[str, Any]]] = {
    "main": [{}],
    "compare": [{}],
    "table1": [{}],
    # The paper's ablation: no expansion; then γ from 1e-1 to 0
    "ablation": [
        {"expansion_size": None, "gamma": 0.1},
        *({"gamma": gamma} for gamma in (0.1, 0.01, 0.001, 0.0)),
    ],
    # Ā against the expansion size, and accuracy against the bytes that each width costs
    "width": [{"expansion_size": width} for width in (512, 1024, 2048, 4096, 8192, 16384, 32768)],
    "memory": [{"expansion_size": width} for width in (256, 512, 1024, 2048, 4096, 8192)],
}

SUITES = tuple(_VARIANTS)
#: Suite → settings of a run that hold where the user names no others. The CIFAR-100 third of the paper's
#: table: its rows, in the class order that such tables use.
DEFAULTS: dict[str, dict[str, Any]] = {
    "table1": {
        "dataset": "cifar100",
        "recipe": "paper",
        "order": "seed1993",
        "phases": (5, 10, 25, 50),
        "seeds": (0,),
        "methods": "lwf-exemplars,icarl,bic,lucir,lucir+mnemonics,podnet,podnet+aanets,"
        "podnet+aanets+rmm,acil",
    },
}
#: The same by data set, the suite's own first: the order of the literature's tables on ImageNet.
DATASET_DEFAULTS: dict[str, dict[str, Any]] = {
    "imagenet": {"order": "seed1993"},
    "imagenet100": {"order": "seed1993"},
    "imagenet100-lucir": {"order": "seed1993"},
    "imagenet100-podnet": {"order": "seed1993"},
}
#: The rows of the paper's table that have a column for K = 50, and those that ImageNet-Full lacks.
_TO_FIFTY = ("acil", "podnet")
_NOT_IN_FULL = (("podnet", 50), *(("podnet+aanets+rmm", phases) for phases in (5, 10, 25)))
#: Exemplars of each class that a method with a memory of samples keeps, in the suite "memory".
_BUDGETS = (5, 10, 20, 50)
#: The setting that says how many samples a method keeps.
MEMORY_RULE = "memory_rule"


def variants(
    suite: str, settings: Mapping[str, Any], recorded: Mapping[str, Any], expands: bool = True
) -> list[dict[str, Any]]:
    """Return the settings of each variant; what the user set stays, except what the suite varies.

    A method that keeps samples (``own``, its settings with their defaults, has a ``memory_rule``) varies
    their number in the memory suite, one that ``expands`` its width and γ; others run once. Of the
    user's settings, ``widths`` and ``budgets`` replace the lists of these suites.
    """
    if suite not in _VARIANTS:
        raise InputError(f"There is no suite {suite!r}. Known: {', '.join(SUITES)}.")
    fixed = {name: value for name, value in settings.items() if name not in ("widths", "budgets")}
    varied = _VARIANTS[suite]
    if suite == "memory" and MEMORY_RULE in recorded:
        budgets = _numbers("budgets", settings.get("budgets", _BUDGETS))
        strict = ", strict" if str(recorded[MEMORY_RULE]).endswith("strict") else ""
        varied = [{MEMORY_RULE: f"{budget} per class{strict}"} for budget in budgets]
    elif not expands:
        varied = [{}]
    elif suite in ("width", "memory") and "widths" in settings:
        varied = [{"expansion_size": width} for width in _numbers("widths", settings["widths"])]
    return [{**fixed, **variant} for variant in varied]


def has_column(suite: str, method: str, phases: int, dataset: str = "cifar100") -> bool:
    """Say whether a suite has a result of a method for K phases: the paper's table leaves out some.

    Examples
    --------
    >>> has_column("table1", "bic", 50), has_column("table1", "bic", 25), has_column("main", "bic", 50)
    (False, True, True)
    """
    if suite != "table1":
        return True
    if dataset.partition(":")[0] == "imagenet" and (method, phases) in _NOT_IN_FULL:
        return False
    return phases != 50 or method in _TO_FIFTY


def defaults(suite: str, dataset: str | None) -> dict[str, Any]:
    """Return the settings of a run that hold where the user names no others.

    Examples
    --------
    >>> defaults("main", "imagenet100:ilsvrc")
    {'order': 'seed1993'}
    >>> defaults("table1", "imagenet:ilsvrc")["recipe"]
    'imagenet'
    """
    values = dict(DEFAULTS.get(suite, {}))
    head = str(dataset or values.get("dataset")).partition(":")[0]
    if head in DATASET_DEFAULTS:
        values |= DATASET_DEFAULTS[head] | ({"recipe": "imagenet"} if "recipe" in values else {})
    return values


def _numbers(name: str, values: Any) -> list[int]:
    if isinstance(values, str):
        # As on the command line: 5,10,50
        parts = [part.strip() for part in values.split(",")]
        values = [int(part) for part in parts] if all(part.isdecimal() for part in parts) else values
    numbers = values if isinstance(values, list | tuple) else [values]
    if not numbers or any(isinstance(v, bool) or not isinstance(v, int) or v < 1 for v in numbers):
        raise InputError(f"settings.{name} must be whole numbers of at least 1, got {values!r}.")
    return list(numbers)


def phases(n_classes: int, base: int, n_phases: int) -> Grouping:
    """Split positions in the class order into a base phase and K incremental ones.

    When the classes left do not divide by K, the first phases take one more: none is dropped. With
    ``base=0`` there is no base phase, so K phases in all; otherwise there are K + 1.

    Examples
    --------
    >>> phases(9, 4, 2)
    ((0, 1, 2, 3), (4, 5, 6), (7, 8))
    """
    if not 0 <= base <= n_classes:
        raise InputError(f"base must be between 0 and the {n_classes} classes there are, got {base}.")
    remaining = n_classes - base
    if n_phases < 1:
        raise InputError(f"The number of phases must be at least 1, got {n_phases}.")
    if remaining == 0:
        raise InputError(
            f"A base of {base} out of {n_classes} classes leaves none to learn. Use a smaller base."
        )
    if n_phases > remaining:
        raise InputError(
            f"{n_phases} phases need at least {n_phases} classes, but a base of {base} out of "
            f"{n_classes} leaves {remaining}. Use at most {remaining} phases."
        )
    size, longer = divmod(remaining, n_phases)
    stops = list(accumulate((size + (k < longer) for k in range(n_phases)), initial=base))
    parts = [tuple(range(start, stop)) for start, stop in pairwise(stops)]
    return (tuple(range(base)), *parts) if base else tuple(parts)


@dataclass(frozen=True)
class Job:
    """One pass over the data with one method."""

    method: str
    settings: dict[str, Any]
    seed: int
    #: Classes of each phase that is learnt.
    grouping: Grouping
    #: Number of phases K → its grouping, each a coarser (or the same) view of the one learnt.
    covers: dict[int, Grouping]

    @property
    def title(self) -> str:
        """What the job is, for messages."""
        counts = ", ".join(str(k) for k in sorted(self.covers))
        settings = "".join(f", {name} = {value}" for name, value in self.settings.items())
        return f"{self.method}, seed {self.seed}, K = {counts}{settings}"


def ends(grouping: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the number of classes seen after each phase."""
    return tuple(accumulate(len(classes) for classes in grouping))


def families(groupings: dict[int, Grouping]) -> list[dict[int, Grouping]]:
    """Collect groupings that one pass can serve, beginning with the finest."""
    remaining = dict(sorted(groupings.items(), key=lambda item: -len(item[1])))
    families = []
    while remaining:
        finest = next(iter(remaining.values()))
        family = {k: g for k, g in remaining.items() if set(ends(g)) <= set(ends(finest))}
        remaining = {k: g for k, g in remaining.items() if k not in family}
        families.append(family)
    return families
