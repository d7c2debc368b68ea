"""Rows that wait for the sums."""

import copy

import pytest
import torch

from acil.analytic import PRECISIONS, GramHead, pending
from acil.analytic.pending import PendingRows
from acil.errors import InterruptedModelError


def rows_of(n, d=4, seed=0):
    return torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_what_goes_in_comes_out_once():
    queue = PendingRows()
    queue.append(rows_of(2), torch.tensor([0, 2]), None)
    queue.append(rows_of(1, seed=1), torch.tensor([2]), None)
    assert len(queue) == 3
    assert queue.counts(4).tolist() == [1, 0, 2, 0]
    rows, columns, weights = queue.take()
    assert torch.equal(rows, torch.cat([rows_of(2), rows_of(1, seed=1)]))
    assert columns.tolist() == [0, 2, 2]
    assert weights is None
    assert len(queue) == 0
    with pytest.raises(RuntimeError, match="no rows"):
        queue.take()


def test_rows_without_weights_weigh_one():
    queue = PendingRows()
    queue.append(rows_of(1), torch.tensor([0]), None)
    queue.append(rows_of(1), torch.tensor([0]), torch.tensor([2.5]))
    assert queue.take()[2].tolist() == [1.0, 2.5]


def test_it_keeps_copies():
    queue, row = PendingRows(), rows_of(1)
    queue.append(row, torch.tensor([0]), None)
    row.zero_()
    assert queue.take()[0].any()


def test_rows_and_bytes_are_bounded(monkeypatch):
    queue = PendingRows()
    assert queue.has_room(rows_of(pending._MAX_ROWS))
    assert not queue.has_room(rows_of(pending._MAX_ROWS + 1))
    queue.append(rows_of(10), torch.zeros(10, dtype=torch.int64), None)
    assert not queue.has_room(rows_of(pending._MAX_ROWS - 9))
    monkeypatch.setattr(pending, "_MAX_BYTES", 5 * 4 * 8)
    assert not PendingRows().has_room(rows_of(6))


@pytest.fixture
def streaming():
    """A head with rows that wait, and all its rows and columns."""
    rows, columns = rows_of(60, d=20), torch.arange(60) % 3
    head = GramHead(20, PRECISIONS["float64"], torch.device("cpu"), 1.0)
    head.grow(torch.zeros(0, dtype=torch.int64), 3)
    head.learn([(rows[:50], columns[:50], None)], 50)
    head.coefficients()
    for i in range(50, 60):
        head.learn([(rows[i : i + 1], columns[i : i + 1], None)], 1)
    assert head._gathered.waiting == 10
    return head, rows, columns


def test_counts_include_them_and_do_not_disturb_them(streaming):
    head, _, columns = streaming
    assert torch.equal(head.counts, torch.bincount(columns))
    assert head._gathered.waiting == 10


@pytest.mark.parametrize(
    "ask",
    [
        lambda head: head.statistics,
        lambda head: head.weights,
        lambda head: head.copy(),
        lambda head: head.moment(),
        lambda head: head.release(),
        lambda head: head.grow(torch.arange(3), 4),
        lambda head: copy.deepcopy(head.statistics),
    ],
)
def test_whoever_asks_for_the_sums_has_them_complete(streaming, ask):
    head, rows, columns = streaming
    ask(head)
    assert head._gathered.waiting == 0
    sums = head.statistics
    assert torch.allclose(sums.gram.tril(), (rows.T @ rows).tril(), rtol=1e-14, atol=1e-13)
    assert int(sums.counts.sum()) == len(columns)


def test_sums_to_which_they_were_added_half_way_are_never_used(streaming, monkeypatch):
    head, rows, columns = streaming
    before = head.coefficients()[0].clone()

    def interrupted(self, *args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("acil.analytic.statistics.Statistics.add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            head.moment()
    more = [(rows[:1], columns[:1], None)]
    for ask in (lambda: head.statistics, lambda: head.copy(), lambda: head.learn(more, 1)):
        with pytest.raises(InterruptedModelError, match="interrupted"):
            ask()
    assert torch.equal(head.coefficients()[0], before), "the weights need no sums"
    head.release()
    assert head._solution.factor._rows is None
    assert head._gathered.waiting == 0


def test_they_are_added_when_there_are_too_many(streaming, monkeypatch):
    head, rows, columns = streaming
    monkeypatch.setattr(pending, "_MAX_ROWS", 12)
    for i in range(5):
        head.learn([(rows[i : i + 1], columns[i : i + 1], None)], 1)
        assert head._gathered.waiting <= 12
    assert int(head.counts.sum()) == 65
    seen = torch.cat([rows, rows[:5]])
    assert torch.allclose(head.statistics.gram.tril(), (seen.T @ seen).tril(), rtol=1e-14, atol=1e-13)
