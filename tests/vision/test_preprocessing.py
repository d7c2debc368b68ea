"""Preprocessing: published values, and pixels as a network takes them."""

import json

import pytest
import torch

from acil.errors import InputError
from acil.vision.backbones import Preprocessing, build, normalise


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


def test_normalise_keeps_channels_last():
    pixels = torch.zeros(2, 3, 4, 4, dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    result = normalise(pixels, build("resnet32").preprocessing)
    assert result.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "x",
    [torch.zeros(1, 1, 8, 8, dtype=torch.uint8), torch.zeros(3, 8, 8), torch.zeros(1, 3, 8, 8).int()],
)
def test_normalise_refuses_other_shapes_and_types(x):
    with pytest.raises(InputError):
        normalise(x, build("resnet32").preprocessing)
