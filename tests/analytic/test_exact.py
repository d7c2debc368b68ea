"""Sums of products with the digits beyond float64, against long double."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acil.analytic import Statistics, exact
from acil.analytic.exact import add_gram_pair_, merge_gram_pair_, product_pair, tile_pair

#: Relative to the largest product: sums in float64 are off by 1e-16, long double by 1e-19.
NEARLY_EXACT = 2e-19


@pytest.fixture(autouse=True, params=[256, 5], ids=["one tile", "many tiles"])
def tiles(request, monkeypatch):
    """Run everything with one tile and with many."""
    monkeypatch.setattr(exact, "_TILE", request.param)


def rows_of(n, d, seed=0):
    rng = np.random.default_rng(seed)
    # Columns of very different size, with zeros as from a rectifier
    return torch.from_numpy(np.maximum(rng.normal(size=(n, d)), 0) * 10.0 ** rng.integers(-8, 8, d))


def zeros(d):
    return torch.zeros(d, d, dtype=torch.float64), torch.zeros(d, dtype=torch.float64)


def value(gram, diagonal_low):
    """The matrix of pairs in long double, its lower triangle mirrored."""
    whole = slice(0, len(gram))
    high, low = tile_pair(gram, diagonal_low, whole, whole)
    return high.numpy().astype(np.longdouble) + low.numpy().astype(np.longdouble)


def product(rows):
    X = rows.numpy().astype(np.longdouble)
    return X.T @ X


def scaled_error(found, expected):
    size = np.sqrt(np.maximum(np.diagonal(expected), np.finfo(np.float64).tiny))
    return float(np.abs((found - expected) / np.outer(size, size)).max())


@given(n=st.integers(1, 60), d=st.integers(1, 17), seed=st.integers(0, 999), cut=st.integers(0, 60))
def test_products_are_added_without_rounding(n, d, seed, cut):
    rows, (gram, low) = rows_of(n, d, seed), zeros(d)
    for part in (rows[:cut], rows[cut:]):
        if len(part):
            add_gram_pair_(gram, low, part)
    assert scaled_error(value(gram, low), product(rows)) <= 10 * NEARLY_EXACT
    plain = (rows.T @ rows).numpy()
    assert scaled_error(gram.tril().numpy(), np.tril(plain)) <= 1e-14


def test_more_rows_than_one_exact_product_can_have():
    rows, (gram, low) = rows_of(5000, 6), zeros(6)
    add_gram_pair_(gram, low, rows)
    assert scaled_error(value(gram, low), product(rows)) <= 100 * NEARLY_EXACT


def test_subtracting_leaves_what_was_there_before():
    rows, (gram, low) = rows_of(3000, 12), zeros(12)
    add_gram_pair_(gram, low, rows)
    add_gram_pair_(gram, low, rows[5:], sign=-1)
    before = product(rows)
    left = value(gram, low) - product(rows[:5])
    size = np.sqrt(np.diagonal(before))
    assert float(np.abs(left / np.outer(size, size)).max()) <= 10 * NEARLY_EXACT


def test_merging_adds_low_parts_where_there_are_some():
    rows = rows_of(40, 12)
    for other_is_pair in (False, True):
        (gram, low), (other, other_low) = zeros(12), zeros(12)
        add_gram_pair_(gram, low, rows[:20])
        add_gram_pair_(other, other_low, rows[20:])
        if not other_is_pair:
            other = other.tril() + torch.full_like(other, torch.nan).triu(1)
        merge_gram_pair_(gram, low, other, other_low if other_is_pair else None)
        error = scaled_error(value(gram, low), product(rows))
        assert (error <= 10 * NEARLY_EXACT) == other_is_pair
        assert error <= 1e-15


@pytest.mark.parametrize("weighted", [False, True])
def test_product_with_targets(weighted):
    rng = np.random.default_rng(0)
    rows = rows_of(5000, 7)
    targets = torch.from_numpy(np.eye(3)[rng.integers(0, 3, 5000)])
    if weighted:
        targets *= torch.from_numpy(rng.uniform(0.1, 2, (5000, 1)))
    high, low = product_pair(rows, targets)
    expected = rows.numpy().astype(np.longdouble).T @ targets.numpy().astype(np.longdouble)
    found = high.numpy().astype(np.longdouble) + low.numpy().astype(np.longdouble)
    assert float(np.abs(found - expected).max() / np.abs(expected).max()) <= 100 * NEARLY_EXACT


def test_many_single_additions_are_as_exact_as_one():
    rows, columns = rows_of(1500, 8), torch.arange(1500) % 3
    weights = torch.from_numpy(np.random.default_rng(0).uniform(0.1, 3, 1500))
    drops, once, plain = (Statistics(8, 3) for _ in range(3))
    for i in range(1500):
        one = slice(i, i + 1)
        drops.add(rows[one], columns[one], weights[one], exact_above=0.0)
        plain.add(rows[one], columns[one], weights[one])
    once.add(rows, columns, weights, exact_above=0.0)
    assert torch.equal(drops.gram.tril(), once.gram.tril())
    assert torch.equal(drops.moment, once.moment)
    assert torch.equal(drops.weights, once.weights)
    assert not torch.equal(plain.gram.tril(), once.gram.tril()), "plain sums do depend on it"
    low = [value(sums.gram, sums.low.diagonal) for sums in (drops, once)]
    assert scaled_error(*low) <= 100 * NEARLY_EXACT
