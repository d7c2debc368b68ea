"""Which floating-point types a model uses."""

import dataclasses

import pytest
import torch

from acil.analytic import PRECISIONS


def test_rounding_is_half_the_distance_to_the_next_number():
    assert PRECISIONS["float64"].rounding == 2.0**-53
    assert PRECISIONS["float32"].rounding == 2.0**-24
    assert PRECISIONS["mixed"].rounding == 2.0**-24


def test_mixed_multiplies_in_float32_and_sums_in_float64():
    mixed = PRECISIONS["mixed"]
    assert (mixed.products, mixed.sums) == (torch.float32, torch.float64)
    assert mixed.max_block_rows < PRECISIONS["float32"].max_block_rows


def test_names_are_the_keys_and_nothing_can_be_changed():
    assert all(name == precision.name for name, precision in PRECISIONS.items())
    with pytest.raises(dataclasses.FrozenInstanceError):
        PRECISIONS["mixed"].sums = torch.float32
