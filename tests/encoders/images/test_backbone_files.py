"""Backbones in files, and what identifies them."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from acil.encoders.images.backbones import (
    METADATA_KEY,
    Preprocessing,
    build,
    fingerprint,
    load_backbone,
    save_backbone,
)
from acil.encoders.images.networks import WrappedBackbone
from acil.errors import InputError, ModelFileError
from support.backbones import input_of, seeded, with_statistics

METADATA = {"order": [3, 1, 2], "base_classes": 2, "seed": 7, "recipe": "quick", "dataset": "digits"}


def test_fingerprint_follows_whatever_decides_features_and_nothing_else():
    backbone = build("smallcnn", seeded(1))
    before = fingerprint(backbone)
    backbone.eval().to(memory_format=torch.channels_last)
    backbone.stage1[1].num_batches_tracked += 1
    assert fingerprint(backbone) == before
    backbone.stage1[1].running_var[3] += 1e-3
    assert fingerprint(backbone) != before
    assert fingerprint(build("resnet32")) != fingerprint(build("resnet32", last_relu=False))


@pytest.mark.parametrize(
    ("name", "options"),
    [("smallcnn", {}), ("resnet32", {"option": "B", "last_relu": False, "size": 16})],
)
def test_saved_backbone_comes_back(tmp_path, name, options):
    backbone = with_statistics(build(name, seeded(1), **options)).to(memory_format=torch.channels_last)
    backbone.preprocessing = Preprocessing(
        backbone.preprocessing.mean, backbone.preprocessing.mean, backbone.preprocessing.size
    )
    save_backbone(backbone, tmp_path / "b.safetensors", METADATA)
    loaded, metadata = load_backbone(tmp_path / "b.safetensors")
    assert fingerprint(loaded) == fingerprint(backbone) == metadata["fingerprint"]
    assert loaded.preprocessing == backbone.preprocessing
    assert loaded.options == backbone.options
    assert metadata.items() >= METADATA.items()
    assert metadata["name"] == name
    assert not loaded.training
    assert torch.equal(
        loaded(input_of(loaded)), backbone.to(memory_format=torch.contiguous_format)(input_of(loaded))
    )
    save_backbone(loaded, tmp_path / "again.safetensors", metadata)
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_half_precision_file_is_half_as_large_and_holds_rounded_weights(tmp_path):
    backbone = with_statistics(build("resnet32", seeded(1)))
    save_backbone(backbone, tmp_path / "full.safetensors", {})
    save_backbone(backbone, tmp_path / "half.safetensors", {}, half=True)
    full, half = (tmp_path / f"{name}.safetensors" for name in ("full", "half"))
    assert half.stat().st_size < 0.55 * full.stat().st_size
    loaded, metadata = load_backbone(half)
    assert metadata["half"] is True
    assert fingerprint(loaded) == metadata["fingerprint"] != fingerprint(backbone)
    for (name, rounded), original in zip(loaded.named_parameters(), backbone.parameters(), strict=True):
        assert rounded.dtype == torch.float32
        assert torch.equal(rounded, original.half().float()), name
    for rounded, original in zip(loaded.buffers(), backbone.buffers(), strict=True):
        assert torch.equal(rounded, original)


def test_weights_too_large_for_half_precision_are_refused(tmp_path):
    backbone = build("smallcnn")
    with torch.no_grad():
        backbone.stage1[0].weight[0] = 1e6
    with pytest.raises(InputError, match="float16"):
        save_backbone(backbone, tmp_path / "b.safetensors", {}, half=True)
    assert not list(tmp_path.iterdir())


def rewritten(path, **changes):
    """Save the same tensors with changed metadata."""
    backbone = build("smallcnn")
    save_backbone(backbone, path, {})
    _, facts = load_backbone(path)
    facts = {key: value for key, value in {**facts, **changes}.items() if value is not None}
    save_file(load_file(path), path, metadata={METADATA_KEY: json.dumps(facts)})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 2}, "format version 2"),
        ({"name": "vgg"}, "no backbone 'vgg'"),
        ({"name": "resnet32"}, "options"),
        ({"name": "resnet18"}, "do not fit"),
        ({"options": {"depth": 3}}, "depth"),
        ({"options": 3}, "incomplete"),
        ({"fingerprint": "0" * 64}, "fingerprint"),
        ({"fingerprint": None}, "incomplete"),
        ({"preprocessing": {}}, "preprocessing"),
    ],
)
def test_file_with_wrong_metadata_is_refused(tmp_path, changes, message):
    path = tmp_path / "b.safetensors"
    rewritten(path, **changes)
    with pytest.raises(ModelFileError, match=message):
        load_backbone(path)


def test_damaged_files_are_refused_by_name(tmp_path):
    path = tmp_path / "b.safetensors"
    save_backbone(build("smallcnn"), path, {})
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[-100] ^= 1
    for damaged in (b"", content[:5], content[:-10], b"x" * 100, bytes(flipped)):
        path.write_bytes(damaged)
        with pytest.raises(ModelFileError, match=r"b\.safetensors"):
            load_backbone(path)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(ModelFileError, match="'acil_backbone'"):
        load_backbone(path)
    for absent in (tmp_path / "none", tmp_path):
        with pytest.raises(ModelFileError, match="Cannot read"):
            load_backbone(absent)


def test_metadata_that_is_not_json_writes_nothing(tmp_path):
    for metadata in ({"order": torch.zeros(2)}, {"accuracy": math.nan}):
        with pytest.raises((TypeError, ValueError), match="JSON"):
            save_backbone(build("smallcnn"), tmp_path / "b.safetensors", metadata)
    assert not list(tmp_path.iterdir())


def wrapped(activation: nn.Module) -> WrappedBackbone:
    network = nn.Sequential(activation, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return WrappedBackbone(network, "mine", 1, Preprocessing((0.0,), (1.0,), 4))


def test_any_module_can_be_a_backbone_but_not_be_saved(tmp_path):
    backbone = wrapped(nn.ReLU())
    assert backbone(torch.full((2, 1, 4, 4), 3.0)).tolist() == [[3.0], [3.0]]
    assert fingerprint(backbone) == fingerprint(wrapped(nn.ReLU())) != fingerprint(wrapped(nn.Tanh()))
    with pytest.raises(InputError, match="registry"):
        save_backbone(backbone, tmp_path / "b.safetensors", {})
