"""EEIL: groups of classes, two teachers, the balanced stage."""

import pytest
import torch
from torch.nn import functional

from acil.bench.methods import eeil
from acil.bench.methods.eeil import GroupDistilling, TwoTeachers
from acil.bench.training.objectives import distillation
from support.replay_problem import learnt, make_phases
from support.small_training import batch, make_network, same_state


def test_each_group_has_a_softmax_of_its_own():
    student, teacher = make_network(6, 0), make_network(5, 1)
    x, y, indices = batch(8, 6)
    loss, scores = GroupDistilling(teacher, (3, 5), 2.0, 1.5)(student, x, y, indices)
    old = teacher(x)
    first = distillation(scores[:, :3], old[:, :3], 2.0)
    second = distillation(scores[:, 3:5], old[:, 3:5], 2.0)
    expected = functional.cross_entropy(scores, y) + 1.5 * (first + second)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    together = distillation(scores[:, :5], old, 2.0)
    assert together.item() != pytest.approx((first + second).item(), rel=1e-3)
    # What is added to the teacher's scores of one group alone changes nothing.
    raised = lambda x: teacher(x) + torch.tensor([0, 0, 0, 7, 7])  # noqa: E731
    moved = GroupDistilling(raised, (3, 5), 2.0, 1.5)(student, x, y, indices)[0]
    assert moved.item() == pytest.approx(loss.item(), rel=1e-5)


def test_new_classes_are_taught_by_the_network_of_the_first_stage():
    old, new = make_network(3, 0), make_network(5, 1)
    x = batch(4)[0]
    found = TwoTeachers(old, new)(x)
    assert torch.equal(found[:, :3], old(x))
    assert torch.equal(found[:, 3:], new(x)[:, 3:])


def test_groups_are_the_phases(monkeypatch):
    made = []

    def collect(*arguments):
        made.append(GroupDistilling(*arguments))
        return made[-1]

    monkeypatch.setattr(eeil, "GroupDistilling", collect)
    phases = make_phases()
    method = learnt("eeil", phases[:2])
    before = method.network
    method.learn(phases[2])
    assert [objective.ends for objective in made] == [(3,), (3, 5), (3, 5), (3, 5, 6)]
    assert made[3].teacher.old is before
    assert not same_state(made[3].teacher.new, method.network)
    kinds = [isinstance(objective.teacher, TwoTeachers) for objective in made]
    assert kinds == [False, True, False, True]


def test_balanced_stage_sees_as_many_images_of_each_class(monkeypatch):
    seen = []
    collect = lambda self, network, data, *rest, **options: seen.append(data[1])  # noqa: E731
    monkeypatch.setattr(eeil.EEIL, "train_further", collect)
    learnt("eeil", make_phases((3, 2)), memory_rule="20 in total")
    assert [torch.bincount(labels).tolist() for labels in seen] == [[4] * 5]
