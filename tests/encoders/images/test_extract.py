"""Extraction: known answers, the same bits for any split, and nothing left changed."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from acil.encoders.images.backbones import Backbone, Preprocessing, build, normalise
from acil.encoders.images.cache import FeatureCache
from acil.encoders.images.extract import FeatureExtractor, FeatureSettings, full_float32
from acil.encoders.images.imagefiles import ImageFiles
from acil.encoders.images.imageset import ImageSet, content_identity
from acil.encoders.images.networks import WrappedBackbone
from acil.errors import InputError

DEEP = FeatureSettings(taps=("stem", "stage2.2", "stage3.4"), grid=2, mirror=True, length=8.0)


def random_images(n: int, shape: tuple[int, ...], seed: int = 0) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (n, *shape), generator=generator, dtype=torch.uint8)
    return ImageSet(pixels)


class Corner(Backbone):
    """Returns the two upper corners of an image; its map is the image itself, doubled in place after."""

    def __init__(self) -> None:
        # Pixels of 0 and 255 become 0 and 255: a mean of 0 and a deviation of 1/255.
        super().__init__("corner", 2, Preprocessing((0.0,), (1 / 255,), 4))
        self.map = nn.Identity()
        self.unused = nn.Identity()
        self.frozen = nn.Dropout(0.5)

    def forward(self, x):
        y = self.map(x.clone())
        y *= 2
        return self.frozen(torch.stack([x[:, 0, 0, 0], x[:, 0, 0, -1]], dim=1))

    def taps(self):
        return {name: getattr(self, name) for name in ("map", "unused", "frozen")}


@pytest.fixture
def ramp() -> ImageSet:
    """Three 4 x 4 images: the values 0 … 15, 16 … 31, and zeros."""
    pixels = torch.zeros(3, 1, 4, 4, dtype=torch.uint8)
    pixels[:2] = torch.arange(32, dtype=torch.uint8).reshape(2, 1, 4, 4)
    return ImageSet(pixels)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (FeatureSettings(), [[0, 3], [16, 19]]),
        (FeatureSettings(mirror=True), [[1.5, 1.5], [17.5, 17.5]]),
        (FeatureSettings(taps=("map",)), [[7.5], [23.5]]),
        (FeatureSettings(taps=("map",), grid=2), [[2.5, 4.5, 10.5, 12.5], [18.5, 20.5, 26.5, 28.5]]),
        (
            FeatureSettings(taps=("map",), grid=2, mirror=True),
            [[3.5, 3.5, 11.5, 11.5], [19.5, 19.5, 27.5, 27.5]],
        ),
        (FeatureSettings(length=6.0), [[0, 6], [16 * 6 / 617**0.5, 19 * 6 / 617**0.5]]),
        # Mirrored first: scaling before would give other numbers
        (FeatureSettings(mirror=True, length=2.0), [[2**0.5, 2**0.5], [2**0.5, 2**0.5]]),
        # Upper corners as they are, moved up, down (black), left and right
        (
            FeatureSettings(shift=1),
            [
                [(0 + 4 + 0 + 1 + 0) / 5, (3 + 7 + 0 + 0 + 2) / 5],
                [(16 + 20 + 17) / 5, (19 + 23 + 18) / 5],
            ],
        ),
        # Views are rows of training, see below
        (FeatureSettings(mirror=True, shift=1, rows=True), [[0, 3], [16, 19]]),
    ],
)
def test_known_answers(ramp, settings, expected):
    extractor = FeatureExtractor(Corner(), settings)
    features = extractor.features(ramp)
    expected = torch.tensor(expected, dtype=torch.float32)
    # Also what is scaled to a length stays zero.
    expected = torch.cat([expected, torch.zeros_like(expected[:1])])
    torch.testing.assert_close(features, expected)
    assert extractor.num_features == features.shape[1]
    assert features.device.type == "cpu"


@pytest.mark.parametrize("cached", [False, True])
def test_each_view_is_a_row_of_training_or_all_are_averaged(ramp, cached):
    cache = FeatureCache(None) if cached else None
    images = ramp.subset(torch.tensor([1]))
    expected = {False: [[16, 19], [20, 23], [0, 0], [17, 0], [0, 18]]}
    expected[True] = [row[::-1] for row in [[16, 19], [20, 23], [0, 0], [0, 18], [17, 0]]]
    settings = FeatureSettings(mirror=True, shift=1, rows=True)
    rows = FeatureExtractor(Corner(), settings, cache=cache).training_rows(images)
    found = torch.cat(rows)
    assert found.tolist() == expected[False] + expected[True]
    averaging = FeatureExtractor(Corner(), FeatureSettings(mirror=True, shift=1), cache=cache)
    (average,) = averaging.training_rows(images)
    assert torch.equal(average, averaging.features(images))
    torch.testing.assert_close(average, found.mean(0, keepdim=True))


def test_parts_are_concatenated_in_the_order_named_and_scaled_one_by_one():
    images = random_images(5, (3, 16, 16))
    backbone = build("resnet32", size=16)

    def features(*taps, length=None):
        return FeatureExtractor(backbone, FeatureSettings(taps, 2, length=length)).features(images)

    deep, shallow = features("stage3.0"), features("stem")
    assert torch.equal(features("stage3.0", "stem"), torch.cat([deep, shallow], dim=1))
    scaled = features("stage3.0", "stem", length=8.0)
    assert scaled.shape == (5, 64 * 4 + 16 * 4)
    torch.testing.assert_close(scaled[:, :256].norm(dim=1), torch.full((5,), 8.0))
    torch.testing.assert_close(scaled[:, 256:].norm(dim=1), torch.full((5,), 8.0))


def test_output_is_that_of_the_bare_network():
    images, backbone = random_images(64, (3, 32, 32)), build("resnet32").eval()
    with torch.no_grad():
        expected = backbone(normalise(images.pixels(), backbone.preprocessing))
    assert torch.equal(FeatureExtractor(backbone).features(images), expected)


@pytest.mark.parametrize(
    ("name", "settings", "n"),
    [
        ("resnet32", FeatureSettings(), 64),
        ("resnet32", DEEP, 64),
        # Around the borders of batches of 256
        *(("smallcnn", FeatureSettings(), n) for n in (1, 255, 256, 257, 600)),
    ],
)
def test_same_bits_whatever_the_split(name, settings, n):
    extractor = FeatureExtractor(build(name), settings)
    needed = extractor.backbone.preprocessing
    images = random_images(n, (len(needed.mean), needed.size, needed.size))
    whole = extractor.features(images)
    shuffled = torch.randperm(n, generator=torch.Generator().manual_seed(1))
    for size in (1, 7, 30, n):
        for places in (shuffled[:size], torch.arange(n)[-size:]):
            assert torch.equal(extractor.features(images.subset(places)), whole[places]), size


def test_every_batch_is_full():
    backbone, seen = Corner(), []
    backbone.register_forward_pre_hook(lambda _module, inputs: seen.append(len(inputs[0])))
    FeatureExtractor(backbone, batch_size=8).features(random_images(20, (1, 4, 4)))
    # One image first, to see how large the network is
    assert seen == [1, 8, 8, 8]


def test_batch_suits_the_size_of_images():
    sizes = {8: 256, 32: 64, 64: 16, 224: 8}
    assert {n: FeatureExtractor(build("smallcnn", size=n)).batch_size for n in sizes} == sizes
    with pytest.raises(InputError, match="batch_size"):
        FeatureExtractor(build("smallcnn"), batch_size=-1)


@pytest.mark.parametrize("cached", [True, False])
def test_no_images(cached):
    extractor = FeatureExtractor(build("smallcnn"), cache=FeatureCache(None) if cached else None)
    assert extractor.features(random_images(3, (1, 8, 8)).subset(torch.tensor([]))).shape == (0, 64)
    assert extractor.features(random_images(0, (1, 8, 8))).shape == (0, 64)


def test_memory_mapped_pixels_are_read_batch_by_batch(tmp_path):
    images = random_images(40, (1, 8, 8))
    images.pixels().numpy().tofile(tmp_path / "pixels")
    mapped = torch.from_numpy(np.memmap(tmp_path / "pixels", np.uint8, "c", shape=(40, 1, 8, 8)))
    assert content_identity(mapped) == images.identity
    read = []

    class Watched(ImageSet):
        def batch(self, start, stop):
            read.append((start, stop))
            return super().batch(start, stop)

    extractor = FeatureExtractor(build("smallcnn"), batch_size=16)
    features = extractor.features(Watched(mapped, None, "mapped"))
    assert read == [(0, 16), (16, 32), (32, 40)]
    assert torch.equal(features, extractor.features(images))


def test_centre_of_slightly_larger_images_is_taken():
    large = random_images(3, (3, 256, 256))
    backbone = build("resnet18", size=224)
    cut = large.pixels()[:, :, 16:240, 16:240].contiguous()
    extractor = FeatureExtractor(backbone, FeatureSettings(("stem",)))
    expected = extractor.features(ImageSet(cut, None, "cut"))
    assert torch.equal(extractor.features(large), expected)


@pytest.mark.parametrize("shape", [(1, 32, 32), (3, 28, 28), (3, 64, 64), (3, 32, 31), (3, 32, 40)])
def test_images_of_another_shape_are_refused(shape):
    extractor = FeatureExtractor(build("resnet32"))
    with pytest.raises(InputError, match=r"\(3, 32, 32\)"):
        extractor.features(random_images(1, shape))
    with pytest.raises(InputError, match="only vectors"):
        extractor.features(ImageSet(None, torch.zeros(2, 3), "v"))


@pytest.mark.parametrize(
    ("backbone", "taps", "message"),
    [
        (build("resnet32"), ["stage9.0"], "no tap 'stage9.0'. Choose among stem, stage1.0"),
        (build("resnet32"), ["stage3.0"], "8 x 8 places, fewer than grid=9"),
        (Corner(), ["frozen"], r"'frozen' must give a map .* Got \(1, 2\)"),
        (Corner(), ["unused"], "'unused' is not used by the forward pass"),
    ],
)
def test_taps_that_cannot_be_used_are_refused_at_once(backbone, taps, message):
    with pytest.raises(InputError, match=message):
        FeatureExtractor(backbone, FeatureSettings(taps, grid=9 if "stage3.0" in taps else 1))


def test_module_that_returns_something_else_is_refused(ramp):
    backbone = WrappedBackbone(nn.Flatten(), "flat", 15, Preprocessing((0.0,), (1.0,), 4))
    with pytest.raises(InputError, match="features of shape"):
        FeatureExtractor(backbone).features(ramp)


@pytest.mark.parametrize(
    "values",
    [{"grid": 0}, {"length": 0.0}, {"length": float("nan")}, {"taps": ("stem", "stem")}],
)
def test_settings_that_make_no_sense_are_refused(values):
    with pytest.raises(InputError):
        FeatureSettings(**values)


def test_weights_gradients_and_mode_of_each_module_are_left_alone(ramp):
    backbone = Corner()
    backbone.train()
    backbone.map.eval()
    smallcnn = build("smallcnn").train()
    running = smallcnn.stage1[1].running_mean.clone()
    for network, images in ((backbone, ramp), (smallcnn, random_images(9, (1, 8, 8)))):
        modes = [module.training for module in network.modules()]
        features = FeatureExtractor(network).features(images)
        assert not features.requires_grad
        assert [module.training for module in network.modules()] == modes
    assert torch.equal(smallcnn.stage1[1].running_mean, running)


def hooks_of(network: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in network.modules())


def precision_flags() -> list:
    backends = torch.backends
    owners = [backends.cuda.matmul, backends.cudnn.conv, backends.mkldnn.matmul, backends.mkldnn.conv]
    flags = [owner.fp32_precision for owner in owners]
    flags += [backends.cudnn.benchmark, backends.cudnn.deterministic]
    return [*flags, torch.is_autocast_enabled("cpu")]


class Failing(Corner):
    """Fails in the second batch, and notes the flags it ran with."""

    calls, flags = 0, None

    def forward(self, x):
        self.calls += 1
        self.flags = precision_flags()
        if self.calls > 2:  # the first call counts the features
            raise RuntimeError("out of memory")
        return super().forward(x)


@pytest.fixture
def fast_and_loose():
    """Torch as a user may have set it, who cares more for speed."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.benchmark = True
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.benchmark = before[1]


