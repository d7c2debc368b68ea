"""Which classes are learnt in which phase."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from acil.benchmark.orders import canonical_order, class_order
from acil.errors import InputError

__all__ = ["Protocol", "base_size", "canonical_order", "class_order", "make_protocol", "phases"]


@dataclass(frozen=True)
class Protocol:
    """Class order and phases of one benchmark; labels are positions in the order.

    Attributes
    ----------
    order : str
        Canonical name of the class order.
    classes : tuple of int
        Labels in the data set, by position in the order; only the classes that take part.
    base : int
        Number of classes in the base phase. With 0 there is none.
    n_phases : int
        Number K of incremental phases.
    phases : tuple of tuple of int
        Positions learnt in each phase, the base phase first.
    """

    order: str
    classes: tuple[int, ...]
    base: int
    n_phases: int
    phases: tuple[tuple[int, ...], ...]

    def positions(self, labels: Tensor) -> Tensor:
        """Return the position of each label in the class order, -1 for classes that are left out.

        Parameters
        ----------
        labels : Tensor of shape (n,), int64
            Labels of the data set.
        """
        highest = max([*self.classes, *([] if labels.numel() == 0 else [int(labels.max())])])
        table = torch.full((highest + 1,), -1, dtype=torch.int64)
        table[list(self.classes)] = torch.arange(len(self.classes))
        return table[labels]


def make_protocol(
    n_classes: int,
    n_phases: int,
    *,
    order: str | int = "natural",
    base: int | str | None = None,
    classes: int | None = None,
) -> Protocol:
    """Return the protocol of a benchmark on a data set.

    Parameters
    ----------
    n_classes : int
        Classes of the data set.
    n_phases : int
        Number K of incremental phases.
    order : str or int
        See `acil.benchmark.orders.class_order`.
    base : int or str, optional
        Classes of the base phase, or a named protocol such as ``"B50"``; by default ``"B50"``.
    classes : int, optional
        Use only the first classes of the order.

    Examples
    --------
    >>> make_protocol(10, 2).phases
    ((0, 1, 2, 3, 4), (5, 6, 7), (8, 9))
    """
    chosen = class_order(order, n_classes)
    if classes is not None:
        if not 1 <= classes <= n_classes:
            raise InputError(f"The data set has {n_classes} classes; cannot use {classes} of them.")
        chosen = chosen[:classes]
    n_base = base_size("B50" if base is None else base, len(chosen))
    parts = phases(len(chosen), n_base, n_phases)
    return Protocol(canonical_order(order), chosen, n_base, n_phases, parts)


def base_size(base: int | str, n_classes: int) -> int:
    """Return the number of base classes that a number or a named protocol means.

    ``"B50"`` is half of the classes (rounded down), whatever their number, and ``"B0"`` none: the number
    in the name is the share in percent, as with CIFAR-100, where the name comes from.

    Examples
    --------
    >>> base_size("B50", 100), base_size("B50", 7), base_size(40, 100)
    (50, 3, 40)
    """
    if isinstance(base, str) and re.fullmatch(r"[Bb](100|[0-9]{1,2})", base):
        return n_classes * int(base[1:]) // 100
    if isinstance(base, bool) or not isinstance(base, int):
        raise InputError(f"base must be a number of classes or a name such as B50, got {base!r}.")
    if not 0 <= base <= n_classes:
        raise InputError(f"base must be between 0 and the {n_classes} classes there are, got {base}.")
    return base


def phases(n_classes: int, base: int, n_phases: int) -> tuple[tuple[int, ...], ...]:
    """Split positions in the class order into a base phase and K incremental ones.

    When the classes left do not divide by K, the first phases take one more: none is dropped. With
    ``base=0`` there is no base phase, so K phases in all; otherwise there are K + 1.

    Parameters
    ----------
    n_classes, base : int
    n_phases : int
        K, from 1 to the number of classes that the base phase leaves.

    Examples
    --------
    >>> phases(9, 4, 2)
    ((0, 1, 2, 3), (4, 5, 6), (7, 8))
    """
    base, left = base_size(base, n_classes), n_classes - base
    if n_phases < 1:
        raise InputError(f"The number of phases must be at least 1, got {n_phases}.")
    if left == 0:
        raise InputError(
            f"A base of {base} out of {n_classes} classes leaves none to learn. Use a smaller base."
        )
    if n_phases > left:
        raise InputError(
            f"{n_phases} phases need at least {n_phases} classes, but a base of {base} out of "
            f"{n_classes} leaves {left}. Use at most {left} phases."
        )
    size, longer = divmod(left, n_phases)
    parts = [tuple(range(base))] if base else []
    start = base
    for k in range(n_phases):
        stop = start + size + (k < longer)
        parts.append(tuple(range(start, stop)))
        start = stop
    return tuple(parts)
