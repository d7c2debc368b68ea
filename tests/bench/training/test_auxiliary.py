"""Auxiliary tasks of base training: what each does, and that nothing of them remains."""

import dataclasses
from contextlib import suppress

import pytest
import torch
from torch.nn import functional

from acil.bench.training.checkpoint import Checkpoint, training_identity
from acil.bench.training.loop import Batches
from acil.bench.training.objectives import (
    CONTRAST_TEMPERATURE,
    Assisted,
    AssistedLoss,
    CrossEntropy,
    MeanScores,
    contrastive,
    mixed,
    mixing_share,
    transformed,
)
from acil.bench.training.recipes import RECIPES, to_dict
from acil.bench.training.settings import Auxiliary
from acil.encoders.images.backbones import normalise
from acil.errors import InputError
from support.small_training import CPU, PREPROCESSING, SHORT, fit, make_network, problem, same_state

ROTATION = Auxiliary(copies=1)
TASKS = {
    "rotation": ROTATION,
    "three copies, two angles": Auxiliary(copies=3, angles=2, weight=0.5),
    "mixup": Auxiliary(mixup=0.5),
    "contrast": Auxiliary(contrast=0.5),
    "rotation, mixup, contrast": Auxiliary(copies=1, mixup=0.5, contrast=0.5),
    "distillation": Auxiliary(copies=1, distillation=0.8, teachers=2),
}


def colour_pictures(n):
    return torch.rand(n, 3, 4, 4, generator=torch.Generator().manual_seed(0))


def turned(quarters, channels=(0, 1, 2)):
    return lambda image: torch.rot90(image, quarters, (1, 2))[list(channels)]


@pytest.mark.parametrize(
    ("tasks", "transformations", "expected"),
    [
        # Counterclockwise; two angles are upright and upside down.
        (ROTATION, 4, {0: turned(0), 1: turned(1), 2: turned(2), 3: turned(3)}),
        (Auxiliary(copies=1, angles=2), 2, {0: turned(0), 1: turned(2)}),
        # Turned or recoloured, unless they are crossed
        (
            Auxiliary(copies=1, colours=3),
            6,
            {3: turned(3), 4: turned(0, (1, 2, 0)), 5: turned(0, (2, 0, 1))},
        ),
        (Auxiliary(copies=1, colours=6, crossed=True), 24, {0: turned(0), 9: turned(1, (2, 0, 1))}),
    ],
)
def test_kinds_of_copies_are_turns_and_orders_of_colours(tasks, transformations, expected):
    assert tasks.transformations == transformations
    image = colour_pictures(1)
    found = transformed(image.expand(transformations, -1, -1, -1), torch.arange(transformations), tasks)
    assert len({tuple(version.flatten().tolist()) for version in found}) == transformations
    for kind, change in expected.items():
        assert torch.equal(found[kind], change(image[0]))


def test_mixing_takes_the_image_before_with_what_remains():
    images = colour_pictures(3)
    found = mixed(images, torch.tensor([1.0, 0.25, 0.0]))
    torch.testing.assert_close(found[0], images[0])
    torch.testing.assert_close(found[1], 0.25 * images[1] + 0.75 * images[0])
    torch.testing.assert_close(found[2], images[1])


def test_share_of_mixed_images_is_uniform_and_the_others_stay():
    uniform = torch.rand(20_000, generator=torch.Generator().manual_seed(0))
    share = mixing_share(uniform, 0.5)
    assert (share == 1).float().mean() == pytest.approx(0.5, abs=0.02)
    drawn = share[share < 1]
    assert [drawn.mean(), drawn.std()] == pytest.approx([0.5, 12**-0.5], abs=0.02)


def test_mixed_losses_follow_the_mixed_images():
    loss = AssistedLoss(Auxiliary(mixup=1.0))
    scores = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    y, share = torch.tensor([0, 1]), torch.tensor([0.75, 0.5])
    own = functional.cross_entropy(scores, y, reduction="none")
    other = functional.cross_entropy(scores, 1 - y, reduction="none")
    expected = ((0.75 * own[0] + 0.25 * other[0]) + (0.5 * own[1] + 0.5 * other[1])) / 2
    torch.testing.assert_close(loss._of_images(scores, y, share), expected)


