"""Backbones: shapes, counts, known answers, weights of others, preprocessing."""

import json
import math

import pytest
import torch
from torch.nn import functional

from acil.encoders.images.architectures import PaddedShortcut
from acil.encoders.images.backbones import BACKBONES, Preprocessing, build, fingerprint, normalise
from acil.errors import InputError
from support.backbones import input_of, seeded, with_statistics

#: Two correct orders of float32 sums over some thousand products.
TOLERANCE = 1e-4


def map_shapes(backbone) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for name, module in backbone.taps().items():
        module.register_forward_hook(
            lambda _module, _inputs, output, name=name: shapes.update({name: tuple(output.shape[1:])})
        )
    with torch.no_grad():
        backbone.eval()(input_of(backbone))
    return shapes


CIFAR = [(16, 32, 32), (32, 16, 16), (64, 8, 8)]
SMALL_IMAGES = [(64, 16, 16), (128, 8, 8), (256, 4, 4), (512, 2, 2)]
SMALL_STEM = [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]


def taps(blocks, maps):
    """Return the taps of a residual network and the shapes of their maps."""
    stages = enumerate(maps, start=1)
    found = {f"stage{stage}.{index}": shape for stage, shape in stages for index in range(blocks)}
    return {"stem": maps[0], **found}


@pytest.mark.parametrize(
    ("name", "options", "parameters", "features", "expected"),
    [
        ("resnet32", {}, 463_504, 64, taps(5, CIFAR)),
        ("resnet32", {"option": "B"}, 466_256, 64, taps(5, CIFAR)),
        ("resnet18", {"size": 64}, 11_176_512, 512, taps(2, SMALL_IMAGES)),
        (
            "resnet18",
            {"stem": "small", "size": 32},
            11_176_512 - 64 * 3 * (7 * 7 - 3 * 3),
            512,
            taps(2, SMALL_STEM),
        ),
        ("smallcnn", {}, 18_912, 64, {"stage1": (32, 8, 8), "stage2": (64, 4, 4)}),
    ],
)
def test_parameters_features_and_taps(name, options, parameters, features, expected):
    backbone = build(name, **options)
    assert sum(parameter.numel() for parameter in backbone.parameters()) == parameters
    assert (backbone.name, backbone.num_features) == (name, features)
    assert list(backbone.taps()) == list(expected)
    assert map_shapes(backbone) == expected


def test_weights_stored_before_an_option_existed_keep_their_identity():
    assert build("resnet18", size=32).options == {"size": 32}
    assert "last_relu" in build("resnet18", last_relu=False).options
    assert build("resnet18", size=32, stem="small").options == {"size": 32, "stem": "small"}


def test_option_a_shortcut_keeps_every_second_pixel_between_channels_of_zeros():
    x = torch.arange(2 * 4 * 4, dtype=torch.float32).reshape(1, 2, 4, 4)
    expected = torch.zeros(1, 6, 2, 2)
    expected[0, 2] = torch.tensor([[0.0, 2.0], [8.0, 10.0]])
    expected[0, 3] = torch.tensor([[16.0, 18.0], [24.0, 26.0]])
    assert torch.equal(PaddedShortcut(2, 6)(x), expected)


