"""AANets, Mnemonics and RMM around LUCIR and PODNet."""

import copy
import dataclasses
import re

import pytest
import torch
from torch import nn
from torch.nn import functional

from acil.bench.methods import resolve
from acil.bench.methods.aanets import TwoBranches, scale_kernels_
from acil.bench.methods.base_network import network_features
from acil.bench.methods.exemplars import MemoryRule, mean_features
from acil.bench.methods.lucir import LUCIR
from acil.bench.methods.mnemonics import trained_exemplars
from acil.bench.methods.podnet import PODNet
from acil.bench.methods.rmm import ACTIONS, IMAGENET_ACTIONS, split
from acil.bench.training.convolution import (
    FastScaledConv2d,
    ScaledConv2d,
    eligible,
    replace_convolutions,
)
from acil.bench.training.loop import Batches
from acil.bench.training.recipes import RECIPES
from acil.bench.training.settings import Training
from acil.bench.training.step import halved
from acil.encoders.images.backbones import build, normalise
from acil.encoders.images.decode import to_pixels
from acil.encoders.images.imageset import ImageSet
from acil.errors import InputError
from support.replay_problem import learnt, make_context, make_phases, paper_context
from support.small_training import CPU, batch, images_of, same_state


@pytest.mark.parametrize(
    "name",
    ["acil+aanets", "aanets+podnet", "podnet+lucir", "podnet+", "podnet+rmm+rmm", "podnet+rmm+aanets"],
)
def test_combinations_without_sense_are_refused(name):
    said = rf"'{re.escape(name)}'.*\(lucir, podnet\).*\(aanets, mnemonics, rmm\), each once and in this"
    with pytest.raises(InputError, match=said):
        resolve(name)


def test_wrapped_method_is_the_host_with_its_settings():
    found = resolve("podnet+aanets+rmm")
    assert found.method is PODNet
    recorded = found.recorded_settings({"podnet_flat": 2, "aanets_share": 0.25})
    assert (recorded["podnet_flat"], recorded["aanets_share"]) == (2.0, 0.25)
    assert recorded["rmm_actions"] == []
    assert found.recorded_settings({})["aanets_share"] == 0.5
    assert resolve("lucir+mnemonics").method is LUCIR


def test_base_network_is_shared_with_the_host(tmp_path):
    phase = make_phases((3,))[0]
    for name in ("lucir", "lucir+aanets", "lucir+mnemonics"):
        resolve(name)(make_context(tmp_path)).learn(phase)
    assert len(list(tmp_path.glob("lucir*base*"))) == 1


def test_scaled_convolution_starts_as_it_was_and_trains_one_number_a_kernel():
    network, x = build("smallcnn").eval(), batch(2)[0]
    before, count = network(x), sum(p.numel() for p in network.parameters())
    scale_kernels_(network)
    torch.testing.assert_close(network(x), before)
    trained = {name for name, p in network.named_parameters() if p.requires_grad}
    assert trained == {f"stage{i}.{n}" for i in (1, 2) for n in ("0.scale", "1.weight", "1.bias")}
    assert sum(p.numel() for p in network.parameters()) == count + 32 + 32 * 64
    with torch.no_grad():
        network.stage1[0].scale[3] = 0.0
    assert bool((network.stage1[0](x)[:, 3] == 0).all())


def test_half_precision_copies_of_scaled_convolutions_get_our_kernels():
    network = build("resnet32")
    scale_kernels_(network)
    fast, _ = halved(network)
    chosen = [module for module in fast.modules() if eligible(module)]
    # All but the stem, whose three channels do not fit.
    assert len(chosen) == 30
    assert not any(eligible(module) for module in network.modules())
    convolution = network.stage2[1].conv1
    x = torch.randn(2, 32, 8, 8, generator=torch.Generator().manual_seed(0))
    before = convolution(x)
    replace_convolutions(network, {convolution: FastScaledConv2d})
    fast_one = network.stage2[1].conv1
    assert list(map(id, fast_one.parameters())) == list(map(id, convolution.parameters()))
    convolution = fast_one
    # Where our kernels do not fit, such as here, it computes as before, and is not changed again.
    torch.testing.assert_close(convolution(x), before)
    assert not eligible(convolution.half())


