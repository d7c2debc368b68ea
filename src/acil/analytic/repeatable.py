"""A sequence that is made as it is read, as often as it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Repeatable(Generic[T]):
    """An iterable that starts from its first element each time.

    Parameters
    ----------
    make : callable
        Returns a fresh iterator.

    Examples
    --------
    >>> squares = Repeatable(lambda: (n * n for n in range(3)))
    >>> list(squares), list(squares)
    ([0, 1, 4], [0, 1, 4])
    """

    def __init__(self, make: Callable[[], Iterator[T]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[T]:
        return self._make()
