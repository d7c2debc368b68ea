"""Data sets by name, what they must be, and keeping some of their classes."""

import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from acil.bench.datasets import DATASETS, Dataset, data_root, load, restrict
from acil.bench.orders import class_order
from acil.bench.training.recipes import RECIPES
from acil.encoders.images.imageset import ImageSet
from acil.errors import InputError

DIGITS = load("digits")

OWN = '''
"""A user's own data set."""
import torch
from acil.bench.datasets import Dataset
from acil.encoders.images.imageset import ImageSet


def load(root, n=4):
    pixels = torch.zeros(n, 1, 2, 2, dtype=torch.uint8)
    images = ImageSet(pixels)
    labels = torch.arange(n) % 2
    return Dataset("own", images, labels, images, labels, ("a", "b"), "digits", 1)
'''


def dataset(labels, n_classes=2, test_labels=None, **changes):
    def images(n):
        pixels = torch.arange(n * 4, dtype=torch.uint8).reshape(n, 1, 2, 2)
        return ImageSet(pixels)

    test_labels = labels if test_labels is None else test_labels
    values = {
        "name": "small",
        "train": images(len(labels)),
        "train_labels": torch.tensor(labels),
        "test": images(len(test_labels)),
        "test_labels": torch.tensor(test_labels),
        "class_names": tuple("abcdef"[:n_classes]),
        "default_recipe": "digits",
        "default_base": 1,
    }
    return Dataset(**{**values, **changes})


def test_digits_are_scikit_learns_with_a_third_of_each_class_for_testing():
    X, y = load_digits(return_X_y=True)
    assert len(DIGITS.train) + len(DIGITS.test) == len(y)
    for digit in range(10):
        n_test = int((DIGITS.test_labels == digit).sum())
        assert abs(n_test - (y == digit).sum() / 3) < 1
    assert (DIGITS.train.shape, DIGITS.default_base, DIGITS.default_recipe) == ((1, 8, 8), 5, "digits")
    pixels = torch.cat([DIGITS.train.pixels(), DIGITS.test.pixels()])
    assert (int(pixels.min()), int(pixels.max())) == (0, 255)
    # The same images, with the same labels: as multisets of (pixels, label)
    ours = torch.cat([DIGITS.train_labels, DIGITS.test_labels]).tolist()
    found = {(bytes(p.numpy().tobytes()), c) for p, c in zip(pixels, ours, strict=True)}
    originals = torch.from_numpy(X * 255 / 16).round().to(torch.uint8)
    assert found == {(p.numpy().tobytes(), int(c)) for p, c in zip(originals, y, strict=True)}
    # Neither the images nor their split ever change.
    assert DIGITS.identity == "f5df47b1289001b7bdab883adb863e5ac35af7c305e3068c1110f526a725f692"


def test_registered_modules_exist_and_their_recipes_too():
    assert set(DATASETS) >= {"digits", "cifar100", "imagefolder", "features"}
    for name in ("cifar100", "imagefolder", "features", "imagenet100-lucir"):
        with pytest.raises(InputError):
            load(name, "nosuch")
    assert DIGITS.default_recipe in RECIPES
    assert {"paper", "imagenet", "features"} <= set(RECIPES)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mnist", {}, "Known: digits, cifar100"),
        ("digits:somewhere", {}, "write imagefolder:DIR"),
        ("features:", {}, "write features:DIR"),
        ("imagenet100:", {}, "write imagenet100:DIR"),
        ("digits", {"size": 8}, "no option 'size'. Known: none"),
        ("imagefolder", {"color": 1}, "Known: size, n_classes, cache"),
        ("imagenet100-lucir", {"subset": "podnet"}, "Known: size, resize, workers, cache"),
        ("nosuch.module:load", {}, "PYTHONPATH"),
        ("acil.errors:load", {}, "PYTHONPATH"),
    ],
)
def test_unknown_names_and_options_are_refused(name, options, message):
    with pytest.raises(InputError, match=message):
        load(name, **options)


