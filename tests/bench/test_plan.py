"""Phases lose no class."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acil.bench.plan import phases
from acil.errors import InputError


@given(st.data())
def test_phases_cover_all_classes_once_and_differ_by_at_most_one(data):
    n_classes = data.draw(st.integers(1, 200))
    base = data.draw(st.integers(0, n_classes - 1))
    n_phases = data.draw(st.integers(1, n_classes - base))
    parts = phases(n_classes, base, n_phases)
    assert [c for part in parts for c in part] == list(range(n_classes))
    increments = parts[1:] if base else parts
    assert len(increments) == n_phases
    assert not base or len(parts[0]) == base
    sizes = [len(part) for part in increments]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


@pytest.mark.parametrize(("n_phases", "size"), [(5, 10), (10, 5), (25, 2), (50, 1)])
def test_cifar_phases_have_the_papers_sizes(n_phases, size):
    parts = phases(100, 50, n_phases)
    assert [len(part) for part in parts] == [50] + [size] * n_phases


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, 5, 6), "Use at most 5 phases"),
        ((10, 5, 0), "at least 1"),
        ((10, 10, 1), "leaves none"),
        ((10, 11, 1), "between 0 and the 10 classes"),
        ((10, -1, 1), "between 0 and the 10 classes"),
    ],
)
def test_impossible_phases_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        phases(*arguments)
