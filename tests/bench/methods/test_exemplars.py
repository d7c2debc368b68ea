"""Exemplars: herding, rules, ranks and bytes."""

import pytest
import torch

from acil.bench.methods.exemplars import ExemplarMemory, MemoryRule, herd
from acil.encoders.images.imageset import ImageSet
from acil.errors import InputError
from support.small_training import same_state

#: Directions a, b, c, d with mean μ = (0.08, 0.34).
FEATURES = torch.tensor([[0.8, 0.6], [0.6, -0.8], [-0.28, 0.96], [-0.8, 0.6]])


def test_herding_picks_the_order_computed_by_hand():
    # w = μ                  products 0.268, -0.224, 0.304, 0.140: c
    # w = (0.44, -0.28)               0.184, 0.488, -0.392, -0.520: b
    # w = (-0.08, 0.86)               0.452, -0.736, 0.848, 0.580: c again; w moves, nothing is picked
    # w = (0.28, 0.24)                0.368, -0.024, 0.152, -0.080: a
    # Without the move after c's second turn, d would come before a.
    assert herd(FEATURES, 4).tolist() == [2, 1, 0, 3]
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


#: CIFAR-100 in five phases.
CIFAR = (25_000, *[5000] * 5)


@pytest.mark.parametrize(
    ("text", "sizes", "kept"),
    [
        ("strict", CIFAR, [2000] * 6),
        ("20 per class, strict", CIFAR, [2000] * 6),
        (" 300 in total , strict ", CIFAR, [300] * 6),
        # 2,000 and the largest later phase: smaller ones leave more. The last one's room stays.
        ("strict", (25_000, 300, 500, 200, 400), [2200, 2000, 2300, 2100, 2100]),
        # Without a base phase the first one counts in no total, and a single one leaves nothing to plan.
        ("strict", (5000, 5000), [2000] * 2),
        ("strict", (5000,), [2000]),
    ],
)
def test_strict_rules_keep_what_the_images_of_the_next_phase_leave(text, sizes, kept):
    rule = MemoryRule.parse(text)
    found = [rule.after(index, sizes, 100) for index in range(len(sizes))]
    assert [one.quota(1) for one in found] == kept
    assert all(one.scope == "in total" and not one.strict for one in found)
    rows = zip(found, sizes[1:], strict=False)
    assert all(one.quota(1) + n == rule.budget(100) + max(sizes[1:]) for one, n in rows)


def test_rules_that_are_not_strict_are_the_same_after_every_phase():
    for text in ("20 per class", "2000 in total"):
        rule = MemoryRule.parse(text)
        assert {rule.after(index, CIFAR, 100) for index in range(6)} == {rule}
        assert rule.budget(100) == 2000


@pytest.mark.parametrize(
    "text",
    ["20", "0 per class", "-3 in total", "20 per phase", "20 per class or so", "strictly", "20 strict"],
)
def test_unreadable_rules_are_refused(text):
    with pytest.raises(InputError, match="memory_rule"):
        MemoryRule.parse(text)


def test_rule_too_small_for_all_classes_is_refused_at_once():
    with pytest.raises(InputError, match="'100 in total'"):
        ExemplarMemory(MemoryRule.parse("99 in total"), 100)


def filled(rule, labels, features=None, n_classes=4):
    """Return a memory that has seen one image of each label, whose pixels are its number."""
    memory = ExemplarMemory(rule, n_classes)
    update(memory, torch.tensor(labels), features, len(set(labels)))
    return memory


def update(memory, labels, features, n_seen):
    pixels = torch.arange(len(labels), dtype=torch.uint8).reshape(-1, 1, 1, 1).repeat(1, 1, 2, 2)
    if features is None and memory.rule.count:
        features = torch.rand(len(labels), 3)
    memory.update(ImageSet(pixels), labels, features, n_seen)


def numbers(memory, label):
    return memory.pixels[memory.labels == label][:, 0, 0, 0].tolist()


def test_memory_keeps_ranks_and_shrinks_by_truncation():
    features = torch.randn(20, 3, generator=torch.Generator().manual_seed(1))
    memory = filled(MemoryRule.parse("12 in total"), [0, 1] * 10, features)
    ranked = {label: numbers(memory, label) for label in (0, 1)}
    for label in (0, 1):
        members = torch.arange(label, 20, 2)
        assert ranked[label] == members[herd(features[members], 6)].tolist()
    update(memory, torch.full((8,), 2), features[:8], n_seen=3)
    assert memory.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert [numbers(memory, label) for label in (0, 1)] == [ranked[0][:4], ranked[1][:4]]


def test_bytes_are_those_of_pixels_and_labels():
    assert filled(MemoryRule.parse("3 per class"), [0, 1] * 5).nbytes == 6 * 4 + 6 * 8


def test_class_with_few_images_keeps_all_of_them():
    memory = filled(MemoryRule.parse("5 per class"), [0, 0] + [1] * 7)
    assert memory.labels.tolist() == [0] * 2 + [1] * 5


def test_memory_without_limit_keeps_everything_and_with_none_nothing():
    everything = filled(MemoryRule(None, "per class"), [0, 1] * 3)
    assert everything.pixels[:, 0, 0, 0].tolist() == [0, 2, 4, 1, 3, 5]
    for nothing in (filled(MemoryRule(0, "per class"), [0, 1] * 3), ExemplarMemory(everything.rule, 2)):
        assert len(nothing) == len(nothing.pixels) == nothing.nbytes == 0
        assert nothing.state_dict() == {}


def test_state_restores_pixels_and_labels():
    memory = filled(MemoryRule.parse("2 per class"), [0, 1] * 3)
    again = ExemplarMemory(memory.rule, 4)
    again.load_state_dict(memory.state_dict())
    assert same_state(again, memory)
    new = ImageSet(memory.pixels[:2]), torch.tensor([2, 2])
    assert again.with_new(*new)[1].tolist() == [2, 2, 0, 0, 1, 1]
