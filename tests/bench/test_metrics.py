"""Metrics have the values of benchmark practice on cases worked by hand, and their properties."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score

from acil.bench import job as metrics
from acil.bench.plan import phases
from acil.errors import InputError

# Three phases (classes {0, 1}, {2}, {3}), two test images of each class, predictions after each phase.
GROUPS = ((0, 1), (2,), (3,))
LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
AFTER = [
    torch.tensor([0, 0, 1, 1]),
    torch.tensor([0, 2, 1, 1, 2, 1]),
    torch.tensor([0, 2, 3, 1, 2, 2, 3, 0]),
]


def matrix():
    rows = []
    for k, predictions in enumerate(AFTER):
        labels = LABELS[: len(predictions)]
        rows.append(metrics.accuracy_by_origin(predictions, labels, GROUPS[: k + 1]))
    return rows


def curve():
    return [metrics.accuracy(p, LABELS[: len(p)]) for p in AFTER]


def test_known_answers():
    assert curve() == [100.0, pytest.approx(400 / 6), 62.5]
    assert matrix() == [(100.0,), (75.0, 50.0), (50.0, 100.0, 50.0)]


labelled = st.integers(1, 60).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 5), min_size=n, max_size=n),
        st.lists(st.integers(0, 5), min_size=n, max_size=n),
    )
)


@given(labelled)
def test_accuracy_is_scikit_learns_in_percent(pair):
    labels, predictions = pair
    expected = 100 * accuracy_score(labels, predictions)
    assert metrics.accuracy(torch.tensor(predictions), torch.tensor(labels)) == pytest.approx(expected)


@given(labelled)
def test_overall_accuracy_is_the_sample_weighted_mean_of_origins(pair):
    labels = torch.tensor([*range(6), *pair[0]])
    predictions = torch.tensor([*range(6), *pair[1]])
    groups = phases(6, 2, 3)
    row = metrics.accuracy_by_origin(predictions, labels, groups)
    counts = [int(torch.isin(labels, torch.tensor(g)).sum()) for g in groups]
    weighted = sum(a * n for a, n in zip(row, counts, strict=True)) / sum(counts)
    assert metrics.accuracy(predictions, labels) == pytest.approx(weighted)


@pytest.mark.parametrize(
    "call",
    [
        lambda: metrics.accuracy(torch.tensor([1]), torch.tensor([1, 2])),
        lambda: metrics.accuracy(torch.tensor([[1]]), torch.tensor([[1]])),
        lambda: metrics.accuracy(torch.tensor([]), torch.tensor([])),
        lambda: metrics.accuracy_by_origin(torch.tensor([0]), torch.tensor([0]), [(0,), (1,)]),
    ],
)
def test_what_has_no_meaning_is_an_input_error(call):
    with pytest.raises(InputError):
        call()
