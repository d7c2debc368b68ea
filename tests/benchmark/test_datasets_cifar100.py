"""CIFAR-100 from both official layouts, small files in the place of the large ones, and every damage."""

import pickle

import numpy as np
import pytest
import torch

from acil.benchmark.datasets import cifar100, load
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


def write_python(root, **changes):
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    for split, (labels, planes) in SPLITS.items():
        entries = {"fine_labels": labels.tolist(), "data": planes, "filenames": ["a.png"] * len(labels)}
        (folder / split).write_bytes(pickle.dumps({**entries, **changes}, protocol=2))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": NAMES}, protocol=2))
    return folder


@pytest.fixture(autouse=True)
def small_counts(monkeypatch):
    monkeypatch.setattr(cifar100, "RECORDS", {"train": 200, "test": 100})


@pytest.mark.parametrize("write", [write_binary, write_python])
@pytest.mark.parametrize("inside", [True, False])
def test_both_layouts_give_the_same_images(tmp_path, write, inside):
    folder = write(tmp_path)
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


def test_identity_does_not_depend_on_the_layout(tmp_path):
    write_binary(tmp_path / "b")
    write_python(tmp_path / "p")
    assert load("cifar100", tmp_path / "b").identity == load("cifar100", tmp_path / "p").identity


def test_official_numbers_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.undo()
    write_binary(tmp_path)
    with pytest.raises(InputError, match=r"614,800 bytes, but 50,000 images .* make 153,700,000"):
        load("cifar100", tmp_path)


def test_truncated_binary_file_is_named_with_both_sizes(tmp_path):
    path = write_binary(tmp_path) / "test.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"test\.bin has 307,399 bytes.*307,400.*truncated.*--force"):
        load("cifar100", tmp_path)
    path.write_bytes(path.read_bytes() + b"12")
    with pytest.raises(InputError, match="not the official file"):
        load("cifar100", tmp_path)


@pytest.mark.parametrize(("offset", "value", "name"), [(0, 20, "coarse"), (1, 100, "fine")])
def test_label_out_of_range_is_named(tmp_path, offset, value, name):
    path = write_binary(tmp_path) / "train.bin"
    content = bytearray(path.read_bytes())
    content[3074 * 7 + offset] = value
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"train\.bin has the {name} label {value} in record 7"):
        load("cifar100", tmp_path)


@pytest.mark.parametrize("text", ["one\ntwo\n", "same\n" * 100, ""])
def test_wrong_class_names_are_refused(tmp_path, text):
    (write_binary(tmp_path) / "fine_label_names.txt").write_text(text)
    with pytest.raises(InputError, match="must name 100 classes"):
        load("cifar100", tmp_path)
    (tmp_path / "cifar-100-binary" / "fine_label_names.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="is not text"):
        load("cifar100", tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": np.zeros((3, 3072), np.uint8)}, r"shape \(200, 3072\), got \(3, 3072\)"),
        ({"data": [1, 2]}, "got list"),
        ({"data": np.zeros((200, 3072))}, "images are uint8"),
        ({"fine_labels": [1, 2]}, "200 images, but 2 labels"),
        ({"fine_labels": ["a"] * 200}, "list of whole numbers"),
        ({"fine_labels": "text"}, "list of whole numbers"),
        ({"fine_labels": [100] * 200}, "fine label 100 in record 0"),
        ({"fine_labels": [-1] * 200}, "fine label -1 in record 0"),
    ],
)
def test_python_layout_is_checked(tmp_path, changes, message):
    write_python(tmp_path, **changes)
    with pytest.raises(InputError, match=message):
        load("cifar100", tmp_path)


@pytest.mark.parametrize(
    "stored", [[1, 2], {"other": 1}, {"fine_label_names": 3}, {"fine_label_names": [3]}]
)
def test_python_meta_is_checked(tmp_path, stored):
    (write_python(tmp_path) / "meta").write_bytes(pickle.dumps(stored, protocol=2))
    with pytest.raises(InputError, match="meta"):
        load("cifar100", tmp_path)


def test_truncated_python_file_is_an_input_error(tmp_path):
    path = write_python(tmp_path) / "train"
    path.write_bytes(path.read_bytes()[:100_000])
    with pytest.raises(InputError, match=r"train is damaged"):
        load("cifar100", tmp_path)


def test_malicious_python_layout_creates_nothing(tmp_path):
    victim = tmp_path / "victim"

    class Attack:
        def __reduce__(self):
            return type(victim).touch, (victim,)

    (write_python(tmp_path) / "train").write_bytes(pickle.dumps({"data": Attack()}, protocol=2))
    with pytest.raises(InputError, match="No code in it was run"):
        load("cifar100", tmp_path)
    assert not victim.exists()


def test_incomplete_folder_says_what_to_do(tmp_path):
    (write_binary(tmp_path) / "test.bin").unlink()
    with pytest.raises(InputError, match=r"with all its files.*acil data prepare.*without a network"):
        load("cifar100", tmp_path)
