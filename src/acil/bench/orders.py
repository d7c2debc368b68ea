"""Class orders and ImageNet-100 subsets: drawn by a seed, or published ones, from ``orders.json``."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

import numpy as np

from acil.errors import InputError

Subset = Literal["lucir", "podnet"]
PODNET_ORDERS = ("podnet1", "podnet2", "podnet3")
#: Seeds that NumPy's legacy generator takes.
_MOST_SEED = 2**32 - 1


def canonical_order(order: str | int) -> str:
    """Return the one name of a class order, as records write it.

    Known are ``"natural"``, ``"seed1993"``, ``"podnet1"`` … ``"podnet3"``, ``"seed:7"``, or a seed as a
    number or as text.

    Examples
    --------
    >>> canonical_order(7), canonical_order("7"), canonical_order("seed:1993")
    ('seed:7', 'seed:7', 'seed1993')
    """
    name = str(order).strip()
    if name in ("natural", "seed1993", *PODNET_ORDERS):
        return name
    digits = name.removeprefix("seed:")
    # isdecimal alone would let other scripts' digits through, which look different in a record.
    if not (digits.isascii() and digits.isdecimal()) or int(digits) > _MOST_SEED:
        raise InputError(
            f"There is no class order {order!r}. Known: natural, seed1993, {', '.join(PODNET_ORDERS)}, "
            f"or a seed from 0 to {_MOST_SEED} (7 or seed:7)."
        )
    return "seed1993" if int(digits) == 1993 else f"seed:{int(digits)}"


def class_order(order: str | int, n_classes: int) -> tuple[int, ...]:
    """Return the classes of a data set in the order in which they are learnt.

    That is a permutation of ``range(n_classes)``: label in the data set, by position. The order is over
    all classes of the data set; a benchmark on fewer classes keeps the first ones. For the names of
    orders see `canonical_order`.

    A seed means what it means in LUCIR, PyCIL and FACIL: NumPy's legacy generator (whose stream NumPy
    has frozen) shuffles ``0 … n_classes - 1``. PODNet's orders, of which the first is iCaRL's, are lists
    of 100 classes.

    Examples
    --------
    >>> class_order("seed1993", 100)[:5]
    (68, 56, 78, 8, 23)
    """
    if n_classes < 1:
        raise InputError(f"A class order needs at least 1 class, got {n_classes}.")
    name = canonical_order(order)
    if name == "natural":
        return tuple(range(n_classes))
    if name in PODNET_ORDERS:
        listed = _facts()["podnet_100"][PODNET_ORDERS.index(name)]
        if n_classes != len(listed):
            raise InputError(
                f"The class order {name} lists {len(listed)} classes, but the data set has {n_classes}. "
                "Use natural, seed1993 or a seed."
            )
        return tuple(listed)
    seed = 1993 if name == "seed1993" else int(name.removeprefix("seed:"))
    shuffled = list(range(n_classes))
    np.random.RandomState(seed).shuffle(shuffled)
    return tuple(shuffled)


def imagenet_subset(name: Subset) -> tuple[int, ...]:
    """Return an ImageNet-100 subset as positions in the sorted list of the 1000 wnids.

    Two subsets exist in published work and share 9 classes: ``"lucir"`` (LUCIR, AANets, Mnemonics) and
    ``"podnet"`` (PODNet, BiC: the first 100).

    Examples
    --------
    >>> len(set(imagenet_subset("lucir")) & set(imagenet_subset("podnet")))
    9
    """
    if name not in get_args(Subset):
        known = " and ".join(get_args(Subset))
        raise InputError(f"There is no ImageNet-100 subset {name!r}. Known: {known}.")
    return tuple(_facts()[f"imagenet_subset_{name}"])


def imagenet_classes() -> tuple[str, ...]:
    """Return the names of the 1000 classes of ILSVRC 2012, its wnids, sorted.

    Examples
    --------
    >>> imagenet_classes()[:2]
    ('n01440764', 'n01443537')
    """
    return tuple(_facts()["imagenet_wnids"].split())


@cache
def _facts() -> dict[str, Any]:
    text = resources.files("acil.bench").joinpath("orders.json").read_text(encoding="utf-8")
    facts: dict[str, Any] = json.loads(text)
    return facts