def test_branches_are_mixed_after_each_stage():
    base, x = build("smallcnn").eval(), batch(2)[0]
    both = TwoBranches(base, 0.25).eval()
    torch.testing.assert_close(both(x), base(x))
    with torch.no_grad():
        both.plastic.stage1[1].bias.add_(1.0)
        both.plastic.stage2[1].bias.add_(-0.5)
    first = 0.25 * both.stable.stage1(x) + 0.75 * both.plastic.stage1(x)
    pooled = base.pool(first)
    second = 0.25 * both.stable.stage2(pooled) + 0.75 * both.plastic.stage2(pooled)
    torch.testing.assert_close(both.maps(x)[0], first)
    torch.testing.assert_close(both.maps(x)[1], second)
    torch.testing.assert_close(both(x), second.mean((2, 3)))


@pytest.mark.parametrize("name", ["lucir+aanets", "podnet+aanets", "lucir+mnemonics"])
def test_kernels_of_the_base_stay_and_their_scales_are_trained(name):
    """In the stable branch of AANets, whose plastic one is free; in the whole network of Mnemonics."""
    phases = make_phases((3, 2, 1))
    method = learnt(name, phases[:1], aanets_share=0.25)
    base = copy.deepcopy(method.network.backbone)
    kernels = {name: module.weight for name, module in base.named_modules() if type(module) is nn.Conv2d}
    assert len(kernels) == 2
    for phase in phases[1:]:
        method.learn(phase)
        found = method.network.backbone
        stable = found.stable if isinstance(found, TwoBranches) else found
        for place, kernel in kernels.items():
            convolution = stable.get_submodule(place)
            assert isinstance(convolution, ScaledConv2d)
            assert torch.equal(convolution.weight, kernel)
            assert not torch.equal(convolution.scale, torch.ones_like(convolution.scale))
            if isinstance(found, TwoBranches):
                assert not torch.equal(found.plastic.get_submodule(place).weight, kernel)
    assert isinstance(found, TwoBranches) == ("aanets" in name)
    assert "aanets" not in name or found.share == 0.25
    # Beside the scales, only normalisation is trained.
    parts = [(type(part).__name__, p) for part in stable.modules() for p in part.parameters(False)]
    assert {kind for kind, p in parts if p.requires_grad} == {"ScaledConv2d", "BatchNorm2d"}


def test_exemplars_move_along_the_gradient_before_rounding():
    backbone = build("smallcnn", torch.Generator().manual_seed(3)).eval()
    pixels, labels = images_of((0, 1, 2), per_class=8)
    plan = Training(epochs=1, batch_size=12)
    batches = Batches(pixels, labels, plan, backbone.preprocessing, 0, CPU)
    chosen = torch.tensor([8, 9, 16, 17])
    start = normalise(pixels[chosen], backbone.preprocessing)
    old = backbone(normalise(pixels[:4], backbone.preprocessing)).detach().mean(0, keepdim=True)

    def loss(exemplars, x, y, _):
        means = torch.cat([old, mean_features(backbone(exemplars), labels[chosen])])
        cosines = functional.normalize(backbone(x)) @ functional.normalize(means).T
        return functional.cross_entropy(cosines, y)

    expected, velocity = start.clone(), 0.0
    for one in batches.epoch(0):
        free = expected.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(free, *one), free)
        velocity = 0.9 * velocity + gradient + 5e-4 * expected
        expected -= 0.5 * velocity
    moved = trained_exemplars(backbone, start, labels[chosen], old, batches, 0.5)
    torch.testing.assert_close(moved - start, expected - start, atol=1e-7, rtol=1e-4)
    assert all(loss(moved, *one) < loss(start, *one) for one in batches.epoch(0))
    assert all(parameter.grad is None for parameter in backbone.parameters())


