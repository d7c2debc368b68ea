"""Exemplars: herding, rules, ranks and bytes."""

import pytest
import torch
from replay_problem import image_set

from acil.errors import InputError, NotFittedError
from acil.methods.exemplars import ExemplarMemory, MemoryRule, herd

#: Directions a, b, c, d with mean μ = (0.08, 0.34).
FEATURES = torch.tensor([[0.8, 0.6], [0.6, -0.8], [-0.28, 0.96], [-0.8, 0.6]])


def test_herding_picks_the_order_computed_by_hand():
    # w = μ                  products 0.268, -0.224, 0.304, 0.140: c
    # w = (0.44, -0.28)               0.184, 0.488, -0.392, -0.520: b
    # w = (-0.08, 0.86)               0.452, -0.736, 0.848, 0.580: c again; w moves, nothing is picked
    # w = (0.28, 0.24)                0.368, -0.024, 0.152, -0.080: a
    # Without the move after c's second turn, d would come before a.
    assert herd(FEATURES, 4).tolist() == [2, 1, 0, 3]


def test_herding_does_not_depend_on_the_length_of_features():
    lengths = torch.tensor([[5.0], [1.0], [2.0], [0.5]])
    assert herd(lengths * FEATURES, 3).tolist() == [2, 1, 0]


def test_fewer_picks_are_the_first_of_more():
    features = torch.randn(30, 5, generator=torch.Generator().manual_seed(0))
    assert herd(features, 20)[:7].tolist() == herd(features, 7).tolist()


def test_herding_more_than_there_are_returns_each_once():
    # Identical images: the first is picked again and again, and the others must follow all the same.
    assert sorted(herd(torch.ones(5, 3), 9).tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("text", "n_classes", "quota"),
    [
        ("20 per class", 50, 20),
        ("2000 in total", 50, 40),
        ("2000 in total", 60, 33),
        (" 5 in total", 5, 1),
    ],
)
def test_rules_give_the_number_for_each_class(text, n_classes, quota):
    assert MemoryRule.parse(text).quota(n_classes) == quota


@pytest.mark.parametrize(
    "text", ["20", "0 per class", "-3 in total", "20 per phase", "20 per class or so"]
)
def test_unreadable_rules_are_refused(text):
    with pytest.raises(InputError, match="memory_rule"):
        MemoryRule.parse(text)


def test_rule_too_small_for_all_classes_is_refused_at_once():
    with pytest.raises(InputError, match="'100 in total'"):
        ExemplarMemory(MemoryRule.parse("99 in total"), 100)


def images(n):
    return torch.arange(n, dtype=torch.uint8).reshape(n, 1, 1, 1).expand(n, 1, 2, 2).contiguous()


def test_memory_keeps_ranks_and_shrinks_by_truncation():
    memory = ExemplarMemory(MemoryRule.parse("12 in total"), 4)
    labels = torch.tensor([0, 1] * 10)
    features = torch.randn(20, 3, generator=torch.Generator().manual_seed(1))
    memory.update(image_set(images(20)), labels, features, n_seen=2)
    ranked = {label: memory.pixels[memory.labels == label][:, 0, 0, 0].tolist() for label in (0, 1)}
    for label in (0, 1):
        members = torch.nonzero(labels == label).flatten()
        assert ranked[label] == members[herd(features[members], 6)].tolist()
    memory.update(image_set(images(8)), torch.full((8,), 2), features[:8], n_seen=3)
    assert memory.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    for label in (0, 1):
        assert memory.pixels[memory.labels == label][:, 0, 0, 0].tolist() == ranked[label][:4]


def test_bytes_are_those_of_pixels_and_labels():
    memory = ExemplarMemory(MemoryRule.parse("3 per class"), 4)
    assert memory.nbytes == 0
    memory.update(image_set(images(10)), torch.tensor([0, 1] * 5), torch.rand(10, 3), n_seen=2)
    assert len(memory) == 6
    assert memory.nbytes == 6 * 4 + 6 * 8


def test_class_with_few_images_keeps_all_of_them():
    memory = ExemplarMemory(MemoryRule.parse("5 per class"), 4)
    memory.update(image_set(images(9)), torch.tensor([0, 0] + [1] * 7), torch.rand(9, 3), n_seen=2)
    assert memory.labels.tolist() == [0] * 2 + [1] * 5


def test_memory_without_limit_keeps_everything_and_with_none_nothing():
    everything = ExemplarMemory(MemoryRule(None, "per class"), 4)
    everything.update(image_set(images(6)), torch.tensor([0, 1] * 3), None, n_seen=2)
    assert everything.pixels[:, 0, 0, 0].tolist() == [0, 2, 4, 1, 3, 5]
    nothing = ExemplarMemory(MemoryRule(0, "per class"), 4)
    nothing.update(image_set(images(6)), torch.tensor([0, 1] * 3), None, n_seen=2)
    assert len(nothing) == nothing.nbytes == 0
    assert nothing.state_dict() == {}


def test_an_empty_memory_has_no_pixels():
    memory = ExemplarMemory(MemoryRule.parse("2 per class"), 4)
    with pytest.raises(NotFittedError, match="Learn a phase"):
        _ = memory.pixels


def test_state_restores_pixels_and_labels():
    memory = ExemplarMemory(MemoryRule.parse("2 per class"), 4)
    memory.update(image_set(images(6)), torch.tensor([0, 1] * 3), torch.rand(6, 3), n_seen=2)
    again = ExemplarMemory(memory.rule, 4)
    again.load_state_dict(memory.state_dict())
    assert torch.equal(again.pixels, memory.pixels)
    assert torch.equal(again.labels, memory.labels)
    new = images(2), torch.tensor([2, 2])
    assert again.with_new(*new)[1].tolist() == [2, 2, 0, 0, 1, 1]
