"""The half-precision copy: shares what it must, halves what it may, and passes gradients back."""

import torch
from torch import nn

from acil.bench.training.objectives import CrossEntropy, Distilling
from acil.bench.training.step import HalfPrecisionCopy, _with_fast_teacher


def small_network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)
    )


def test_convolutions_and_products_are_halved_and_the_rest_is_shared():
    network = small_network()
    copy = HalfPrecisionCopy(network).network
    assert copy[0].weight.dtype == copy[4].weight.dtype == copy[4].bias.dtype == torch.float16
    assert network[0].weight.dtype == torch.float32
    assert copy[1].weight is network[1].weight
    assert copy[1].running_mean.data_ptr() == network[1].running_mean.data_ptr()


def test_gradients_reach_the_float32_weights():
    network = small_network()
    half = HalfPrecisionCopy(network)
    x, y = torch.randn(5, 3, 4, 4), torch.tensor([0, 1, 0, 1, 1])
    reference = small_network()
    nn.functional.cross_entropy(reference(x), y).backward()
    half.clear()
    with torch.autocast("cpu", torch.float16):
        scores = half.network(x)
    nn.functional.cross_entropy(scores.float(), y).backward()
    half.collect()
    for own, expected in zip(network.parameters(), reference.parameters(), strict=True):
        assert own.grad.dtype == torch.float32
        torch.testing.assert_close(own.grad, expected.grad, rtol=2e-2, atol=2e-3)


def test_refresh_takes_over_new_weights_and_count_counts():
    network = small_network()
    half = HalfPrecisionCopy(network)
    with torch.no_grad():
        network[4].weight.add_(1)
    assert not torch.equal(half.network[4].weight.float(), network[4].weight)
    half.refresh()
    torch.testing.assert_close(half.network[4].weight.float(), network[4].weight, rtol=1e-3, atol=1e-3)
    half.count()
    half.count()
    assert network[1].num_batches_tracked == 2


def test_frozen_weights_get_no_gradient():
    network = small_network()
    network[0].weight.requires_grad_(False)
    half = HalfPrecisionCopy(network)
    with torch.autocast("cpu", torch.float16):
        half.network(torch.randn(5, 3, 4, 4)).float().sum().backward()
    half.collect()
    assert network[0].weight.grad is None
    assert network[4].weight.grad.abs().sum() > 0


def test_teacher_of_a_half_training_is_a_half_copy_and_the_given_one_stays():
    teacher = small_network().eval()
    objective = Distilling(teacher, 2, 2.0)
    fast = _with_fast_teacher(objective, half=True, compiled=False, device=torch.device("cpu"))
    assert fast.teacher[0].weight.dtype == torch.float16
    assert not fast.teacher.training
    assert objective.teacher is teacher
    assert teacher[0].weight.dtype == torch.float32
    assert fast.identity == objective.identity
    x = torch.randn(5, 3, 4, 4)
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        torch.testing.assert_close(fast.teacher(x), teacher(x), rtol=0, atol=0)


def test_objectives_without_a_teacher_and_full_precision_are_left_alone():
    plain, distilling = CrossEntropy(), Distilling(small_network(), 2, 2.0)
    for objective, half in ((plain, True), (distilling, False)):
        assert _with_fast_teacher(objective, half, False, torch.device("cpu")) is objective