def test_contrastive_loss_of_known_rows():
    # Rows 0 and 1 are partners, row 2 has none and counts only among the others.
    rows = torch.tensor([[3.0, 0.0], [0.0, 2.0], [-1.0, 0.0]])
    T = 0.5
    first = torch.log(torch.exp(torch.tensor(0 / T)) + torch.exp(torch.tensor(-1 / T)))
    second = torch.log(torch.exp(torch.tensor(0 / T)) + torch.exp(torch.tensor(0 / T)))
    found = contrastive(rows, torch.tensor([5, 5, 7]), T)
    torch.testing.assert_close(found, (first + second) / 2)


def test_contrastive_gradient_is_finite_when_nobody_has_a_partner():
    rows = torch.randn(4, 3, requires_grad=True)
    contrastive(rows, torch.arange(4), CONTRAST_TEMPERATURE).backward()
    assert bool(torch.isfinite(rows.grad).all())


def test_loss_is_that_of_images_and_weighted_copies():
    tasks = Auxiliary(copies=2, weight=0.5)
    network = Assisted(make_network(), tasks, torch.Generator().manual_seed(0)).eval()
    x = torch.rand(15, 1, 8, 8)
    y = torch.tensor([0, 1, 2, 0, 1])
    draws = torch.tensor([[0.0, 0.3], [0.6, 0.9], [0.3, 0.3], [0.9, 0.0], [0.1, 0.6]])
    loss, scores = AssistedLoss(tasks)(network, x, y, torch.arange(5), draws)
    kinds = [0, 2, 1, 3, 0, 1, 3, 1, 0, 2]  # first copies of all images, then the second ones
    turned = torch.stack([torch.rot90(x[5 + i], k, (1, 2)) for i, k in enumerate(kinds)])
    own = network.network(x[:5])
    torch.testing.assert_close(scores, own)
    copied = network.layers["copies"](network.network.features(turned))
    targets = torch.cat([y, y]) * 4 + torch.tensor(kinds)
    expected = functional.cross_entropy(own, y) + 0.5 * functional.cross_entropy(copied, targets)
    torch.testing.assert_close(loss, expected)


def test_distillation_follows_the_mean_score_of_the_teachers():
    teachers = [make_network(seed=seed).eval() for seed in (1, 2)]
    x, y = torch.rand(5, 1, 8, 8), torch.tensor([0, 1, 2, 0, 1])
    teacher = MeanScores(teachers)
    mean = (teachers[0](x) + teachers[1](x)) / 2
    torch.testing.assert_close(teacher(x), mean)
    tasks = Auxiliary(distillation=0.75, teachers=2)
    network = Assisted(make_network(), tasks, torch.Generator()).eval()
    loss, scores = AssistedLoss(tasks, teacher=teacher)(network, x, y, torch.arange(5))
    T = 4.0
    follow = -((mean / T).softmax(1) * (scores / T).log_softmax(1)).sum(1).mean()
    expected = 0.25 * functional.cross_entropy(scores, y) + 0.75 * T * T * follow
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("name", TASKS)
def test_training_learns_leaves_no_trace_and_is_repeatable(name):
    images, labels = problem(200)
    plain = dataclasses.replace(SHORT, epochs=6, learning_rate=0.1)
    settings = dataclasses.replace(plain, auxiliary=TASKS[name])
    network = fit(make_network(), images, labels, settings)
    assert network.state_dict().keys() == make_network().state_dict().keys()
    assert not network.training
    assert all(parameter.grad is None for parameter in network.parameters())
    assert same_state(network, fit(make_network(), images, labels, settings))
    assert not same_state(network, fit(make_network(), images, labels, plain))
    test_images, test_labels = problem(200, seed=1)
    predicted = network(normalise(test_images, PREPROCESSING)).argmax(1)
    assert (predicted == test_labels).float().mean() > 0.9


