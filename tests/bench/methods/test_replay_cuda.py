"""Objectives of methods as CUDA graphs: recorded steps against plain ones."""

import copy
import dataclasses

import pytest
import torch

from acil.bench.methods import resolve
from acil.bench.methods.aanets import TwoBranches
from acil.bench.methods.bic import BiasCorrection
from acil.bench.methods.dgr import EvidenceBound, Generator, Replaying
from acil.bench.methods.eeil import GroupDistilling
from acil.bench.methods.ewc import Anchored
from acil.bench.methods.icarl import SigmoidDistilling
from acil.bench.methods.lucir import CosineClassifier, Rebalancing
from acil.bench.methods.podnet import PooledOutputs, ProxyClassifier
from acil.bench.training.network import FeatureNetwork
from acil.bench.training.objectives import Distilling
from acil.bench.training.settings import Training
from acil.encoders.images.backbones import build
from acil.encoders.images.imageset import ImageSet
from support.replay_problem import REPLAY_METHODS, make_context, make_phases
from support.small_training import Plain, fit, images_of, make_network

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

#: One epoch of three steps: later ones multiply the differences that cuDNN's sums have.
SETTINGS = Training(epochs=1, batch_size=16, learning_rate=0.01)


def linear():
    return make_network(5)


def cosine(backbone=None):
    drawn = CosineClassifier.drawn((5, 64), torch.Generator().manual_seed(0)).weight
    return FeatureNetwork(backbone or build("smallcnn"), CosineClassifier(drawn, 3))


def proxies():
    drawn = ProxyClassifier.drawn((5, 10, 64), torch.Generator().manual_seed(0)).weight
    return FeatureNetwork(build("smallcnn"), ProxyClassifier(drawn, 3))


def teacher(n_classes=3):
    return make_network(n_classes, seed=1).cuda()


def anchored():
    old = teacher()
    values = [parameter.detach() for parameter in old.parameters()]
    return Anchored([torch.full_like(value, 1e-3) for value in values], values, 3, 100.0)


def plain(objective):
    """Return the same objective, whose steps are not recorded."""
    same = Plain(objective)
    same.gradient_limit = objective.gradient_limit
    return same


CASES = {
    "distilling": (linear, lambda: Distilling(teacher(), 3, 2.0)),
    "new classes only": (linear, lambda: Distilling(teacher(), 3, 2.0, new_only=True)),
    "corrected teacher": (
        linear,
        lambda: Distilling(torch.nn.Sequential(teacher(), BiasCorrection(2, 0.5, -1.0).cuda()), 3, 2.0),
    ),
    "sigmoids": (linear, lambda: SigmoidDistilling(teacher(5), 3)),
    "anchored": (linear, anchored),
    "rebalancing": (
        cosine,
        lambda: Rebalancing(teacher().backbone, 3, 5.0, 0.5, 2, 1.0),
    ),
    "two branches": (
        lambda: cosine(TwoBranches(build("smallcnn"), 0.5)),
        lambda: Rebalancing(TwoBranches(teacher().backbone, 0.5).cuda().eval(), 3, 5.0, 0.5, 2, 1.0),
    ),
    "groups": (linear, lambda: GroupDistilling(teacher(), (2, 3), 2.0, 1.0)),
    "replaying": (linear, lambda: Replaying(teacher(), 3, 0.4)),
    "pooled outputs": (
        proxies,
        lambda: PooledOutputs(teacher().backbone, 3.0, 1.0, 0.01),
    ),
}


@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
@pytest.mark.parametrize("case", CASES)
def test_recorded_steps_equal_plain_ones(case, precision):
    make, objective = CASES[case][0], CASES[case][1]()
    images, labels = images_of((3, 4) if case in ("new classes only", "anchored") else range(5), 9)
    start, results = make(), []
    for used in (objective, plain(objective)):
        settings = dataclasses.replace(SETTINGS, precision=precision)
        network = copy.deepcopy(start)
        fit(network, images, labels, settings, device="cuda", objective=used)
        results.append(network.cpu().state_dict())
    for name, value in results[0].items():
        torch.testing.assert_close(value, results[1][name], rtol=1e-2, atol=2e-3, msg=name)
    before = start.state_dict()
    moved = [name for name in before if not torch.equal(results[0][name], before[name])]
    assert any(name.startswith("backbone.") and name.endswith("weight") for name in moved)


def test_generator_trains_as_a_graph():
    pixels, labels = images_of(range(3))
    results = []
    for objective in (EvidenceBound(), plain(EvidenceBound())):
        network = Generator(1, 8, 3, latent=4, seed=0)
        fit(network, pixels, labels, SETTINGS, device="cuda", objective=objective)
        results.append(network.cpu().state_dict())
    for name, value in results[0].items():
        torch.testing.assert_close(value, results[1][name], rtol=1e-2, atol=2e-3, msg=name)


@pytest.mark.parametrize("name", REPLAY_METHODS)
def test_method_learns_all_phases_on_the_gpu(name, tmp_path):
    context = dataclasses.replace(make_context(tmp_path), device=torch.device("cuda"))
    method = resolve(name)(context)
    phases = make_phases()
    for phase in phases[:2]:
        method.learn(phase)
    again = resolve(name)(context)
    again.load_state_dict(method.state_dict())
    again.learn(phases[2])
    found = again.predict(ImageSet(images_of(range(6))[0]))
    assert found.device.type == "cpu"
    assert set(found.tolist()) <= set(range(6))