def test_everything_is_put_back_after_an_error(ramp, fast_and_loose):
    failing = Failing().train()
    with torch.autocast("cpu"):
        extractor = FeatureExtractor(failing, FeatureSettings(taps=("map",)), batch_size=1)
        flags = precision_flags()
        with pytest.raises(RuntimeError, match="out of memory"):
            extractor.features(ramp)
        assert precision_flags() == flags
    assert failing.flags == ["ieee"] * 4 + [False, True, False]
    assert flags[0] != "ieee"
    assert hooks_of(failing) == 0
    assert all(module.training for module in failing.modules())


def test_autocast_and_reduced_precision_outside_change_nothing(fast_and_loose):
    images = random_images(5, (1, 8, 8))
    expected = FeatureExtractor(build("smallcnn")).features(images)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(FeatureExtractor(build("smallcnn")).features(images), expected)


def test_full_float32_leaves_old_flags_readable(fast_and_loose):
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    with full_float32():
        pass
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


def test_cache_holds_the_whole_and_serves_subsets(tmp_path):
    images = random_images(20, (1, 8, 8))
    expected = FeatureExtractor(build("smallcnn")).features(images)
    backbone, calls = build("smallcnn"), []
    backbone.register_forward_pre_hook(lambda _module, inputs: calls.append(len(inputs[0])))
    extractor = FeatureExtractor(backbone, cache=FeatureCache(tmp_path))
    part = images.subset(torch.tensor([3, 19, 3]))
    assert torch.equal(part.features(extractor), expected[[3, 19, 3]])
    assert torch.equal(images.features(extractor), expected)
    other = FeatureExtractor(backbone, cache=FeatureCache(tmp_path))
    assert torch.equal(part.features(other), expected[[3, 19, 3]])
    # One image first, to see how large the network is
    assert calls == [1, extractor.batch_size]
    assert len(list(tmp_path.iterdir())) == 1


