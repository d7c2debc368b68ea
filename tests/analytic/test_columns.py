"""Columns of classes move when others come between them."""

import pytest
import torch

from acil.analytic.columns import spread


@pytest.mark.parametrize("positions", [[], [0, 1, 2], [0, 2, 4], [1, 0, 2], [3, 4, 5]])
def test_every_column_is_where_it_was_sent_and_the_others_are_zero(positions):
    matrix = torch.arange(1.0, 1 + 4 * len(positions)).view(4, -1) if positions else torch.empty(4, 0)
    found = spread(matrix, torch.tensor(positions, dtype=torch.int64), 6)
    assert found.shape == (4, 6)
    for column, position in enumerate(positions):
        assert torch.equal(found[:, position], matrix[:, column])
    others = [position for position in range(6) if position not in positions]
    assert not found[:, others].any()


def test_nothing_is_shared():
    matrix = torch.ones(2, 2)
    spread(matrix, torch.tensor([0, 1]), 2).zero_()
    assert matrix.all()
