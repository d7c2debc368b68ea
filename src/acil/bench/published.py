"""Published numbers, with their sources and caveats, read from ``published.toml``."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from importlib import resources

_FACTS = tomllib.loads(
    resources.files("acil.bench").joinpath("published.toml").read_text(encoding="utf-8")
)
#: Errors and traps of the paper as a whole, to keep in mind beside any of its numbers.
PAPER_NOTES: tuple[str, ...] = tuple(_FACTS["traps"])
#: Classes of phase 0 and in all, under which published numbers may stand beside ours.
PROTOCOLS = {"cifar100": (50, 100), "imagenet-subset": (50, 100), "imagenet-full": (500, 1000)}
#: Data sets of ours that are among those of the paper: its rows mix both subsets.
_NAMES = dict.fromkeys(("imagenet100", "imagenet100-lucir", "imagenet100-podnet"), "imagenet-subset")
_NAMES["imagenet"] = "imagenet-full"
_PAPER = str(_FACTS["paper"])
#: Recipe → the source that it follows. Rows of other recipes have no numbers to be compared with.
_SOURCE_OF_RECIPE = {"paper": _PAPER, "imagenet": _PAPER, "authors": "authors' code"}
_SOURCE_OF_RECIPE["imagenet-authors"] = "authors' code"


#: Data sets of which numbers of pre-trained networks are published.
PRETRAINED: tuple[str, ...] = tuple(dict.fromkeys(row["dataset"] for row in _FACTS["pretrained"]))


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


def protocol_name(dataset: str) -> str:
    """Return the name under which a data set of ours is in `PROTOCOLS`, if it is there.

    Examples
    --------
    >>> protocol_name("imagenet100-podnet:ilsvrc"), protocol_name("digits")
    ('imagenet-subset', 'digits')
    """
    return _NAMES.get(dataset.partition(":")[0], dataset)


def published(dataset: str, method: str, phases: int, recipe: str = "paper") -> Published | None:
    """Return what the source that a recipe follows has for a method at K; None if there is none.

    Data sets are those of `PROTOCOLS`. The source is mostly the paper's main table.

    Examples
    --------
    >>> published("cifar100", "acil", 50).average_accuracy
    66.01
    >>> published("cifar100", "acil", 25, "authors").average_accuracy
    71.05
    >>> published("cifar100", "acil", 25, "strong") is None
    True
    """
    followed = _SOURCE_OF_RECIPE.get(recipe)
    if followed != _PAPER:
        return next((one for one in elsewhere(dataset, method, phases) if one.source == followed), None)
    average, forgetting = (
        dict(zip(_FACTS["phases"], _FACTS[table].get(dataset, {}).get(method, ()), strict=False))
        for table in ("average_accuracy", "forgetting")
    )
    if phases not in average and phases not in forgetting:
        return None
    wanted = {"dataset": dataset, "method": method, "phases": phases}
    notes = [
        str(entry["note"])
        for entry in _FACTS["notes"]
        if all(entry.get(name, value) == value for name, value in wanted.items())
    ]
    source = f"{_PAPER}, main table"
    return Published(average.get(phases), forgetting.get(phases), source, tuple(notes))


def elsewhere(dataset: str, method: str, phases: int) -> tuple[Published, ...]:
    """Return what others than the paper report for a method, with a base of half the classes."""
    return tuple(
        Published(
            entry["average_accuracy"][str(phases)],
            None,
            entry["source"],
            tuple(entry.get("notes", ())),
            entry.get("approximate", False),
        )
        for entry in _FACTS["elsewhere"]
        if entry.get("dataset", "cifar100") == dataset
        and entry["method"] == method
        and str(phases) in entry["average_accuracy"]
    )


def pretrained(dataset: str) -> tuple[str, ...]:
    """Return what others report with pre-trained networks whose classes come from zero, in words.

    Examples
    --------
    >>> pretrained("cub")[0]
    'RanPAC, ViT-B/16: A_K 88.70 (width 10,000, no adapter; McDonnell et al., RanPAC, NeurIPS 2023)'
    """
    lines = []
    for row in _FACTS["pretrained"]:
        if row["dataset"] != dataset.partition(":")[0]:
            continue
        names = {"average_accuracy": "Ā", "last_accuracy": "A_K"}
        numbers = ", ".join(f"{names[name]} {row[name]:.2f}" for name in names if name in row)
        source = row["source"] + ", read second-hand" * row.get("second_hand", False)
        about = "; ".join(part for part in (row.get("note", ""), source) if part)
        lines.append(f"{row['method']}, {row['backbone']}: {numbers} ({about})")
    return tuple(lines)


def ablation(dataset: str, expansion: bool, gamma: float, phases: int = 5) -> Published | None:
    """Return what the paper's ablation has, with or without expansion, at a ridge strength γ."""
    for entry in _FACTS["ablation"] if (dataset, phases) == ("cifar100", 5) else ():
        if entry["expansion"] == expansion and math.isclose(entry["gamma"], gamma):
            source, notes = f"{_PAPER}, ablation", tuple(entry.get("notes", ()))
            return Published(entry["average_accuracy"], None, source, notes)
    return None