def test_own_data_set_needs_only_a_function(tmp_path, monkeypatch):
    (tmp_path / "own_data_of_test.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    assert len(load("own_data_of_test:load", n=6).train) == 6
    with pytest.raises(InputError, match="Known: n"):
        load("own_data_of_test:load", m=6)
    sys.modules.pop("own_data_of_test")


def test_root_is_the_given_one_else_that_of_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("ACIL_DATA", raising=False)
    assert data_root(None) is None
    with pytest.raises(InputError, match=r"ACIL_DATA.*acil data prepare cifar100"):
        load("cifar100")
    monkeypatch.setenv("ACIL_DATA", str(tmp_path))
    assert data_root(None) == tmp_path
    assert data_root("other").name == "other"
    with pytest.raises(InputError, match=f"--root {tmp_path}"):
        load("cifar100")
    with pytest.raises(InputError, match="--root 'my data'"):
        load("cifar100", root="my data")


def test_file_that_cannot_be_read_is_an_input_error(monkeypatch):
    def unreadable(root):
        raise PermissionError(13, "Permission denied", "train.bin")

    monkeypatch.setattr("acil.bench.datasets.cifar100._found", unreadable)
    with pytest.raises(InputError, match=r"Permission denied.*train\.bin"):
        load("cifar100", "somewhere")


@pytest.mark.parametrize(
    ("labels", "changes", "message"),
    [
        ([0, 1, 2], {}, "from 0 to 1, got 0 to 2"),
        ([0, -1, 1], {}, "from 0 to 1, got -1 to 1"),
        ([0, 0], {}, r"no training image of 1 of its 2 classes \(b\)"),
        ([0, 1], {"test_labels": [0, 0]}, r"no test image of 1 of its 2 classes \(b\)"),
        ([0, 1], {"train_labels": torch.tensor([0])}, r"int64 of shape \(2,\)"),
        ([0, 1], {"train_labels": torch.tensor([0.0, 1.0])}, "got torch.float32"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels, changes, message):
    with pytest.raises(InputError, match=message):
        dataset(labels, **changes)


@pytest.mark.parametrize(
    ("labels", "changes"),
    [([0, 1, 1], {}), ([0, 1, 0], {"class_names": ("a", "c")}), ([0, 1, 0, 0], {})],
)
def test_identity_depends_on_images_labels_and_names(labels, changes):
    assert dataset([0, 1, 0]).identity == dataset([0, 1, 0]).identity
    assert dataset(labels, **changes).identity != dataset([0, 1, 0]).identity


@given(st.lists(st.integers(0, 9), min_size=1, max_size=10, unique=True))
def test_restrict_keeps_exactly_the_images_of_the_classes(classes):
    part = restrict(DIGITS, classes)
    assert part.class_names == tuple(str(c) for c in classes)
    for split in ("train", "test"):
        images, labels = getattr(part, split).pixels(), getattr(part, f"{split}_labels")
        whole, whole_labels = getattr(DIGITS, split).pixels(), getattr(DIGITS, f"{split}_labels")
        assert len(images) == len(labels)
        for position, label in enumerate(classes):
            assert torch.equal(images[labels == position], whole[whole_labels == label])


def test_restrict_to_a_whole_order_only_renumbers():
    order = class_order("seed1993", 10)
    part = restrict(DIGITS, order)
    assert part.train is DIGITS.train
    assert torch.equal(torch.tensor(order)[part.train_labels], DIGITS.train_labels)
    assert part.default_base == 5
    assert part.identity != DIGITS.identity


@pytest.mark.parametrize(("kept", "base"), [(9, 4), (3, 1), (2, 1)])
def test_half_of_fewer_classes_are_the_base(kept, base):
    assert restrict(restrict(DIGITS, range(9)), range(kept)).default_base == base


def test_restricted_images_are_a_set_of_their_own_unless_they_are_large(monkeypatch):
    own = restrict(DIGITS, [1, 2])
    assert own.train.indices is None
    assert own.train.identity != DIGITS.train.identity
    monkeypatch.setattr("acil.encoders.images.imageset._MOST_COPIED", 0)
    shared = restrict(DIGITS, [1, 2])
    assert shared.train.identity == DIGITS.train.identity
    assert torch.equal(shared.train.pixels(), own.train.pixels())
    assert (own.default_base, len(own.class_names)) == (1, 2)
