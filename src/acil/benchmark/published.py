"""Published numbers: the paper's tables and what others report, each with its source and its caveats.

Methods go by their registry names. Values are in percent; F is the positive drop on the base classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

PAPER = "Zhuang et al., ACIL, NeurIPS 2022"
_NOT_NAMED = "collected from the literature"


@dataclass(frozen=True)
class Published:
    """Numbers that somebody published for one method, data set and K."""

    #: Ā and F in percent; None where the source has none.
    average_accuracy: float | None
    forgetting: float | None
    source: str
    #: What to know before comparing.
    notes: tuple[str, ...] = ()
    #: Whether the number is known only roughly.
    approximate: bool = False


#: Classes of phase 0 and in all, under which published numbers may stand beside ours.
PROTOCOLS = {"cifar100": (50, 100), "imagenet-subset": (50, 100)}
#: Data sets of ours that are among those of the paper: its rows mix both subsets.
_SUBSETS = ("imagenet100-lucir", "imagenet100-podnet")
#: The phases K of each column, in the order of the rows below.
PHASES = (5, 10, 25, 50)

# Main table, upper panel: Ā at K = 5, 10, 25, 50.
_AVERAGE_ACCURACY: dict[str, dict[str, tuple[float, ...]]] = {
    "cifar100": {
        "lwf-exemplars": (49.59, 46.98, 45.51),
        "bic": (59.36, 54.20, 50.00),
        "icarl": (57.12, 52.66, 48.22),
        "lucir": (63.17, 60.14, 57.54),
        "podnet": (64.83, 63.19, 60.72, 57.98),
        "lucir+mnemonics": (64.95, 63.25, 63.70),
        "podnet+aanets": (66.31, 64.31, 62.31),
        "podnet+aanets+rmm": (68.36, 66.67, 64.12),
        "acil": (66.30, 66.07, 65.95, 66.01),
    },
    "imagenet-subset": {
        "lwf-exemplars": (53.62, 47.64, 44.32),
        "bic": (70.07, 64.96, 57.73),
        "icarl": (65.44, 59.88, 52.97),
        "lucir": (70.84, 68.32, 61.44),
        "podnet": (75.54, 74.33, 68.31, 62.48),
        "lucir+mnemonics": (73.30, 72.17, 71.50),
        "podnet+aanets": (76.96, 75.58, 71.78),
        "podnet+aanets+rmm": (79.50, 78.11, 75.01),
        "acil": (74.81, 74.76, 74.59, 74.13),
    },
}
# Main table, lower panel: F at K = 5, 10, 25, 50.
_FORGETTING: dict[str, dict[str, tuple[float, ...]]] = {
    "cifar100": {
        "lwf-exemplars": (43.36, 43.58, 41.66),
        "icarl": (57.12, 34.10, 36.48),
        "bic": (31.42, 32.50, 34.60),
        "lucir": (18.70, 21.34, 26.46),
        "lucir+mnemonics": (11.64, 10.90, 9.96),
        "acil": (9.00, 9.72, 9.28, 9.32),
    },
    "imagenet-subset": {
        "lwf-exemplars": (55.32, 57.00, 55.12),
        "icarl": (43.40, 45.84, 47.60),
        "bic": (27.04, 31.04, 37.88),
        "lucir": (31.88, 33.48, 35.40),
        "lucir+mnemonics": (10.20, 9.88, 11.76),
        "acil": (3.91, 3.40, 3.20, 3.43),
    },
}
# Known errors and traps: (data set or None, method, K or None) → note; None stands for all.
_NOTES: dict[tuple[str | None, str, int | None], str] = {
    (None, "lwf-exemplars", None): (
        "The paper calls this row LwF. It is very probably LwF with 20 exemplars per class: without, "
        "it is near 41 on CIFAR-100 at K = 5."
    ),
    ("cifar100", "icarl", 5): "The paper's F at K = 5 (57.12) repeats its Ā: an error.",
    (None, "podnet+aanets+rmm", None): (
        "Strict memory: old exemplars and new data share one budget, unlike in the other rows."
    ),
    (None, "acil", None): (
        "The paper's F differs between K, which it cannot for one and the same network."
    ),
    ("cifar100", "acil", None): "Consistent with the natural class order and one seed; width 8,000.",
    ("imagenet-subset", "acil", None): "Width 15,000.",
}
_SUBSET_NOTE = (
    "The paper's rows mix the two ImageNet-100 subsets (`podnet`, `lucir`), which share 9 classes."
)
#: Errors and traps of the paper as a whole, to keep in mind beside any of its numbers.
PAPER_NOTES = (
    "The paper's formula of F has the other sign than its tables; F here is the positive drop.",
    "The paper blames rounding for the fall of Ā as K grows; most of it is the finer mean.",
    "Absolute memorization is not unique to ACIL: nearest class means and exact LDA have it too.",
    "Identical to joint learning means joint ridge regression on frozen features, not joint training.",
    "The paper compares memory in elements, at a width that its ImageNet rows do not use.",
    "The paper's claim that samples cannot be recovered from R is false: it stores no sample, no more.",
)
# Ā elsewhere, CIFAR-100 with a base of 50: method, values at K, source, approximate, notes.
_ELSEWHERE: tuple[tuple[str, dict[int, float], str, bool, tuple[str, ...]], ...] = (
    ("finetune", {5: 23.0}, _NOT_NAMED, True, ()),
    ("ewc", {5: 26.0}, _NOT_NAMED, True, ()),
    ("ewc", {5: 24.5, 10: 21.2}, _NOT_NAMED, False, ()),
    ("lwf", {5: 41.0}, _NOT_NAMED, True, ("Without exemplars.",)),
    ("icarl", {5: 58.03, 10: 53.01, 25: 48.47}, _NOT_NAMED, False, ()),
    ("icarl", {5: 58.08, 10: 53.78}, "PODNet paper", False, ()),
    ("bic", {5: 56.9, 10: 53.2, 25: 49.0}, "PODNet paper", True, ()),
    ("lucir", {5: 64.0, 10: 61.2, 25: 57.6}, "PODNet paper", True, ()),
    ("lucir+mnemonics", {5: 63.3, 10: 62.3, 25: 61.0}, "later work", True, ()),
    ("podnet", {5: 64.4, 10: 62.8, 25: 59.8, 50: 56.5}, "PyCIL", False, ()),
    ("fetril", {5: 66.3, 10: 65.2}, _NOT_NAMED, False, ("ResNet-18.",)),
    ("fetril", {5: 65.8, 10: 64.9}, "PyCIL", False, ("ResNet-32, linear (FC) head.",)),
    ("fetril", {5: 65.4, 10: 65.1}, "PyCIL", False, ("ResNet-32, SVM head.",)),
    (
        "acil",
        {25: 71.05},
        "authors' code",
        False,
        ("By the recipe `authors`; ± 0.25, which is 1.96 σ; last 63.38.",),
    ),
    ("ds-al", {25: 71.28}, "authors' code", False, ("By the recipe `authors`; last 64.04.",)),
    ("real-ds-al", {5: 68.88, 10: 68.75, 25: 68.79, 50: 68.42}, _NOT_NAMED, False, ("Last ≈ 62.",)),
    ("foster", {5: 72.58, 10: 67.95, 25: 65.67, 50: 59.57}, _NOT_NAMED, False, ("Replay; grows.",)),
)
#: Recipes that follow another source than the paper's tables; their rows stand beside its numbers.
_SOURCE_OF_RECIPE = {"authors": "authors' code"}
# Ablation: CIFAR-100, ResNet-32, K = 5, width 8,000: (expansion, γ) → Ā.
_ABLATION = {
    (False, 0.1): 52.99,
    (True, 0.1): 66.30,
    (True, 0.01): 66.25,
    (True, 0.001): 66.23,
    (True, 0.0): 51.12,
}


def protocol_name(dataset: str) -> str:
    """Return the name under which a data set of ours is in `PROTOCOLS`, if it is there.

    Examples
    --------
    >>> protocol_name("imagenet100-podnet:ilsvrc"), protocol_name("digits")
    ('imagenet-subset', 'digits')
    """
    return "imagenet-subset" if dataset.partition(":")[0] in _SUBSETS else dataset


def published(dataset: str, method: str, phases: int, recipe: str | None = None) -> Published | None:
    """Return what the paper's main table, or the source of a recipe, has for a method at K, or None.

    Data sets are ``cifar100`` and ``imagenet-subset``. A recipe that follows another source is compared
    with that.

    Examples
    --------
    >>> published("cifar100", "acil", 50).average_accuracy
    66.01
    >>> published("cifar100", "acil", 25, "authors").average_accuracy
    71.05
    """
    if recipe in _SOURCE_OF_RECIPE:
        followed = _SOURCE_OF_RECIPE[recipe]
        return next((one for one in elsewhere(dataset, method, phases) if one.source == followed), None)
    average = _column(_AVERAGE_ACCURACY, dataset, method, phases)
    forgetting = _column(_FORGETTING, dataset, method, phases)
    if average is None and forgetting is None:
        return None
    return Published(average, forgetting, f"{PAPER}, main table", notes(dataset, method, phases))


def elsewhere(dataset: str, method: str, phases: int) -> tuple[Published, ...]:
    """Return what others than the paper report for a method, with a base of half the classes."""
    if dataset != "cifar100":
        return ()
    return tuple(
        Published(values[phases], None, source, remarks, approximate)
        for name, values, source, approximate, remarks in _ELSEWHERE
        if name == method and phases in values
    )


def ablation(dataset: str, expansion: bool, gamma: float, phases: int = 5) -> Published | None:
    """Return what the paper's ablation has, with or without expansion, at a ridge strength γ."""
    if dataset != "cifar100" or phases != 5:
        return None
    for (expanded, strength), value in _ABLATION.items():
        if expanded == expansion and math.isclose(strength, gamma):
            damage = "γ = 0: probably numerical damage rather than a lack of regularization."
            return Published(value, None, f"{PAPER}, ablation", () if gamma else (damage,))
    return None


def notes(dataset: str, method: str, phases: int) -> tuple[str, ...]:
    """Return the caveats about a row of the paper's main table."""
    found = [
        note
        for (data, name, k), note in _NOTES.items()
        if name == method and data in (None, dataset) and k in (None, phases)
    ]
    return (*found, *((_SUBSET_NOTE,) if dataset == "imagenet-subset" else ()))


def _column(
    table: dict[str, dict[str, tuple[float, ...]]], dataset: str, method: str, phases: int
) -> float | None:
    row = table.get(dataset, {}).get(method, ())
    # Most rows end before K = 50.
    return dict(zip(PHASES, row, strict=False)).get(phases)
