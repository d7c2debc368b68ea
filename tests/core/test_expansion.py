"""The random expansion: reproducible from its seed alone."""

import hashlib

import numpy as np
import pytest
import torch
from torch.nn import functional

from acil.core.expansion import ACTIVATIONS, Expansion

#: SHA-256 of the first 64 x 128 numbers that torch draws for seed 0 on the CPU in float32. If this
#: changes, no model can be merged with one made before (files keep their own projection).
SEED_ZERO = "2867c1fc3182111a19618b652f4c3825ea2ab465ee864f22681f0a4b4a5d560d"

REFERENCES = {
    "relu": functional.relu,
    "tanh": torch.tanh,
    "gelu": functional.gelu,
    "identity": lambda X: X,
    "fourier": torch.cos,
}


def rows(n=10, width=6, dtype=torch.float64):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(
        dtype
    )


def test_projection_of_seed_zero_is_the_one_it_has_always_been():
    projection = Expansion.draw(64, 128, "relu", seed=0).projection
    assert projection.dtype == torch.float32
    assert hashlib.sha256(projection.numpy().tobytes()).hexdigest() == SEED_ZERO
    assert projection.flatten()[:3].tolist() == pytest.approx([-1.12584, -1.15236, -0.250579], abs=1e-6)


def test_projection_is_standard_normal():
    projection = Expansion.draw(300, 400, "relu", seed=5).projection.double()
    assert abs(float(projection.mean())) < 0.015  # five standard errors
    assert abs(float(projection.var()) - 1) < 0.02


def test_seed_alone_decides():
    torch.manual_seed(1)
    first = Expansion.draw(6, 20, "relu", seed=3)
    torch.manual_seed(2)
    second = Expansion.draw(6, 20, "relu", seed=3)
    assert torch.equal(first.projection, second.projection)
    assert not torch.equal(first.projection, Expansion.draw(6, 20, "relu", seed=4).projection)


def test_the_default_type_of_torch_does_not_change_the_projection():
    torch.set_default_dtype(torch.float64)
    try:
        expansion = Expansion.draw(6, 20, "relu", seed=3)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(expansion.projection, Expansion.draw(6, 20, "relu", seed=3).projection)


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
def test_dtype_and_device_of_rows_do_not_change_the_projection(device):
    expansion = Expansion.draw(6, 20, "relu", seed=3)
    before = expansion.projection.clone()
    results = {}
    for dtype in (torch.float64, torch.float32, torch.float64):
        results[dtype] = expansion(rows().to(device, dtype))
        assert results[dtype].dtype == dtype
        assert results[dtype].device.type == device
    assert torch.equal(expansion.projection, before)
    assert expansion.projection.dtype == torch.float32
    exact = np.maximum(rows().numpy() @ before.double().numpy(), 0)
    assert np.allclose(results[torch.float64].cpu().numpy(), exact, rtol=1e-13, atol=1e-13)
    assert np.allclose(results[torch.float32].cpu().numpy(), exact, rtol=1e-4, atol=1e-5)


def test_every_activation_has_a_reference():
    assert ACTIVATIONS.keys() == REFERENCES.keys() | {"gaussian"}


@pytest.mark.parametrize("activation", REFERENCES)
def test_activations_are_those_of_torch(activation):
    expansion = Expansion.draw(6, 20, activation, seed=3)
    X = rows()
    before = X.clone()
    expected = REFERENCES[activation](X @ expansion.projection.double())
    assert torch.equal(expansion(X), expected)
    assert torch.equal(X, before), "the rows were changed"


def test_without_expansion_features_pass_unchanged():
    expansion = Expansion.draw(6, None, "relu", seed=0)
    X = rows()
    assert expansion.size == expansion.in_features == 6
    assert torch.equal(expansion(X), X), "also negative ones: the activation is not used"
    assert expansion.column_norm() == 1.0


def test_width_is_that_of_the_projection():
    expansion = Expansion.draw(6, 20, "relu", seed=0)
    assert (expansion.in_features, expansion.size) == (6, 20)
    norms = np.linalg.norm(expansion.projection.double().numpy(), axis=0)
    assert expansion.column_norm() == pytest.approx(norms.max(), rel=1e-6)


def test_fingerprint_tells_apart_what_gives_other_features():
    kinds = [
        Expansion.draw(6, 20, "relu", 0),
        Expansion.draw(6, 20, "relu", 1),
        Expansion.draw(6, 20, "tanh", 0),
        Expansion.draw(6, 21, "relu", 0),
        Expansion.draw(20, 6, "relu", 0),
        Expansion.draw(6, None, "relu", 0),
        Expansion.draw(7, None, "relu", 0),
    ]
    assert len({expansion.fingerprint() for expansion in kinds}) == len(kinds)
    assert Expansion.draw(6, 20, "relu", 0).fingerprint() == kinds[0].fingerprint()
    # Without a projection the activation is not used, so it does not tell models apart.
    assert Expansion.draw(6, None, "tanh", 0).fingerprint() == kinds[5].fingerprint()


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_features_that_are_units_themselves_come_first_and_outweigh_the_others(activation):
    expansion = Expansion.draw(6, 600, activation, seed=0, bias=1.0, linear=True)
    X = rows(200)
    whole = expansion(X)
    assert whole.shape == (200, expansion.size) == (200, 600)
    np.testing.assert_allclose(whole[:, :6], expansion.linear * X)
    units = REFERENCES[activation](X @ expansion.projection.double() + expansion.bias.double())
    np.testing.assert_allclose(whole[:, 6:], units, atol=1e-12)
    if activation == "relu":
        lengths = [part.square().sum() for part in (whole[:, :6], whole[:, 6:])]
        assert float(lengths[0] / lengths[1]) == pytest.approx(9, rel=0.2)
    plain = Expansion(expansion.projection, activation, 6, None, expansion.bias)
    assert plain.fingerprint() != expansion.fingerprint()
    assert expansion.column_norm() >= expansion.linear
