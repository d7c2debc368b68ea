"""Convolutions of our own: what they take, what they leave to cuDNN, and that they are right."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from acil.bench.training.convolution import (
    FastConv2d,
    convolution,
    eligible,
    replace_convolutions,
    suits,
    use_fast_convolutions,
)
from acil.bench.training.objectives import CrossEntropy
from acil.bench.training.settings import Training
from acil.bench.training.step import HalfPrecisionCopy, Step
from support.interpreted import errors, tensors
from support.small_training import make_network

#: Rounding of the result to 11 bits, relative to the largest value: 2⁻¹¹ and a little for the sums.
TOLERANCE = 1e-3
#: The same for bfloat16 with its 8 bits.
BFLOAT16_TOLERANCE = 8e-3
#: (images, channels, outputs, height, width, stride): borders, tails of tiles, odd sizes, both strides.
CASES = [
    (3, 16, 16, 8, 8, 1),
    (1, 16, 16, 5, 7, 1),
    (1, 16, 16, 32, 32, 1),
    (1, 32, 32, 16, 16, 1),
    (3, 16, 32, 5, 7, 2),
    (1, 16, 32, 8, 8, 2),
    (1, 32, 16, 4, 4, 1),
    (1, 64, 64, 4, 4, 1),
]
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
with_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


def half(**changes):
    options = {"kernel_size": 3, "padding": 1, "bias": False} | changes
    return nn.Conv2d(options.pop("inputs", 16), options.pop("outputs", 32), **options).half()


class Own(nn.Conv2d):
    """Computes we do not know what."""


@pytest.mark.parametrize("module", [half(), half(stride=2), half().bfloat16()], ids=str)
def test_convolutions_of_resnets_are_eligible(module):
    assert eligible(module)


@pytest.mark.parametrize(
    "module",
    [
        half(inputs=3),
        half(inputs=48),
        half(outputs=256),
        half(kernel_size=1, padding=0),
        half(padding=0),
        half(stride=3),
        half(stride=(1, 2)),
        half(dilation=2),
        half(groups=2),
        half(bias=True),
        half(padding_mode="reflect"),
        half().float(),
        Own(16, 16, 3, padding=1, bias=False).half(),
        nn.Linear(16, 16),
    ],
    ids=str,
)
def test_other_layers_are_not(module):
    assert not eligible(module)


def test_what_the_kernels_cannot_hold_does_not_suit():
    weight = half().weight
    assert suits(torch.zeros(2, 16, 4, 4), weight)
    assert not suits(torch.zeros(0, 16, 4, 4), weight)
    assert not suits(torch.zeros(16, 4, 4), weight)
    assert not suits(torch.zeros(2, 16, 4, 4), weight.float())
    assert not suits(torch.empty(2**18, 16, 16, 16, device="meta"), weight)


@pytest.mark.parametrize(("capability", "changed"), [((9, 0), 30), ((7, 0), 0)])
def test_convolutions_of_the_copy_change_where_the_gpu_allows(monkeypatch, capability, changed):
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: capability)
    network = make_network(4, backbone="resnet32")
    copy = HalfPrecisionCopy(network).network
    names = list(copy.state_dict())
    # 31 convolutions, one of which takes three channels.
    assert use_fast_convolutions(copy, torch.device("cuda")) == changed
    assert sum(isinstance(module, FastConv2d) for module in copy.modules()) == changed
    assert type(copy.backbone.stem[0]) is nn.Conv2d
    assert list(copy.state_dict()) == names
    assert not any(isinstance(module, FastConv2d) for module in network.modules())


def test_on_the_cpu_a_changed_convolution_computes_as_before():
    module, x = half(), torch.randn(2, 16, 6, 6).half()
    before = module(x)
    network = nn.Sequential(module)
    replace_convolutions(network, {module: FastConv2d})
    assert isinstance(network[0], FastConv2d)
    assert network[0].weight is module.weight
    assert torch.equal(network(x), before)


def test_shapes_are_known_without_computing():
    with torch.device("meta"):
        x = torch.empty(2, 16, 9, 6, dtype=torch.float16, requires_grad=True)
        weight = torch.empty(32, 16, 3, 3, dtype=torch.float16, requires_grad=True)
    for stride in (1, 2):
        made = convolution(x, weight, stride)
        assert made.shape == functional.conv2d(x, weight, stride=stride, padding=1).shape
        assert made.is_contiguous(memory_format=torch.channels_last)
        of_x, of_weight = torch.autograd.grad(made.sum(), (x, weight))
        assert (of_x.shape, of_weight.shape) == (x.shape, weight.shape)


@pytest.fixture(scope="module")
def interpreted():
    program = Path(__file__).parents[2] / "support" / "interpreted.py"
    done = subprocess.run(
        [sys.executable, str(program), json.dumps(CASES)],
        env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@with_triton
def test_interpreted_kernels_equal_float64(interpreted):
    for case, found in zip(["other cuts", *CASES], interpreted["errors"], strict=True):
        assert max(found) < TOLERANCE, (case, found)
    assert max(interpreted["by_nchw"]) < TOLERANCE


@with_triton
def test_compilers_can_rely_on_the_declared_shapes_and_strides(interpreted):
    assert set(interpreted["checks"].values()) == {"SUCCESS"}
    assert interpreted["last"] == [True, True, True]


@on_gpu
@with_triton
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "case",
    [
        *CASES,
        (128, 16, 16, 32, 32, 1),
        (128, 16, 32, 32, 32, 2),
        (128, 32, 32, 16, 16, 1),
        (128, 32, 64, 16, 16, 2),
        (128, 64, 64, 8, 8, 1),
        (53, 64, 64, 8, 8, 1),
        (5, 128, 128, 9, 9, 1),
        (5, 64, 128, 9, 9, 2),
    ],
    ids=str,
)
def test_kernels_on_the_gpu_equal_float64(case, dtype):
    x, weight, gradient = (tensor.cuda() for tensor in tensors(case, dtype))
    found = errors(x, weight, gradient, case[-1])
    assert max(found) < (TOLERANCE if dtype == torch.float16 else BFLOAT16_TOLERANCE), found


@on_gpu
@with_triton
def test_the_same_input_gives_the_same_bits():
    x, weight, gradient = (tensor.cuda() for tensor in tensors((128, 16, 16, 32, 32, 1)))
    results = []
    for _ in range(2):
        leaves = [tensor.detach().requires_grad_() for tensor in (x, weight)]
        made = convolution(*leaves, 1)
        results.append((made, *torch.autograd.grad(made, leaves, gradient)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


# torch.compile imports parts of torch that warn of their own age, and looks at inner gradients.
@on_gpu
@with_triton
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute:UserWarning")
def test_a_step_is_the_same_with_and_without(monkeypatch):
    device = torch.device("cuda")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(54, 3, 32, 32, generator=generator).to(device, memory_format=torch.channels_last)
    y = torch.randint(4, (54,), generator=generator).to(device)
    settings = Training(epochs=1, batch_size=32, learning_rate=0.05, precision="fp16", compile=True)
    changes = []
    for fast in (True, False):
        if not fast:
            monkeypatch.setattr("acil.bench.training.step.use_fast_convolutions", lambda *_: 0)
        network = (
            make_network(4, backbone="resnet32").to(device).to(memory_format=torch.channels_last).train()
        )
        before = convolution_weights(network)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step = Step(network, CrossEntropy(), settings, device)
            changed = sum(isinstance(module, FastConv2d) for module in step._model.modules())
            assert changed == (30 if fast else 0)
            step(x[:32], y[:32], torch.arange(32, device=device))
            changes.append(convolution_weights(network) - before)
            # The smaller batch that ends an epoch is not compiled.
            step(x[32:], y[32:], torch.arange(22, device=device))
            step.close()
        torch.cuda.synchronize()
        assert not any(isinstance(module, FastConv2d) for module in network.modules())
        assert all(tensor.isfinite().all() for tensor in network.state_dict().values())
        assert network.backbone.stem[1].num_batches_tracked == 2
    # The first gradients of this network are small sums of large terms: two ways of rounding float16
    # differ by 0.1 (and each by 0.12 from float32). Taps in the wrong order would differ by more than 1.
    assert (changes[0] - changes[1]).norm() < 0.3 * changes[1].norm()


def convolution_weights(network):
    weights = [module.weight for module in network.modules() if isinstance(module, nn.Conv2d)]
    return torch.cat([weight.detach().flatten() for weight in weights])