def test_identity_follows_weights_settings_and_preprocessing():
    images, backbone = random_images(6, (1, 8, 8)), build("smallcnn")
    extractor = FeatureExtractor(backbone, cache=FeatureCache(None))
    seen, features = [extractor.identity], extractor.features(images)
    assert FeatureExtractor(build("smallcnn")).identity == seen[0]
    settings = [FeatureSettings(mirror=True), FeatureSettings(length=8.0), FeatureSettings(["stage1"])]
    settings += [FeatureSettings(["stage2"]), FeatureSettings(["stage2"], grid=2)]
    settings += [FeatureSettings(shift=1), FeatureSettings(shift=2), FeatureSettings(rows=True)]
    seen += [FeatureExtractor(backbone, chosen).identity for chosen in settings]
    needed = backbone.preprocessing
    backbone.preprocessing = Preprocessing(needed.mean, (0.5,), needed.size)
    seen.append(extractor.identity)
    backbone.preprocessing = needed
    backbone(normalise(images.pixels(), needed)).square().sum().backward()
    torch.optim.SGD(backbone.parameters(), lr=0.1).step()
    seen.append(extractor.identity)
    assert len(set(seen)) == len(seen)
    assert not torch.equal(extractor.features(images), features)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_features_of_files_go_from_a_gpu_to_the_disk(tmp_path):
    for k in range(3):
        Image.new("RGB", (32, 32), (40 * k, 90, 9)).save(tmp_path / f"{k}.png")
    names = np.array([f"{k}.png".encode() for k in range(3)])
    images = ImageSet(ImageFiles([tmp_path], np.zeros(3), names, "three", size=32, workers=0))
    backbone = build("resnet32")
    expected = FeatureExtractor(backbone, FeatureSettings(), "cpu").features(images)
    cache = FeatureCache(tmp_path / "cache")
    found = FeatureExtractor(backbone.cuda(), FeatureSettings(), "cuda", cache=cache).features(images)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
