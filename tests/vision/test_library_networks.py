"""Networks of timm and torchvision, on stand-ins with the interface that their documentation gives."""

import sys
import types
from collections import OrderedDict

import pytest
import torch
from torch import nn

from acil.errors import InputError, MissingExtraError
from acil.vision import WrappedBackbone
from acil.vision.embedder import TorchEmbedder
from acil.vision.networks import open_network
from pictures import PREPROCESSING, Pooled


def pixels(number=3, size=8):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (number, 3, size, size), dtype=torch.uint8, generator=generator)


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
    if name == "resnet":
        return Classifying("fc", linear)
    if name == "swin":
        return Classifying("head", linear)
    if name == "vit":
        return Classifying("heads", nn.Sequential(OrderedDict(head=linear)))
    if name == "mobilenet":
        return Classifying("classifier", nn.Sequential(nn.Dropout(0.5), linear))
    if name == "convnext":
        # Its flattening is part of the classifier.
        shaped = nn.Sequential(nn.Unflatten(1, (24, 1, 1)), nn.Flatten(1), linear)
        return Classifying("classifier", shaped)
    if name == "vgg":
        return Classifying(
            "classifier", nn.Sequential(nn.Identity(), linear, nn.ReLU(), nn.Linear(10, 5))
        )
    if name == "video":
        return Classifying("fc", nn.Sequential(nn.Conv3d(24, 2, 1), linear))
    return Pooled()


@pytest.fixture
def timm(monkeypatch):
    """A stand-in with the documented interface of timm."""
    library = types.ModuleType("timm")
    library.data = types.SimpleNamespace(
        resolve_model_data_config=lambda model: {
            "input_size": (3, 8, 8),
            "mean": (0.5, 0.5, 0.5),
            "std": (0.25, 0.25, 0.25),
            "crop_pct": 0.9,
        }
    )

    def create_model(name, pretrained, num_classes):
        if (name, pretrained, num_classes) != ("pooled", True, 0):
            raise RuntimeError(f"Unknown model ({name})")
        return Pooled()

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


def expected():
    return TorchEmbedder(WrappedBackbone(Pooled(), "x", 24, PREPROCESSING)).embed(pixels())


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


def test_of_several_linear_layers_only_the_last_is_cut(torchvision):
    assert open_network("torchvision:vgg").num_features == 10


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("squeezenet", "no linear layer in any of"),
        ("segmentation", "no network that classifies images"),
        ("video", "which gets images of shape"),
    ],
)
def test_torchvision_networks_without_features_of_images_are_told(torchvision, name, words):
    with pytest.raises(InputError, match=words):
        open_network(f"torchvision:{name}")


def test_library_that_does_not_fit_torch_is_told(monkeypatch):
    def fail(name):
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("acil.vision.networks.importlib.import_module", fail)
    with pytest.raises(MissingExtraError, match=r"cannot be imported \(operator.*fits torch"):
        open_network("torchvision:resnet18")


def test_network_for_images_that_are_not_square_is_refused(timm, monkeypatch):
    import timm

    values = {**timm.data.resolve_model_data_config(None), "input_size": (3, 8, 16)}
    monkeypatch.setattr(timm.data, "resolve_model_data_config", lambda model: values)
    with pytest.raises(InputError, match="8 x 16 pixels"):
        open_network("timm:pooled")


@pytest.mark.parametrize("spec", ["timm:hf-hub:someone/thing", "timm:a/b", "timm:../x"])
def test_only_plain_names_reach_a_library(timm, spec):
    with pytest.raises(InputError, match="no plain name"):
        open_network(spec)


def test_unknown_name_of_a_library_is_told(timm):
    with pytest.raises(InputError, match="Unknown model"):
        open_network("timm:nonsense")


@pytest.mark.parametrize(("spec", "name"), [("timm:x", "timm"), ("torchvision:x", "torchvision")])
def test_missing_library_names_what_to_install(monkeypatch, spec, name):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, f"{name}.models", None)
    with pytest.raises(MissingExtraError, match="pip install"):
        open_network(spec)