def test_trained_exemplars_stay_images_of_their_classes():
    phases = make_phases((3, 2))
    plain = learnt("lucir+mnemonics", phases, mnemonics_rate=0)
    strong = learnt("lucir+mnemonics", phases[:1], mnemonics_rate=100.0)
    found, before = strong.exemplars, plain.exemplars
    old = found.pixels
    assert not torch.equal(old, before.pixels[: len(old)])
    strong.learn(phases[1])
    # Those of old classes have been trained once.
    assert torch.equal(found.pixels[: len(old)], old)
    assert found.pixels.dtype == torch.uint8
    assert found.pixels.shape == before.pixels.shape
    assert torch.equal(found.labels, before.labels)
    assert not torch.equal(found.pixels[len(old) :], before.pixels[len(old) :])
    assert strong.memory().samples == plain.memory().samples
    # At the authors' rate what moves is far below a grey level.
    usual = learnt("lucir+mnemonics", phases[:1])
    untouched = learnt("lucir", phases[:1])
    assert torch.equal(usual.exemplars.pixels, untouched.exemplars.pixels)


def test_exemplars_are_trained_on_the_phase_and_the_exemplars_before_it(monkeypatch):
    asked = []
    collect = lambda *given: asked.append(given) or given[1]  # noqa: E731
    monkeypatch.setattr("acil.bench.methods.mnemonics.trained_exemplars", collect)
    method = learnt("lucir+mnemonics", make_phases((3, 2)))
    seen = [torch.cat([y for _, y, _ in given[4].epoch(0)]) for given in asked]
    assert [torch.bincount(labels).tolist() for labels in seen] == [[16] * 3, [4, 4, 4, 16, 16]]
    assert [given[2].unique().tolist() for given in asked] == [[0, 1, 2], [3, 4]]
    found = network_features(method.network.backbone, method.exemplars.pixels, CPU)
    torch.testing.assert_close(asked[1][3], mean_features(found, method.exemplars.labels)[:3])
    assert asked[0][5] == 1e-5


def test_rounding_and_clamping_give_valid_pixels():
    preprocessing = build("smallcnn").preprocessing
    pixels, _ = images_of(range(3))
    assert torch.equal(to_pixels(normalise(pixels, preprocessing), preprocessing), pixels)
    far = to_pixels(torch.tensor([-1e6, 1e6]).reshape(2, 1, 1, 1), preprocessing)
    assert far.flatten().tolist() == [0, 255]


