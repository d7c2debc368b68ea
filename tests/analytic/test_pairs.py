"""Numbers as pairs of floats, against exact fractions."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acil.analytic.pairs import Pair, add_pairs, head, sum_all, sum_columns, two_sum

numbers = st.floats(-1e100, 1e100).filter(lambda x: x == 0 or abs(x) > 1e-100)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def exact(pair):
    return [Fraction(h) + Fraction(low) for h, low in zip(*(p.tolist() for p in pair), strict=True)]


@given(a=numbers, b=numbers)
def test_a_sum_and_its_error_are_the_exact_sum(a, b):
    pair = two_sum(tensor([a]), tensor([b]))
    assert exact(pair) == [Fraction(a) + Fraction(b)]
    assert pair.high.item() == a + b


@given(st.lists(numbers, min_size=1, max_size=30))
def test_pairs_lose_nothing_that_thirty_digits_show(values):
    total = Pair(tensor([0.0]), tensor([0.0]))
    for value in values:
        total = add_pairs(total, Pair(tensor([value]), tensor([0.0])))
        assert total.high.item() == total.high.item() + total.low.item(), "the high part is rounded"
    error = abs(exact(total)[0] - sum(map(Fraction, values)))
    assert error <= Fraction(2) ** -100 * len(values) * sum(abs(Fraction(v)) for v in values)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 7, 10])
def test_columns_are_summed_without_rounding(k):
    generator = torch.Generator().manual_seed(k)
    high = torch.randn(5, k, generator=generator, dtype=torch.float64) * 10.0 ** torch.arange(k)
    low = high * 1e-17
    found = exact(sum_columns(Pair(high, low)))
    expected = [
        sum(Fraction(h) + Fraction(x) for h, x in zip(*pair, strict=True))
        for pair in zip(high.tolist(), low.tolist(), strict=True)
    ]
    assert all(abs(f - e) <= 2.0**-100 * 10.0**k for f, e in zip(found, expected, strict=True))


def test_the_sum_over_all_is_correctly_rounded():
    assert sum_all(Pair(tensor([1e16, 1.0, -1e16]), tensor([0.0, 2.0**-80, 0.0]))) == (1.0, 2.0**-80)


@pytest.mark.parametrize("bits", [8, 20, 21])
@given(values=st.lists(numbers, min_size=1, max_size=8))
def test_heads_are_few_bits_and_tails_are_exact(bits, values):
    scale = max(map(abs, values))
    heads = head(tensor(values), tensor(scale), bits)
    unit = Fraction(2) ** (torch.frexp(tensor(scale)).exponent.item() - bits)
    for value, part in zip(values, heads.tolist(), strict=True):
        multiple = Fraction(part) / unit
        assert multiple.denominator == 1
        assert abs(multiple) <= 2**bits
        assert abs(Fraction(value) - Fraction(part)) <= unit / 2


def test_zeros_have_heads_too():
    assert head(tensor([0.0]), tensor(0.0), 20).tolist() == [0.0]
