"""Network: a backbone with a classifier that can grow."""

import pytest
import torch

from acil.errors import InputError
from acil.training.network import Network
from acil.vision.backbones import build


def make(n_classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Network(build("smallcnn", generator), n_classes, generator=generator).eval()


def test_forward_is_a_linear_classifier_on_the_features():
    network, x = make(), torch.randn(4, 1, 8, 8)
    expected = network.features(x) @ network.classifier.weight.T + network.classifier.bias
    torch.testing.assert_close(network(x), expected)
    assert network.n_classes == 3


def test_same_seed_gives_the_same_network_whatever_the_global_generator():
    first = make().state_dict()
    torch.rand(3)
    second = make().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(make(seed=1).classifier.weight, make().classifier.weight)


def test_building_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    make().grow(5, torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_growing_keeps_the_old_scores():
    network, x = make(), torch.randn(4, 1, 8, 8)
    before = network(x)
    network.grow(7, torch.Generator().manual_seed(1))
    after = network(x)
    assert after.shape == (4, 7)
    torch.testing.assert_close(after[:, :3], before)
    assert network.n_classes == 7
    bound = 64**-0.5
    assert network.classifier.weight[3:].abs().max() <= bound
    assert network.classifier.weight[3:].std().item() == pytest.approx(bound / 3**0.5, rel=0.2)
    assert network.classifier.weight.requires_grad


def test_growing_to_the_same_size_changes_nothing_and_shrinking_is_an_error():
    network = make()
    layer = network.classifier
    network.grow(3)
    assert network.classifier is layer
    with pytest.raises(InputError, match="3 outputs"):
        network.grow(2)
    with pytest.raises(InputError, match="at least one"):
        make(0)
