"""Triangles as vectors."""

import pytest
import torch

from acil.analytic import linalg
from acil.modelfile.saving import pack_lower, unpack_lower_


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 2, 5, 8, 9])
def test_packed_triangle_is_row_by_row_and_comes_back(monkeypatch, d, dtype):
    monkeypatch.setattr(linalg, "PANEL", 4)
    matrix = torch.randn(d, d, generator=torch.Generator().manual_seed(d)).to(dtype)
    matrix[torch.ones(d, d).triu(1) > 0] = torch.nan  # is not read
    rows, columns = torch.tril_indices(d, d)
    packed = pack_lower(matrix)
    assert torch.equal(packed, matrix[rows, columns])
    restored = unpack_lower_(packed, torch.full((d, d), torch.nan, dtype=dtype))
    assert torch.equal(restored[rows, columns], matrix[rows, columns])
