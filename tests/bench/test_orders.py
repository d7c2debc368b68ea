"""Class orders are the published ones."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import acil.bench
from acil.bench.orders import canonical_order, class_order, imagenet_subset
from acil.errors import InputError

FACTS = json.loads((Path(acil.bench.__file__).parent / "orders.json").read_text())


@pytest.mark.parametrize("n_classes", [100, 1000])
def test_seed1993_is_the_published_list(n_classes):
    assert list(class_order("seed1993", n_classes)) == FACTS[f"seed1993_{n_classes}"]


def test_orders_begin_as_the_literature_says():
    assert class_order("natural", 100) == tuple(range(100))
    assert class_order("seed1993", 1000)[:4] == (54, 7, 894, 512)
    assert class_order("podnet1", 100)[:5] == (87, 0, 52, 58, 44)
    assert class_order("podnet2", 100)[:2] == (58, 30)
    assert class_order("podnet3", 100)[:2] == (71, 54)


@given(
    st.one_of(st.sampled_from(["natural", "seed1993"]), st.integers(0, 2**32 - 1)), st.integers(1, 300)
)
def test_every_order_is_a_permutation(order, n_classes):
    assert sorted(class_order(order, n_classes)) == list(range(n_classes))


@pytest.mark.parametrize("name", ["podnet1", "podnet2", "podnet3"])
def test_podnet_orders_are_permutations_of_100_classes_only(name):
    assert sorted(class_order(name, 100)) == list(range(100))
    with pytest.raises(InputError, match="100 classes"):
        class_order(name, 10)


def test_a_seed_has_one_meaning_however_it_is_written():
    assert class_order(7, 30) == class_order("7", 30) == class_order("seed:7", 30)
    assert class_order(1993, 30) == class_order("seed1993", 30)
    assert {canonical_order(order) for order in (7, "7", " seed:7", "seed:007")} == {"seed:7"}


def test_seeded_order_is_numpys_legacy_shuffle():
    expected = np.arange(20)
    np.random.RandomState(5).shuffle(expected)
    assert class_order(5, 20) == tuple(expected)


@pytest.mark.parametrize("order", ["podnet4", "seed:-1", -1, 2**32, "", "1.5", True, "seed:", "٣"])
def test_unknown_order_names_the_known_ones(order):
    with pytest.raises(InputError, match="natural, seed1993"):
        class_order(order, 100)
    with pytest.raises(InputError, match="at least 1"):
        class_order("natural", 0)


def test_subsets_are_those_of_their_papers():
    assert imagenet_subset("podnet") == tuple(range(100))
    # LUCIR: np.random.seed(1993), then a choice of 100 out of 1000
    chosen = np.random.RandomState(1993).choice(1000, 100, replace=False)
    assert imagenet_subset("lucir") == tuple(sorted(chosen))
    with pytest.raises(InputError, match="lucir and podnet"):
        imagenet_subset("tiny")
