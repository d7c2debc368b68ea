"""Files of embeddings, in both formats and with both families of names, and what is refused."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from acil.bench.datasets import load
from acil.encoders.samples import Samples
from acil.encoders.tables import write_features
from acil.errors import InputError

GENERATOR = np.random.default_rng(0)
ARRAYS = {
    "train_features": GENERATOR.standard_normal((6, 4)).astype(np.float32),
    "train_labels": np.array([30, 10, 20, 10, 20, 30]),
    "test_features": GENERATOR.standard_normal((3, 4)).astype(np.float32),
    "test_labels": np.array([20, 10, 30]),
}
SHORT = {"train_features": "X_train", "train_labels": "y_train", "test_features": "X_test"}


def write(folder, suffix, **changes):
    path = folder / f"features{suffix}"
    arrays = {**ARRAYS, **changes}
    if suffix == ".npz":
        np.savez(path, **arrays)
    else:
        save_file({name: torch.as_tensor(value) for name, value in arrays.items()}, path)
    return path


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_features_and_labels_are_those_of_the_file(tmp_path, suffix):
    dataset = load(f"features:{write(tmp_path, suffix)}")
    assert torch.equal(dataset.train.features(None), torch.from_numpy(ARRAYS["train_features"]))
    assert torch.equal(dataset.test.features(None), torch.from_numpy(ARRAYS["test_features"]))
    assert dataset.train_labels.tolist() == [2, 0, 1, 0, 1, 2]
    assert dataset.test_labels.tolist() == [1, 0, 2]
    assert dataset.class_names == ("10", "20", "30")
    assert (dataset.train.shape, dataset.default_base, dataset.default_recipe) == ((4,), 1, "features")


def test_format_does_not_change_the_identity(tmp_path):
    found = {load("features", write(tmp_path, suffix)).identity for suffix in (".npz", ".safetensors")}
    assert len(found) == 1


def test_other_names_and_text_labels_are_understood(tmp_path):
    arrays = {SHORT.get(name, name): value for name, value in ARRAYS.items()}
    arrays |= {"y_train": np.array(list("cabcab")), "test_labels": np.array(["c", "b", "a"])}
    np.savez(tmp_path / "f.npz", **arrays)
    dataset = load("features", tmp_path / "f.npz")
    assert dataset.class_names == ("a", "b", "c")
    assert dataset.test_labels.tolist() == [2, 1, 0]
    np.savez(tmp_path / "f.npz", **arrays | {"y_train": np.array([*"cabab", "long name"])})
    with pytest.raises(InputError, match=r"test image .*long name"):
        load("features", tmp_path / "f.npz")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int32])
def test_numbers_of_any_type_become_float32(tmp_path, dtype):
    values = torch.arange(24).reshape(6, 4).to(dtype)
    features = load("features", write(tmp_path, ".safetensors", train_features=values)).train.features(
        None
    )
    assert features.dtype == torch.float32
    assert torch.equal(features, torch.arange(24.0).reshape(6, 4))


def bad(array, value):
    changed = array.copy()
    changed[2, 1] = value
    return changed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_features": bad(ARRAYS["train_features"], np.nan)}, "NaN or infinity.*row 2"),
        ({"test_features": bad(ARRAYS["test_features"].astype(float), 1e300)}, "infinity .in float32"),
        ({"test_features": np.zeros((3, 5), np.float32)}, "4 columns, but test_features 5"),
        ({"train_features": np.zeros((6, 2, 2), np.float32)}, r"shape \(n, f\)"),
        ({"train_features": np.zeros((0, 4), np.float32)}, r"shape \(0, 4\)"),
        ({"train_labels": np.arange(5)}, "6 rows of features, but 5 train_labels"),
        ({"train_labels": np.zeros(6)}, "whole numbers or texts"),
        ({"train_labels": np.zeros((6, 1), int)}, "whole numbers or texts"),
        ({"test_labels": np.array([20, 10, 99])}, "lacks, such as 99"),
        ({"X_train": np.zeros((6, 4))}, "one array train_features or X_train"),
    ],
)
@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_what_does_not_fit_is_named(tmp_path, suffix, changes, message):
    with pytest.raises(InputError, match=message):
        load("features", write(tmp_path, suffix, **changes))


@pytest.mark.parametrize(
    ("suffix", "changes", "message"),
    [
        (".npz", {"train_features": np.zeros((6, 4), complex)}, "must be numbers"),
        (".npz", {"train_features": np.full((6, 4), "a")}, "must be numbers"),
        (".npz", {"train_labels": np.array([1, "a", None, 2, 3, 4], object)}, "objects are not read"),
        (".safetensors", {"train_labels": torch.zeros(6, dtype=torch.bfloat16)}, "numbers or texts"),
    ],
)
def test_types_that_are_no_numbers_are_refused(tmp_path, suffix, changes, message):
    with pytest.raises(InputError, match=message):
        load("features", write(tmp_path, suffix, **changes))


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_damaged_missing_and_truncated_files_are_input_errors(tmp_path, suffix):
    path = write(tmp_path, suffix)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(InputError, match="damaged"):
        load("features", path)
    path.write_bytes(b"")
    with pytest.raises(InputError, match="damaged"):
        load("features", path)
    with pytest.raises(InputError, match="Cannot read"):
        load("features", tmp_path / f"nosuch{suffix}")


def test_a_folder_has_a_file_for_each_split_as_embed_writes_them(tmp_path):
    names = np.array(["b", "a", "c", "a", "c", "b"])
    for split, count in (("train", 6), ("test", 3)):
        rows, told = ARRAYS[f"{split}_features"], ("x",) * count
        samples = Samples(rows, names[:count], told, told, (), None, None, 0.0)
        write_features(tmp_path / f"{split}.npz", samples)
    dataset = load(f"features:{tmp_path}", published_as="cub")
    assert dataset.class_names == ("a", "b", "c")
    assert dataset.train_labels.tolist() == [1, 0, 2, 0, 2, 1]
    assert torch.equal(dataset.test.features(None), torch.from_numpy(ARRAYS["test_features"]))
    with pytest.raises(InputError, match="published of 'cubs'"):
        load(f"features:{tmp_path}", published_as="cubs")
    np.savez(tmp_path / "test.npz", features=ARRAYS["test_features"])
    with pytest.raises(InputError, match="without a label"):
        load(f"features:{tmp_path}")
    (tmp_path / "test.npz").unlink()
    with pytest.raises(InputError, match=r"test\.npz"):
        load(f"features:{tmp_path}")


def test_place_must_be_a_file_or_a_folder_of_two(tmp_path, monkeypatch):
    monkeypatch.delenv("ACIL_DATA", raising=False)
    with pytest.raises(InputError, match="features:FILE"):
        load("features")
    with pytest.raises(InputError, match=r"\.safetensors or \.npz.* does not exist"):
        load("features", tmp_path / "x.pt")


def test_array_file_that_is_no_archive_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(3))
    (tmp_path / "x.npy").rename(tmp_path / "x.npz")
    with pytest.raises(InputError, match="no npz file"):
        load("features", tmp_path / "x.npz")
