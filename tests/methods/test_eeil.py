"""EEIL: groups of classes, two teachers, the balanced stage."""

import dataclasses

import pytest
import torch
from replay_problem import make_context, make_phases
from torch.nn import functional

from acil.errors import InputError
from acil.methods import eeil
from acil.methods.eeil import EEILSettings, GroupDistilling, TwoTeachers
from acil.training.network import Network
from acil.training.objectives import distillation
from acil.training.recipes import RECIPES
from acil.vision.backbones import build


def network(n_classes, seed):
    generator = torch.Generator().manual_seed(seed)
    return Network(build("smallcnn", generator), n_classes, generator).eval()


def test_each_group_has_a_softmax_of_its_own():
    student, teacher = network(6, 0), network(5, 1)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(8, 1, 8, 8, generator=generator), torch.arange(8) % 6
    loss, scores = GroupDistilling(teacher, (3, 5), 2.0, 1.5)(student, x, y, torch.arange(8))
    old = teacher(x)
    first = distillation(scores[:, :3], old[:, :3], 2.0)
    second = distillation(scores[:, 3:5], old[:, 3:5], 2.0)
    expected = functional.cross_entropy(scores, y) + 1.5 * (first + second)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    together = distillation(scores[:, :5], old, 2.0)
    assert together.item() != pytest.approx((first + second).item(), rel=1e-3)
    # What is added to the teacher's scores of one group alone changes nothing.
    moved = GroupDistilling(Moved(teacher, 3), (3, 5), 2.0, 1.5)(student, x, y, torch.arange(8))[0]
    assert moved.item() == pytest.approx(loss.item(), rel=1e-5)


class Moved(torch.nn.Module):
    def __init__(self, inner, first):
        super().__init__()
        self.inner, self.first = inner, first

    def forward(self, x):
        scores = self.inner(x)
        return torch.cat([scores[:, : self.first], scores[:, self.first :] + 7], dim=1)


def test_new_classes_are_taught_by_the_network_of_the_first_stage():
    old, new = network(3, 0), network(5, 1)
    x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    found = TwoTeachers(old, new)(x)
    assert torch.equal(found[:, :3], old(x))
    assert torch.equal(found[:, 3:], new(x)[:, 3:])


def test_groups_are_the_phases(monkeypatch):
    made = []

    def collect(*arguments):
        made.append(GroupDistilling(*arguments))
        return made[-1]

    monkeypatch.setattr(eeil, "GroupDistilling", collect)
    method = eeil.EEIL(make_context())
    for phase in make_phases((3, 2, 1)):
        method.learn(phase)
    assert [objective.ends for objective in made] == [(3,), (3, 5), (3, 5), (3, 5, 6)]
    kinds = [isinstance(objective.teacher, TwoTeachers) for objective in made]
    assert kinds == [False, True, False, True]


def test_balanced_stage_sees_as_many_images_of_each_class(monkeypatch):
    seen = []
    monkeypatch.setattr(eeil, "train", lambda network, images, labels, *rest, **kw: seen.append(labels))
    method = eeil.EEIL(make_context(settings={"memory_rule": "20 in total"}))
    for phase in make_phases((3, 2)):
        method.learn(phase)
    assert [torch.bincount(labels).tolist() for labels in seen] == [[4] * 5]


def test_memory_and_balanced_stage_are_the_papers():
    context = dataclasses.replace(make_context(), recipe=RECIPES["paper"], settings={}, n_classes=100)
    method = eeil.EEIL(context)
    assert method.settings.memory_rule == "2000 in total"
    assert method.training.weight_decay == 1e-4
    # 160 · (5000 + 2000) images, then 30 · 33 · 60
    assert method.trained_images([25_000, 5000], [50, 60]) == 160 * 7000 + 30 * 33 * 60


@pytest.mark.parametrize(
    "wrong", [{"balanced_epochs": -1}, {"balanced_rate": 0.0}, {"temperature": 0.0}]
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        EEILSettings(**wrong)
