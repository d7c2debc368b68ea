"""Network: a backbone with a classifier that can grow."""

import pytest
import torch

from support.small_training import make_network, same_state


def test_forward_is_a_linear_classifier_on_the_features():
    network, x = make_network().eval(), torch.randn(4, 1, 8, 8)
    expected = network.features(x) @ network.classifier.weight.T + network.classifier.bias
    torch.testing.assert_close(network(x), expected)
    assert network.n_classes == 3


def test_same_seed_gives_the_same_network_whatever_the_global_generator():
    first = make_network()
    torch.rand(3)
    before = torch.get_rng_state()
    second = make_network()
    assert same_state(first, second)
    second.grow(5, torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(make_network(seed=1).classifier.weight, first.classifier.weight)


def test_growing_keeps_the_old_scores():
    network, x = make_network(), torch.randn(4, 1, 8, 8)
    before, layer = network(x), network.classifier
    network.grow(3)
    assert network.classifier is layer
    network.grow(7, torch.Generator().manual_seed(1))
    after = network(x)
    assert after.shape == (4, 7)
    torch.testing.assert_close(after[:, :3], before)
    assert network.n_classes == 7
    bound = 64**-0.5
    assert network.classifier.weight[3:].abs().max() <= bound
    assert network.classifier.weight[3:].std().item() == pytest.approx(bound / 3**0.5, rel=0.2)
    assert network.classifier.weight.requires_grad