def reference(state, x, stem, stages, last_relu):
    """Compute features of a residual network by its formulas, from the names of its weights."""

    def norm(name, x):
        keys = ("running_mean", "running_var", "weight", "bias")
        mean, var, weight, bias = (state[f"{name}.{key}"].reshape(-1, 1, 1) for key in keys)
        return (x - mean) / (var + 1e-5).sqrt() * weight + bias

    def shortcut(name, x, stride):
        if f"{name}.downsample.0.weight" in state:
            projected = functional.conv2d(x, state[f"{name}.downsample.0.weight"], stride=stride)
            return norm(f"{name}.downsample.1", projected)
        side = torch.zeros(len(x), x.shape[1] // 2, x.shape[2] // 2, x.shape[3] // 2)
        return x if stride == 1 else torch.cat([side, x[:, :, ::2, ::2], side], dim=1)

    y = stem(norm, x)
    names = [f"{stage}.{index}" for stage, blocks in stages.items() for index in range(blocks)]
    for name in names:
        stride = 2 if name.endswith(".0") and name != names[0] else 1
        inner = functional.conv2d(y, state[f"{name}.conv1.weight"], stride=stride, padding=1)
        inner = functional.conv2d(
            norm(f"{name}.bn1", inner).relu(), state[f"{name}.conv2.weight"], padding=1
        )
        y = norm(f"{name}.bn2", inner) + shortcut(name, y, stride)
        y = y.relu() if last_relu or name != names[-1] else y
    return y.mean(dim=(2, 3))


@pytest.mark.parametrize("last_relu", [True, False])
@pytest.mark.parametrize(
    ("name", "options"),
    [("resnet32", {"option": "A"}), ("resnet32", {"option": "B"}), ("resnet18", {"size": 64})],
)
def test_resnets_compute_what_the_formulas_say(name, options, last_relu):
    backbone = with_statistics(build(name, seeded(1), last_relu=last_relu, **options))
    state, x = backbone.state_dict(), input_of(backbone)

    def stem(norm, x):
        if name == "resnet32":
            return norm("stem.1", functional.conv2d(x, state["stem.0.weight"], padding=1)).relu()
        y = norm("bn1", functional.conv2d(x, state["conv1.weight"], stride=2, padding=3)).relu()
        return functional.max_pool2d(y, 3, stride=2, padding=1)

    stages = {"stage1": 5, "stage2": 5, "stage3": 5}
    if name == "resnet18":
        stages = {"layer1": 2, "layer2": 2, "layer3": 2, "layer4": 2}
    with torch.no_grad():
        features = backbone(x)
    expected = reference(state, x, stem, stages, last_relu)
    torch.testing.assert_close(features, expected, rtol=TOLERANCE, atol=TOLERANCE)
    assert bool((features < 0).any()) is not last_relu


def torchvision_state() -> dict[str, torch.Tensor]:
    """Return weights with the names and shapes of torchvision.models.resnet18, fc included."""
    convolutions, norms = {"conv1": (64, 3, 7, 7)}, {"bn1": 64}
    before = 64
    for layer, channels in enumerate((64, 128, 256, 512), start=1):
        for name, inputs in ((f"layer{layer}.0", before), (f"layer{layer}.1", channels)):
            convolutions[f"{name}.conv1"] = (channels, inputs, 3, 3)
            convolutions[f"{name}.conv2"] = (channels, channels, 3, 3)
            norms |= {f"{name}.bn1": channels, f"{name}.bn2": channels}
            if inputs != channels:
                convolutions[f"{name}.downsample.0"] = (channels, inputs, 1, 1)
                norms[f"{name}.downsample.1"] = channels
        before = channels
    keys = ("weight", "bias", "running_mean", "running_var")
    shapes = {f"{name}.weight": shape for name, shape in convolutions.items()}
    shapes |= {f"{name}.{key}": (channels,) for name, channels in norms.items() for key in keys}
    shapes |= {f"{name}.num_batches_tracked": () for name in norms}
    shapes |= {"fc.weight": (1000, 512), "fc.bias": (1000,)}
    return {name: torch.full(shape, i % 7 + 1.0) for i, (name, shape) in enumerate(shapes.items())}


def test_torchvision_weights_load_and_fc_is_left_out():
    backbone, state = build("resnet18"), torchvision_state()
    backbone.load_state_dict(state)
    assert backbone.state_dict().keys() == state.keys() - {"fc.weight", "fc.bias"}
    for name, value in backbone.state_dict().items():
        assert torch.equal(value.float(), state[name]), name
    # Those of old torch versions have no batch counters.
    backbone.load_state_dict({name: value for name, value in state.items() if "num_batches" not in name})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"layer1.0.conv1.weight": torch.zeros(64, 64, 1, 1)},
            r"layer1\.0\.conv1\.weight has shape \(64, 64, 1, 1\), not",
        ),
        ({"head": torch.zeros(1)}, "head is not known"),
        ({"bn1.weight": None}, r"bn1\.weight is missing"),
        (dict.fromkeys(torchvision_state()), r"and \d+ more"),
    ],
)
def test_weights_that_do_not_fit_change_nothing_and_are_named(changes, message):
    backbone = build("resnet18")
    before = fingerprint(backbone)
    state = {**torchvision_state(), **changes}
    with pytest.raises(InputError, match=message):
        backbone.load_state_dict({name: value for name, value in state.items() if value is not None})
    assert fingerprint(backbone) == before


