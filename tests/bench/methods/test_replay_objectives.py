"""What each method trains an increment with: its objective, its teacher and its data."""

import dataclasses
import math

import pytest
import torch

from acil.bench.methods import resolve
from acil.bench.methods.ewc import fisher_information, merged
from support.replay_problem import TRAINING, learnt, make_context, make_phases

NEW = [0, 0, 0, 16, 16]
WITH_EXEMPLARS = [4, 4, 4, 16, 16]
LWF = {"n_old": 3, "temperature": 2.0, "cross_entropy": 1.0}


@pytest.mark.parametrize(
    ("name", "settings", "counts", "values"),
    [
        ("finetune", {}, NEW, {}),
        ("joint", {}, [16] * 5, {}),
        ("lwf", {}, NEW, {**LWF, "distillation": 3.0, "new_only": True}),
        ("lwf", {"lwf_distillation": 7.0}, NEW, {**LWF, "distillation": 7.0, "new_only": True}),
        ("lwf-exemplars", {}, WITH_EXEMPLARS, {**LWF, "distillation": 1.0, "new_only": False}),
        ("icarl", {}, WITH_EXEMPLARS, {**LWF, "distillation": 1.0, "new_only": False}),
        ("icarl-bce", {}, WITH_EXEMPLARS, {"n_old": 3}),
        ("ewc", {}, NEW, {"n_old": 3, "penalty": 1000.0}),
        ("ewc", {"ewc_new_only": False}, NEW, {"n_old": 0}),
        ("lucir", {}, WITH_EXEMPLARS, {"n_old": 3, "margin": 0.5, "ranking": 1.0}),
        ("eeil", {}, WITH_EXEMPLARS, {"ends": (3,), "temperature": 2.0, "weight": 1.0}),
        ("eeil", {"eeil_temperature": 3.0}, WITH_EXEMPLARS, {"temperature": 3.0}),
        ("lfl", {}, [16, 16], {"distance": 3.9e-4}),
        ("bic", {"memory_rule": "10 per class"}, [9, 9, 9, 15, 15], {"temperature": 2.0}),
        ("podnet", {"podnet_balanced_epochs": 0}, WITH_EXEMPLARS, {"gradient_limit": 5.0}),
    ],
)
def test_second_phase_has_its_data_its_loss_and_the_network_before(name, settings, counts, values, fits):
    base, phase = make_phases((3, 2))
    method = learnt(name, [base], **settings)
    teacher = method.network
    method.learn(phase)
    network, labels, objective = fits[-1]
    assert torch.bincount(labels).tolist() == counts
    assert network.n_classes == (6 if name == "icarl-bce" else 5)
    assert network is not teacher
    assert {field: getattr(objective, field) for field in values} == values
    if name not in ("finetune", "joint", "ewc", "bic"):
        assert objective.teacher is (teacher.backbone if name in ("lucir", "podnet") else teacher)
    assert not any(part.training for part in teacher.modules())


@pytest.mark.parametrize(
    ("name", "settings", "values"),
    [
        ("bic", {}, {"distillation": [3 / 5, 5 / 6], "cross_entropy": [2 / 5, 1 / 6]}),
        # λ₀ √(n/m), and no more candidates than new classes
        (
            "lucir",
            {"lucir_distillation": 4.0},
            {"distillation": [4 * math.sqrt(3 / 2), 4 * math.sqrt(5)], "candidates": [2, 1]},
        ),
        # √(N/m)
        (
            "podnet",
            {"podnet_flat": 2.0},
            {"spatial": [3 * math.sqrt(5 / 2), 3 * 6**0.5], "flat": [2 * math.sqrt(5 / 2), 2 * 6**0.5]},
        ),
    ],
)
def test_losses_are_weighed_by_the_share_of_old_classes(name, settings, values, fits):
    learnt(name, podnet_balanced_epochs=0, **settings)
    for field, expected in values.items():
        assert [getattr(objective, field) for _, _, objective in fits] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "options", "objective"),
    [
        ("lucir", {"option": "B", "last_relu": False}, "NoneType"),
        ("podnet", {"option": "A", "last_relu": False, "plain_sums": True}, "PooledOutputs"),
        ("icarl-bce", {"last_relu": False}, "SigmoidDistilling"),
    ],
)
def test_own_base_network_has_the_form_and_the_loss_of_its_method(name, options, objective, monkeypatch):
    asked = []
    module = resolve(name).method.__module__
    monkeypatch.setattr(f"{module}.own_base_network", lambda *given: asked.extend([*given, None]))
    resolve(name)(make_context()).base(make_phases()[0])
    assert (asked[4], type(asked[6]).__name__) == (options, objective)


