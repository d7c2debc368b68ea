"""Every method that trains networks, phase by phase: what it learns, keeps, counts and refuses."""

import copy
import dataclasses
import re

import pytest
import torch

from acil.bench.methods import resolve
from acil.bench.methods.base import Phase
from acil.bench.methods.base_network import network_features
from acil.bench.methods.exemplars import herd
from acil.bench.methods.incremental import increment_training
from acil.bench.training.recipes import RECIPES
from acil.bench.training.settings import Training, changed
from acil.encoders.images.backbones import build
from acil.encoders.images.imageset import ImageSet
from acil.errors import InputError, NotFittedError
from support.replay_problem import REPLAY_METHODS, learnt, make_context, make_phases, paper_context
from support.small_training import CPU, images_of, same_state

#: Methods that keep exemplars, without wrappers.
WITH_EXEMPLARS = ("lwf-exemplars", "icarl", "icarl-bce", "bic", "lucir", "podnet", "eeil")
LONGER = Training(epochs=6, batch_size=16, learning_rate=0.1, schedule="cosine", warmup=1)


def accuracy(method, classes):
    pixels, labels = images_of(classes, per_class=10, seed=99)
    return float((method.predict(ImageSet(pixels)) == labels).float().mean())


@pytest.mark.parametrize("name", REPLAY_METHODS)
def test_learning_depends_on_the_seed_and_labels_are_of_classes_seen(name):
    # One new class in a phase is the smallest increment.
    first, other = (learnt(name, make_phases((3, 1)), make_context(seed=seed)) for seed in (0, 1))
    assert not same_state(first, other)
    found = first.predict(ImageSet(images_of(range(6))[0]))
    assert (found.shape, found.dtype) == ((96,), torch.int64)
    assert set(found.tolist()) <= set(range(4))
    assert not first.network.training


def test_samples_are_counted():
    image_bytes = 64 + 8
    without = ("finetune", "lwf", "ewc", "rotated-ewc", "lfl", "dgr", "mergan")
    expected = {**dict.fromkeys(without, 0), "joint": 6 * 16 * image_bytes}
    for name in REPLAY_METHODS:
        use = learnt(name).memory()
        assert use.samples == expected.get(name, 6 * 4 * image_bytes), name
        assert use.weights >= 18_912 * 4, name
    ewc = learnt("ewc")
    parameters = sum(parameter.numel() for parameter in ewc.network.parameters())
    assert ewc.memory().statistics == 4 * parameters
    dgr = learnt("dgr")
    generator = sum(tensor.nbytes for tensor in dgr.generator_network.state_dict().values())
    assert dgr.memory().statistics == generator > 10_000


def test_total_rule_shrinks_the_sets_of_old_classes():
    method = resolve("icarl")(make_context(settings={"memory_rule": "12 in total"}))
    counts = []
    for phase in make_phases():
        method.learn(phase)
        counts.append(torch.bincount(method.exemplars.labels).tolist())
    assert counts == [[4] * 3, [2] * 5, [2] * 6]
    # Chosen by the network after the phase
    chosen = herd(network_features(method.network.backbone, phase.images, CPU), 2)
    assert torch.equal(method.exemplars.pixels[-2:], phase.images.pixels()[chosen])


@pytest.mark.parametrize("name", [*WITH_EXEMPLARS, "podnet+aanets"])
def test_strict_memory_holds_exemplars_and_images_of_every_phase(fits, name):
    phases = make_phases((2, 2, 1, 1), per_class=20)
    sizes, seen = [len(phase.labels) for phase in phases], [2, 4, 5, 6]
    context = make_context(settings={"memory_rule": "4 per class, strict"}, phase_sizes=tuple(sizes))
    method = resolve(name)(context)
    kept, room = [], 4 * 6 + 40
    for index, phase in enumerate(phases):
        assert index == 0 or len(method.exemplars) + sizes[index] <= room
        method.learn(phase)
        counts = torch.bincount(method.exemplars.labels).tolist()
        assert len(set(counts)) == 1
        kept.append(counts[0])
        assert method.kept_images(index, sizes, seen) == len(method.exemplars)
    # 24, 44, 44 and 44 images, in equal parts
    assert kept == [12, 11, 8, 7]
    # Stage 1 of bic leaves out some of each class.
    assert all(len(labels) <= room for _, labels, _ in fits)
    with pytest.raises(InputError, match="sizes"):
        resolve(name)(make_context(settings={"memory_rule": "strict"}))


