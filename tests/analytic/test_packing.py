"""Triangles as vectors."""

import pytest
import torch

from acil.analytic import packing
from acil.analytic.packing import pack_low, pack_lower, unpack_low_, unpack_lower_


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 2, 5, 8, 9])
def test_packed_triangle_is_row_by_row_and_comes_back(monkeypatch, d, dtype):
    monkeypatch.setattr(packing, "_PANEL", 4)
    matrix = torch.randn(d, d, generator=torch.Generator().manual_seed(d)).to(dtype)
    rows, columns = torch.tril_indices(d, d)
    packed = pack_lower(matrix)
    assert torch.equal(packed, matrix[rows, columns])
    restored = unpack_lower_(packed, torch.full((d, d), torch.nan, dtype=dtype))
    assert torch.equal(restored.tril(), matrix.tril())


@pytest.mark.parametrize("d", [1, 2, 5, 8, 9])
def test_both_triangles_come_back(monkeypatch, d):
    monkeypatch.setattr(packing, "_PANEL", 4)
    matrix = torch.randn(d, d, generator=torch.Generator().manual_seed(d))
    diagonal = torch.arange(float(d))
    low = pack_low(matrix, diagonal)
    rows, columns = torch.tril_indices(d, d)
    expected = matrix.T.clone()
    expected.diagonal().copy_(diagonal)
    assert torch.equal(low, expected[rows, columns])
    for low_first in (False, True):
        restored, restored_diagonal = torch.full((d, d), torch.nan), torch.full((d,), torch.nan)
        if low_first:
            unpack_low_(low, restored, restored_diagonal)
        unpack_lower_(pack_lower(matrix), restored)
        if not low_first:
            unpack_low_(low, restored, restored_diagonal)
        assert torch.equal(restored, matrix)
        assert torch.equal(restored_diagonal, diagonal)


def test_upper_triangle_is_not_read():
    matrix = torch.full((3, 3), torch.nan).triu(1) + torch.ones(3, 3).tril()
    matrix[matrix.tril() == 0] = torch.nan
    assert torch.equal(pack_lower(matrix), torch.ones(6))
