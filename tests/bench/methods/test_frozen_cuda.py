"""Methods on frozen features on a GPU: the CPU's state, up to rounding, and its predictions."""

import pytest
import torch

from support.frozen_phases import FROZEN, GROUPS, gaussians, learnt, method, phases, vectors

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

#: float64 sums in another order, and what a solve makes of them.
ROUNDING = 1e-8


@pytest.mark.parametrize("name", FROZEN)
def test_gpu_learns_what_the_cpu_learns(name):
    features, labels = gaussians(per_class=40)
    all_phases = phases(features, labels, GROUPS)
    cpu, gpu = (learnt(name, all_phases, device=device) for device in ("cpu", "cuda"))
    expected, found = cpu.state_dict(), gpu.state_dict()
    assert expected.keys() == found.keys()
    # The SVC stops at its own tolerance.
    left_out = ("weight", "bias") if name == "fetril" else ()
    for key, value in expected.items():
        if isinstance(value, torch.Tensor) and key not in left_out:
            assert found[key].device.type == "cpu"
            torch.testing.assert_close(found[key], value, rtol=ROUNDING, atol=ROUNDING)
    agreement = cpu.predict(vectors(features)) == gpu.predict(vectors(features))
    assert agreement.double().mean() > 0.99


@pytest.mark.parametrize("name", FROZEN)
def test_state_moves_between_devices(name):
    features, labels = gaussians()
    gpu = learnt(name, phases(features, labels, GROUPS), device="cuda")
    cpu = method(name)
    cpu.load_state_dict(gpu.state_dict())
    agreement = cpu.predict(vectors(features)) == gpu.predict(vectors(features))
    assert agreement.double().mean() > 0.95


def test_linear_layer_of_fetril_is_trained_on_the_gpu():
    features, labels = gaussians(per_class=40)
    settings = {"fetril_classifier": "fc", "fetril_epochs": 30, "fetril_learning_rate": 0.5}
    model = learnt("fetril", phases(features, labels, GROUPS), device="cuda", **settings)
    assert model.weight.device.type == "cuda"
    assert (model.predict(vectors(features)) == labels).double().mean() > 0.7