@pytest.mark.parametrize("name", BACKBONES)
def test_generator_alone_decides_the_weights(name):
    before = torch.random.get_rng_state()
    same, again, other = build(name, seeded(1)), build(name, seeded(1)), build(name, seeded(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert fingerprint(same) == fingerprint(again) != fingerprint(other)
    assert fingerprint(build(name)) == fingerprint(build(name, seeded(0)))


@pytest.mark.parametrize("init", ["fan_out", "fan_in"])
def test_initial_weights_have_the_spread_of_their_fan(init):
    backbone = build("resnet32", seeded(1), init=init)
    weight = backbone.stage3[0].conv1.weight  # 32 inputs, 64 outputs
    fan = 9 * (64 if init == "fan_out" else 32)
    assert float(weight.detach().std()) == pytest.approx(math.sqrt(2 / fan), rel=0.03)
    assert float(backbone.stage3[0].bn1.weight.detach().min()) == 1.0


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet", {}, "no backbone 'resnet'. Choose one of resnet32"),
        ("resnet32", {"depth": 3}, "depth"),
        ("resnet32", {"option": "C"}, "must be 'A' or 'B'"),
        ("resnet32", {"init": "fan"}, "init must be"),
        ("resnet18", {"stem": "tiny"}, "must be 'large' or 'small'"),
        ("smallcnn", {"size": 0}, "at least 1 pixel"),
    ],
)
def test_what_cannot_be_built_is_refused(name, options, message):
    with pytest.raises(InputError, match=message):
        build(name, **options)


def test_published_preprocessing():
    cifar = build("resnet32").preprocessing
    assert cifar == Preprocessing((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), 32)
    imagenet = build("resnet18").preprocessing
    assert imagenet == Preprocessing((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 224)
    assert Preprocessing.from_dict(json.loads(json.dumps(cifar.to_dict()))) == cifar


@pytest.mark.parametrize(
    "values",
    [{}, {"mean": [0.5], "std": [0.0], "size": 8}, {"mean": [0.5], "std": [1.0, 1.0], "size": 8}, None],
)
def test_preprocessing_that_makes_no_sense_is_refused(values):
    with pytest.raises(InputError):
        Preprocessing.from_dict(values)


def test_normalise_known_answer_and_types():
    preprocessing = Preprocessing((0.5, 0.0), (0.25, 2.0), 1)
    pixels = torch.tensor([[255, 51]], dtype=torch.uint8).reshape(1, 2, 1, 1)
    expected = torch.tensor([[2.0, 0.1]]).reshape(1, 2, 1, 1)
    torch.testing.assert_close(normalise(pixels, preprocessing), expected)
    floats = pixels / 255
    kept = floats.clone()
    assert torch.equal(normalise(floats, preprocessing), normalise(pixels, preprocessing))
    assert torch.equal(floats, kept)
    assert normalise(floats.double(), preprocessing).dtype == torch.float32
    last = torch.zeros(2, 3, 4, 4, dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    result = normalise(last, build("resnet32").preprocessing)
    assert result.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "x",
    [torch.zeros(1, 1, 8, 8, dtype=torch.uint8), torch.zeros(3, 8, 8), torch.zeros(1, 3, 8, 8).int()],
)
def test_normalise_refuses_other_shapes_and_types(x):
    with pytest.raises(InputError):
        normalise(x, build("resnet32").preprocessing)