def test_every_method_with_exemplars_takes_a_strict_memory():
    found = {name for name in REPLAY_METHODS if "memory_rule" in resolve(name).setting_names()}
    assert found == {*WITH_EXEMPLARS, "lucir+mnemonics", "podnet+aanets"}


def test_exemplars_against_forgetting():
    phases = make_phases((3, 3))
    settings = {"memory_rule": "8 per class", "podnet_balanced_epochs": 20}
    context = make_context(training=LONGER, settings=settings)
    forgets = accuracy(learnt("finetune", phases, context), range(3))
    assert forgets < 0.2
    for name in ("lwf-exemplars", "icarl", "bic", "lucir", "podnet", "joint"):
        assert accuracy(learnt(name, phases, context), range(3)) > forgets + 0.3, name


def old_scores(method):
    pixels, _ = images_of(range(3), per_class=10, seed=99)
    features = network_features(method.network.backbone, pixels, CPU)
    return method.scores(features)[:, :3]


@pytest.mark.parametrize("name", ["lwf", "ewc"])
def test_old_scores_drift_less_than_without_protection(name):
    phases = make_phases((3, 2))
    context = make_context(training=LONGER, settings={"ewc_clip": 1.0})
    base = learnt("finetune", phases[:1], context)
    before = old_scores(base).softmax(1)
    plain, held = (
        (old_scores(learnt(which, phases, context)).softmax(1) - before).abs().mean()
        for which in ("finetune", name)
    )
    assert held < 0.5 * plain


def test_joint_training_is_training_from_scratch_on_all_data():
    phases = make_phases((3, 2), per_class=30)
    pixels = ImageSet(torch.cat([phase.images.pixels() for phase in phases]))
    labels = torch.cat([phase.labels for phase in phases])
    everything = Phase(0, tuple(range(5)), pixels, labels, 5)
    context = make_context(training=LONGER)
    joint, once = learnt("joint", phases, context), learnt("joint", [everything], context)
    assert abs(accuracy(joint, range(5)) - accuracy(once, range(5))) < 0.2
    assert accuracy(joint, range(5)) > 0.7


@pytest.mark.parametrize("name", REPLAY_METHODS)
def test_given_network_without_base_classes(name):
    given = build("smallcnn", torch.Generator().manual_seed(5)).eval()
    before = {key: tensor.clone() for key, tensor in given.state_dict().items()}
    method = learnt(name, make_phases((2, 1), first_index=1), make_context(backbone=given))
    assert set(method.predict(ImageSet(images_of(range(3))[0])).tolist()) <= {0, 1, 2}
    assert all(torch.equal(tensor, before[key]) for key, tensor in given.state_dict().items())


@pytest.mark.parametrize("name", REPLAY_METHODS)
def test_what_cannot_be_learnt_is_refused_and_changes_nothing(name):
    phases = make_phases()
    method = resolve(name)(make_context())
    with pytest.raises(NotFittedError, match="phase"):
        method.predict(phases[0].images)
    with pytest.raises(InputError, match="--backbone"):
        method.learn(make_phases(first_index=1)[0])
    method.learn(phases[0])
    before = copy.deepcopy(method.state_dict())
    vectors = torch.rand(32, 4)
    only_vectors = dataclasses.replace(phases[1], images=ImageSet(None, vectors, ""))
    for phase, words in ((phases[0], name), (phases[2], name), (only_vectors, "only vectors")):
        with pytest.raises(InputError, match=re.escape(words)):
            method.learn(phase)
    assert same_state(before, method.state_dict())


def test_settings_reach_the_method_and_unknown_ones_are_refused():
    settings = {"lwf_distillation": "5", "icarl_distillation": "7", "increment.epochs": "1"}
    method = resolve("lwf")(make_context(settings=settings))
    assert method.settings.distillation == 5.0
    assert method.training.epochs == 1
    assert method.context.recipe.training.epochs == 2
    with pytest.raises(InputError, match="epoch"):
        resolve("lwf")(make_context(settings={"increment.epoch": "1"}))


