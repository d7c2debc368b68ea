"""The cosine classifier: scores, frozen weights, growing and imprinting."""

import pytest
import torch

from acil.errors import InputError
from acil.methods.lucir import CosineClassifier, CosineNetwork, imprinted
from acil.training.loop import train
from acil.training.settings import Training
from acil.vision.backbones import build


def make_network(n_old=0, n_new=3):
    generator = torch.Generator().manual_seed(0)
    return CosineNetwork(build("smallcnn", generator), n_old, n_new, generator)


def test_scores_are_eta_times_the_cosine():
    head = CosineClassifier(2, 1, 1)
    with torch.no_grad():
        head.old.copy_(torch.tensor([[3.0, 4.0]]))
        head.new.copy_(torch.tensor([[0.0, 0.5]]))
        head.eta.fill_(10.0)
    # cos((2, 0), (3, 4)) = 0.6; (2, 0) and (0, 0.5) are at right angles.
    torch.testing.assert_close(head(torch.tensor([[2.0, 0.0]])), torch.tensor([[6.0, 0.0]]))
    torch.testing.assert_close(head.cosines(torch.tensor([[2.0, 0.0]])), torch.tensor([[0.6, 0.0]]))


def test_cosines_keep_float32_under_autocast():
    head = CosineClassifier(8, 1, 2, torch.Generator().manual_seed(0))
    features = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", torch.bfloat16):
        found = head(features)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, head(features), rtol=0, atol=0)


def test_growing_keeps_old_scores_and_eta():
    network = make_network().eval()
    with torch.no_grad():
        network.classifier.eta.fill_(4.0)
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    before = network(x)
    network.grow(torch.ones(2, 64))
    assert network.n_classes == 5
    # A product of another shape may sum in another order.
    torch.testing.assert_close(network(x)[:, :3], before)
    assert not network.classifier.old.requires_grad
    network.grow(torch.ones(1, 64))
    assert (len(network.classifier.old), len(network.classifier.new)) == (5, 1)


def test_old_weights_move_neither_by_gradient_nor_by_weight_decay():
    network = make_network(n_old=2, n_new=1)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    images = torch.randint(256, (30, 1, 8, 8), generator=torch.Generator().manual_seed(2)).byte()
    train(
        network,
        images,
        torch.arange(30) % 3,
        Training(epochs=2, batch_size=10, weight_decay=0.1),
        preprocessing=network.backbone.preprocessing,
        seed=0,
        device="cpu",
    )
    after = network.state_dict()
    assert torch.equal(after["classifier.old"], before["classifier.old"])
    for name in ("classifier.new", "classifier.eta", "backbone.stage1.0.weight"):
        assert not torch.equal(after[name], before[name]), name


def test_imprinted_weights_are_mean_directions_at_the_mean_length_of_old_ones():
    features = torch.tensor([[5.0, 0.0], [0.0, 0.1], [0.0, -2.0]])
    old = torch.tensor([[3.0, 4.0], [0.0, 1.0]])  # lengths 5 and 1
    found = imprinted(features, torch.tensor([7, 7, 4]), [4, 7], old)
    expected = 3 * torch.tensor([[0.0, -1.0], [0.5**0.5, 0.5**0.5]])
    torch.testing.assert_close(found, expected)


def test_classifier_without_new_classes_is_refused():
    with pytest.raises(InputError, match="at least one new class"):
        CosineClassifier(4, 3, 0)
