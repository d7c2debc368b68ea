"""CIFAR-100 from its official layout, with small files in place of the large ones, and every damage."""

import numpy as np
import pytest
import torch

from acil.bench.datasets import cifar100, load
from acil.errors import InputError

NAMES = [f"class_{i:02d}" for i in range(100)]


def content(split, per_class):
    """Images of each class in a mixed order, as (labels, planes)."""
    generator = np.random.default_rng(len(split))
    labels = generator.permutation(np.repeat(np.arange(100), per_class))
    return labels, generator.integers(0, 256, (len(labels), 3072), dtype=np.uint8)


SPLITS = {"train": content("train", 2), "test": content("test", 1)}


def write_binary(root):
    folder = root / "cifar-100-binary"
    folder.mkdir(parents=True)
    for split, (labels, planes) in SPLITS.items():
        records = np.column_stack([labels % 20, labels, planes]).astype(np.uint8)
        (folder / f"{split}.bin").write_bytes(records.tobytes())
    (folder / "fine_label_names.txt").write_text("\n".join(NAMES) + "\n\n")
    return folder


@pytest.fixture(autouse=True)
def small_counts(monkeypatch):
    monkeypatch.setattr(cifar100, "RECORDS", {"train": 200, "test": 100})


@pytest.mark.parametrize("inside", [True, False])
def test_images_and_labels_are_those_of_the_files(tmp_path, inside):
    folder = write_binary(tmp_path)
    dataset = load("cifar100", folder if inside else tmp_path)
    assert dataset.class_names == tuple(NAMES)
    assert (dataset.default_base, dataset.default_recipe) == (50, "paper")
    for split, images, found in (
        ("train", dataset.train, dataset.train_labels),
        ("test", dataset.test, dataset.test_labels),
    ):
        labels, planes = SPLITS[split]
        assert found.tolist() == labels.tolist()
        assert torch.equal(images.pixels(), torch.from_numpy(planes.reshape(-1, 3, 32, 32)))


def test_official_numbers_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.undo()
    write_binary(tmp_path)
    with pytest.raises(InputError, match=r"614,800 .*153,700,000"):
        load("cifar100", tmp_path)


def with_byte(content, offset, value):
    """Return records with another byte in record 7."""
    changed = bytearray(content)
    changed[3074 * 7 + offset] = value
    return changed


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("test.bin", lambda b: b[:-1], r"test\.bin has 307,399 bytes.*307,400.*truncated.*--force"),
        ("test.bin", lambda b: b + b"1", "not the official file"),
        ("train.bin", lambda b: with_byte(b, 0, 20), r"train\.bin has the coarse label 20 in record 7"),
        ("train.bin", lambda b: with_byte(b, 1, 100), r"train\.bin has the fine label 100 in record 7"),
        ("fine_label_names.txt", lambda b: b"one\ntwo\n", "must name 100 classes"),
        ("fine_label_names.txt", lambda b: b"same\n" * 100, "must name 100 classes"),
        ("fine_label_names.txt", lambda b: b"", "must name 100 classes"),
        ("fine_label_names.txt", lambda b: b"\xff\xfe", "is not text"),
    ],
)
def test_damage_is_named_with_what_to_do(tmp_path, name, damage, message):
    path = write_binary(tmp_path) / name
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=message) as raised:
        load("cifar100", tmp_path)
    assert "acil data prepare cifar100 --root DIR --force" in str(raised.value)


def test_incomplete_folder_says_what_to_do(tmp_path):
    (write_binary(tmp_path) / "test.bin").unlink()
    with pytest.raises(InputError, match="acil data prepare"):
        load("cifar100", tmp_path)