@pytest.mark.parametrize(
    ("name", "epochs", "milestones", "weight_decay"),
    [
        ("finetune", 160, (80, 120), 5e-4),
        ("joint", 160, (80, 120), 5e-4),
        ("lwf-exemplars", 160, (80, 120), 5e-4),
        ("icarl", 160, (80, 120), 5e-4),
        ("lucir", 160, (80, 120), 5e-4),
        ("lwf", 250, (60, 120, 180, 220), 2e-4),
        ("ewc", 180, (70, 120, 150), 2e-4),
        ("bic", 250, (100, 150, 200), 2e-4),
        ("eeil", 160, (80, 120), 1e-4),
        ("icarl-bce", 70, (49, 63), 2e-5),
    ],
)
def test_schedules_for_cifar_are_the_published_ones(name, epochs, milestones, weight_decay):
    found = increment_training(paper_context(), resolve(name).method.schedules)
    assert (found.epochs, found.milestones, found.weight_decay) == (epochs, milestones, weight_decay)
    assert found.augment == ("crop", "flip")
    assert found.learning_rate == (2.0 if name == "icarl-bce" else 0.1)
    # A recipe that nobody has published a schedule for is taken as it is.
    assert (
        increment_training(make_context(), resolve(name).method.schedules)
        == make_context().recipe.training
    )


def test_schedules_for_imagenet_are_the_published_ones():
    context = dataclasses.replace(paper_context(), recipe=RECIPES["imagenet"])
    bce, bic = (
        increment_training(context, resolve(name).method.schedules) for name in ("icarl-bce", "bic")
    )
    assert (bce.epochs, bce.milestones, bce.learning_rate, bce.decay) == (60, (20, 30, 40, 50), 2.0, 0.2)
    assert (bic.epochs, bic.milestones, bic.batch_size) == (100, (30, 60, 80, 90), 256)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("eeil", 160 * (200 + 300) + 30 * 500),
        ("podnet", 160 * (200 + 60) + 20 * 100),
        # Each image goes through two networks.
        ("podnet+aanets", 2 * (160 * (200 + 60) + 20 * 100)),
        # An epoch of the generator counts as a fifth of one, on new images and drawn ones.
        ("dgr", 20 * 300 + (160 + 20) * (200 + 300)),
    ],
)
def test_images_to_train_on_are_counted_with_all_stages(name, expected):
    assert resolve(name)(paper_context()).trained_images([300, 200], [3, 5]) == expected


def test_what_the_user_sets_stays_even_if_it_is_what_the_recipe_has():
    asked = dataclasses.replace(paper_context(), recipe_changes=frozenset({"training.epochs"}))
    assert increment_training(asked, resolve("lwf").method.schedules).epochs == 160
    assert increment_training(paper_context(), resolve("lwf").method.schedules).epochs == 250
    asked = dataclasses.replace(paper_context(), settings={"increment.epochs": 7})
    assert increment_training(asked, resolve("lwf").method.schedules).epochs == 7


def test_changes_of_the_recipe_by_the_user_win_over_published_schedules():
    shorter = changed(RECIPES["paper"], {"training.epochs": 3, "training.precision": "bf16"})
    context = dataclasses.replace(make_context(), recipe=shorter)
    found = increment_training(context, resolve("bic").method.schedules)
    assert (found.epochs, found.milestones, found.precision) == (3, (100, 150, 200), "bf16")


def test_records_name_the_memory_rule():
    expected = {"memory_rule": "20 per class", "icarl_distillation": 1.0, "icarl_temperature": 2.0}
    icarl = resolve("icarl")
    assert icarl.recorded_settings({"gamma": 1, "lwf_distillation": 2}) == expected
    assert icarl.recorded_settings({"memory_rule": "5 per class"})["memory_rule"] == "5 per class"
    assert resolve("eeil").recorded_settings({})["memory_rule"] == "2000 in total"
    assert resolve("finetune").recorded_settings({"gamma": 1}) == {}
    assert resolve("ewc").recorded_settings({})["ewc_clip"] == 1e-4


def test_seeds_derived_for_different_purposes_differ():
    contexts = [make_context(seed=seed) for seed in (0, 1)]
    seeds = {context.seed_for(part, n) for context in contexts for part in ("a", "b") for n in (5, 6)}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**63 for seed in seeds)