@pytest.mark.parametrize(
    ("actions", "per_class", "tenths"),
    [
        (ACTIONS, 500, {5: "886666", 10: "77777666677"}),
        (IMAGENET_ACTIONS, 1300, {5: "887867", 10: "77788667777"}),
    ],
)
@pytest.mark.parametrize("k", [5, 10, 25])
def test_published_budgets_add_up_to_the_strict_memory(actions, per_class, tenths, k):
    n_new = 50 // k * per_class
    published = tenths.get(k, 10 * "7" + 5 * "8" + 11 * "9")
    assert actions[k] == tuple(int(digit) / 10 for digit in published)
    for action in actions[k]:
        old, new = split(action, n_new, 2000)
        assert old + new == 2000 + n_new
        assert new == pytest.approx((1 - action) * n_new)
        # Equal parts of the new classes, with none left over.
        assert new % (50 // k) == 0


def rmm_context(sizes, actions, **settings):
    given = {"memory_rule": "4 per class", "rmm_actions": actions, **settings}
    return dataclasses.replace(make_context(settings=given), phase_sizes=sizes)


def test_memory_and_new_images_follow_the_actions(fits):
    phases = make_phases((2, 2, 2), per_class=20)
    method = resolve("lucir+rmm")(rmm_context((40, 40, 40), [0.0, 0.5, 0.25]))
    counts = []
    for phase in phases:
        method.learn(phase)
        counts.append(torch.bincount(method.exemplars.labels).tolist())
    # B = 4 · 6 = 24. Phase 1: 24 + 20 old images for 2 classes (20 are all there are), 20 new ones;
    # phase 2: 24 + 10 old for 4 classes, 30 new; after it as many as before, for 6 classes.
    trained = [labels for _, labels, _ in fits]
    expected = [[20, 20, 10, 10], [8, 8, 8, 8, 15, 15]]
    assert [torch.bincount(labels).tolist() for labels in trained] == expected
    assert counts == [[20, 20], [8, 8, 8, 8], [5] * 6]
    assert all(len(labels) <= 24 + 40 for labels in trained)
    # Drawn, not the first ten of class 2.
    kept = {image.numpy().tobytes() for image in method.exemplars.pixels[10:15]}
    assert not kept <= {image.numpy().tobytes() for image in phases[1].images.pixels()[:10]}
    # Two trainings of two epochs
    assert method.trained_images([40, 40, 40], [2, 4, 6]) == 2 * (60 + 62)


@pytest.mark.parametrize("host", ["lucir", "podnet"])
def test_strict_memory_is_the_accounting_of_rmm_that_moves_nothing(fits, host):
    """Base phase, then two equal ones: the same images are trained on, with and without the wrapper."""
    phases = make_phases((2, 2, 2), per_class=20)
    found = []
    for name, rule in ((host, "4 per class, strict"), (f"{host}+rmm", "4 per class")):
        fits.clear()
        context = rmm_context((40, 40, 40), [0.0] * 3, memory_rule=rule)
        method = learnt(name, phases, context)
        counts = [torch.bincount(labels).tolist() for _, labels, _ in fits]
        found.append((counts, torch.bincount(method.exemplars.labels).tolist(), method.memory()))
        assert all(sum(labels) <= 24 + 40 for labels in counts)
    assert found[0] == found[1]


def test_actions_that_do_not_fit_are_refused():
    make = resolve("podnet+aanets+rmm")
    with pytest.raises(InputError, match="sizes of"):
        make(make_context())
    with pytest.raises(InputError, match="3 phases"):
        make(rmm_context((10, 10, 10), [0.5]))
    found = make(dataclasses.replace(make_context(), phase_sizes=(25_000, *[5000] * 5)))
    assert found.wrappers[-1].actions == ACTIONS[5]
    context = dataclasses.replace(paper_context(phase_sizes=(13_000,) * 6), recipe=RECIPES["imagenet"])
    assert make(context).wrappers[-1].actions == IMAGENET_ACTIONS[5]


def test_budget_of_the_paper_is_two_thousand_images():
    context = paper_context(n_classes=100, phase_sizes=(25_000, *[5000] * 5))
    method = resolve("podnet+aanets+rmm")(context)
    assert method.wrappers[-1].budget == 2000
    assert method.exemplars.rule == MemoryRule(20, "per class")
    # Phase 1 at 0.8: 6,000 exemplars of 50 classes and 1,000 new images.
    assert method.kept_images(0, context.phase_sizes, [50, 60, 70, 80, 90, 100]) == 6000


def test_wrappers_together_go_on_exactly():
    phases = make_phases((3, 2, 1))
    sizes = tuple(len(phase.labels) for phase in phases)
    name = "lucir+aanets+mnemonics+rmm"
    context = rmm_context(sizes, [0.5, 0.5, 0.5], aanets_share=0.25)
    method = learnt(name, phases[:2], context)
    again = resolve(name)(context)
    again.load_state_dict(method.state_dict())
    method.learn(phases[2])
    again.learn(phases[2])
    assert same_state(method, again)
    assert method.memory() == again.memory()
    found = again.predict(ImageSet(images_of(range(6))[0]))
    assert set(found.tolist()) <= set(range(6))