@pytest.mark.parametrize("stop_at", [4, 13, 26])
@pytest.mark.parametrize("name", ["rotation, mixup, contrast", "distillation"])
def test_interrupted_training_goes_on_to_the_same_bits(name, stop_at, tmp_path, monkeypatch):
    monkeypatch.setattr("acil.bench.training.loop.REPORT_SECONDS", 0.0)
    images, labels = problem(80)
    settings = dataclasses.replace(SHORT, augment=("crop", "flip"), auxiliary=TASKS[name])
    expected = fit(make_network(), images, labels, settings)
    checkpoint, reports = Checkpoint(tmp_path, every_seconds=0), []

    def stop(report):
        reports.append(report)
        if len(reports) == stop_at:
            raise InterruptedError

    with suppress(InterruptedError):  # without teachers there are not that many steps
        fit(make_network(), images, labels, settings, checkpoint=checkpoint, progress=stop)
    assert list(tmp_path.rglob("training.safetensors"))
    again = Checkpoint(tmp_path, every_seconds=0)
    assert same_state(expected, fit(make_network(), images, labels, settings, checkpoint=again))
    again.remove()
    assert not list(tmp_path.rglob("*.safetensors"))


def test_views_of_a_batch_are_the_same_images_augmented_anew():
    images, labels = problem(40)
    settings = dataclasses.replace(SHORT, augment=("crop",))
    batches = Batches(images, labels, settings, PREPROCESSING, 0, CPU, views=3, draws=2)
    steps = list(batches.epoch(1))
    assert [len(y) for _, y, _, _ in steps] == [16, 16, 8]
    x, y, indices, draws = steps[1]
    assert x.shape == (48, 1, 8, 8)
    assert draws.shape == (16, 2)
    assert torch.equal(y, labels[indices])
    assert not torch.equal(x[:16], x[16:32])
    plain = Batches(images, labels, SHORT, PREPROCESSING, 0, CPU, 3)
    x, _, _ = next(iter(plain.epoch(1)))
    assert torch.equal(x[:16], x[16:32])
    again = next(iter(batches.epoch(1, first_step=1)))
    assert all(torch.equal(a, b) for a, b in zip(again, steps[1], strict=True))


def test_without_tasks_recipes_and_trainings_are_known_by_what_they_were():
    images, labels = problem(20)
    for known in RECIPES.values():
        if not known.training.auxiliary.active:
            assert "auxiliary" not in to_dict(known)["training"]
            assert "auxiliary" not in repr(known.training)
    told = training_identity(make_network(), images, labels, SHORT, None, 0, CrossEntropy())
    assert "training.auxiliary" not in told
    with_task = dataclasses.replace(SHORT, auxiliary=ROTATION)
    told = training_identity(make_network(), images, labels, with_task, None, 0, CrossEntropy())
    assert told["training.auxiliary"]["copies"] == 1


def test_cost_counts_copies_and_teachers():
    tasks = [Auxiliary(), ROTATION, Auxiliary(copies=3), Auxiliary(mixup=0.5), Auxiliary(contrast=1.0)]
    assert [one.inputs_per_image for one in tasks] == [1, 2, 4, 1, 2]
    assert Auxiliary(copies=1, distillation=0.5, teachers=3).inputs_per_image == 8


@pytest.mark.parametrize(
    ("name", "value"),
    [("copies", -1), ("angles", 3), ("colours", 7), ("weight", 0.0), ("mixup", 1.5), ("teachers", 0)],
)
def test_impossible_task_is_refused(name, value):
    with pytest.raises(InputError, match=rf"auxiliary\.{name} "):
        Auxiliary(**{name: value})


def test_network_without_features_is_refused():
    settings = dataclasses.replace(SHORT, auxiliary=ROTATION)
    with pytest.raises(InputError, match="network with features"):
        fit(torch.nn.Linear(4, 2), torch.rand(6, 4), torch.tensor([0, 1] * 3), settings)


def test_colours_without_copies_are_refused():
    with pytest.raises(InputError, match="Set copies=1"):
        Auxiliary(colours=3)