@pytest.mark.parametrize(
    ("name", "settings", "values"),
    [
        ("podnet", {}, {"learning_rate": 0.05, "schedule": "step", "milestones": (), "warmup": 0}),
        ("eeil", {"eeil_balanced_epochs": 9}, {"learning_rate": 0.01, "milestones": (3, 6)}),
        ("lucir", {"lucir_balanced_epochs": 4}, {"learning_rate": 0.01, "milestones": (2,)}),
        # 0.1 for batches of 256
        ("bic", {}, {"learning_rate": 0.1 / 16, "milestones": (60, 120, 160, 180), "weight_decay": 0.0}),
        ("dgr", {}, {"learning_rate": 0.05, "schedule": "cosine", "augment": ("flip",)}),
    ],
)
def test_second_stage_has_its_own_training(name, settings, values, monkeypatch):
    base, phase = make_phases((3, 2))
    training = dataclasses.replace(TRAINING, learning_rate=0.2, augment=("crop", "flip"))
    method = learnt(name, [base], make_context(training=training, settings=settings))
    calls = []
    for module in ("incremental", "base_network"):
        collect = lambda *given, objective=None, **_: calls.append((given[3], objective))  # noqa: E731
        monkeypatch.setattr(f"acil.bench.methods.{module}.train", collect)
    method.learn(phase)
    (_, loss), (second, second_loss) = calls
    assert {field: getattr(second, field) for field in values} == values
    assert name != "podnet" or loss.gradient_limit == second_loss.gradient_limit == 5.0


def test_ewc_anchors_the_weights_before_and_merges_what_mattered(fits):
    base, phase = make_phases((3, 2))
    method = resolve("ewc")(make_context(settings={"ewc_clip": 10.0}))
    method.learn(base)
    first, before = method.fisher, method.network
    method.learn(phase)
    network, _, objective = fits[-1]
    assert all(torch.equal(a, p) for a, p in zip(objective.anchors, before.parameters(), strict=True))
    assert objective.fisher is first
    found = fisher_information(
        network,
        phase.images.pixels(),
        phase.labels,
        network.backbone.preprocessing,
        method.training.batch_size,
        10.0,
        torch.device("cpu"),
    )
    for own, expected in zip(method.fisher, merged(first, found, 3 / 5), strict=True):
        torch.testing.assert_close(own, expected)


@pytest.mark.parametrize("name", ["lfl", "lucir", "podnet"])
def test_weights_of_old_classes_do_not_move_in_an_increment(name):
    """Neither by a gradient nor by weight decay, and the network does."""
    phases = make_phases((3, 2, 1))
    method = learnt(name, phases[:1], podnet_balanced_epochs=0)
    assert method.training.weight_decay > 0
    for phase in phases[1:]:
        teacher, before = method.network, method.network.classifier.weight.detach().clone()
        bias = method.network.classifier.bias.detach().clone() if name == "lfl" else None
        inner = method.network.backbone.stage1[0].weight
        method.learn(phase)
        after = method.network.classifier
        assert len(after.weight) == phase.n_seen
        assert torch.equal(after.weight[: len(before)], before)
        assert bias is None or torch.equal(after.bias[: len(bias)], bias)
        assert not torch.equal(method.network.backbone.stage1[0].weight, inner)
        assert all(parameter.grad is None for parameter in teacher.parameters())
    assert name == "lfl" or after.eta.item() != 1.0
