"""ImageClassifier: grows, forgets, merges and saves exactly, and never changes on bad input."""

import numpy as np
import pytest
import torch
from PIL import Image

from acil import ImageClassifier, load
from acil.encoders.images import build, save_backbone
from acil.encoders.tables import write_features
from acil.errors import InputError
from acil.growing import UNKNOWN_ABOVE
from support.pictures import draw, network

#: Rounding of sums in another order; κ is below 1e4 here.
SCORES = 1e-9


def same(model, expected, features):
    """Compare scores and weights; the temperature of probabilities depends on what was learnt when."""
    found, other = model.snapshot.head, expected.snapshot.head
    for a, b in (
        (found.decision_function(features), other.decision_function(features)),
        (found.coef_, other.coef_),
    ):
        np.testing.assert_allclose(a, b, rtol=SCORES, atol=SCORES)


def learnt(folder, *names):
    """Return a model that has learnt these classes, one after another."""
    model = ImageClassifier(network())
    for name in names:
        assert model.learn(folder / name, name).counts == {name: 6}
    return model


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    return draw(folder / "train", 6), draw(folder / "test", 4, seed=1)


@pytest.fixture
def joint(pictures):
    model = ImageClassifier(network())
    model.learn(pictures[0])
    return model


@pytest.fixture(scope="module")
def features(pictures):
    return ImageClassifier(network()).prepare(pictures[1]).features


def test_learning_class_by_class_equals_learning_all_at_once(pictures, joint, features):
    phased = learnt(pictures[0], "white", "blue", "red", "green")
    same(phased, joint, features)
    assert phased.counts_ == joint.counts_ == dict.fromkeys(("blue", "green", "red", "white"), 6)
    assert phased.snapshot.head.gamma_ == pytest.approx(joint.snapshot.head.gamma_, rel=1e-12)


def test_classes_are_told_apart(pictures, joint):
    found = joint.evaluate(pictures[1])
    assert found.accuracy == 100.0
    assert found.per_class == dict.fromkeys(joint.classes_, 100.0)
    assert found.images == 16
    assert found.confusion.trace() == 16


def test_forgotten_class_was_never_learnt(pictures, joint, features):
    assert joint.forget(pictures[0] / "red", "red").counts == {"red": 6}
    assert joint.classes_ == ["blue", "green", "white"]
    same(joint, learnt(pictures[0], "blue", "green", "white"), features)


def test_merged_model_has_seen_both(pictures, joint, features):
    first, second = learnt(pictures[0], "red", "blue"), learnt(pictures[0], "white", "green")
    before = second.snapshot
    same(first.merge(second), joint, features)
    assert second.snapshot is before


def test_saved_model_goes_on_as_if_never_saved(pictures, joint, features, tmp_path):
    learnt(pictures[0], "red").save(tmp_path / "m.acil")
    again = ImageClassifier.load(tmp_path / "m.acil", backbone=network())
    for name in ("blue", "green", "white"):
        again.learn(pictures[0] / name, name)
    same(again, joint, features)
    assert load(tmp_path / "m.acil").classes_.tolist() == ["red"]


@pytest.mark.parametrize(
    "kind", ["bytes", "PIL", "PIL of a file", "array", "with alpha", "array of all"]
)
def test_images_in_memory_give_the_same_as_their_files(pictures, joint, kind):
    files = sorted(pictures[1].glob("red/*.png"))
    made = {
        "bytes": lambda: [file.read_bytes() for file in files],
        "PIL": lambda: [Image.open(file).copy() for file in files],
        "PIL of a file": lambda: [Image.open(file) for file in files],
        "array": lambda: [np.asarray(Image.open(file)) for file in files],
        "with alpha": lambda: [np.asarray(Image.open(file).convert("RGBA")) for file in files],
        "array of all": lambda: np.stack([np.asarray(Image.open(file)) for file in files]),
    }
    images = made[kind]()
    assert joint.predict(images, None) == ["red"] * 4
    found, expected = joint.classify(images), joint.classify(files)
    assert [p.top for p in found] == [p.top for p in expected]
    assert (found[1].image, expected[1].image) == ("image 2", str(files[1]))
    joint.learn(images, "red")
    assert len(joint.learn(files, "red").repeated) == 4


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (np.zeros((8, 8, 3), np.uint8), "Give a list"),
        (Image.new("RGB", (8, 8)), "Give a list"),
        ("a.png", "Give a list"),
        ([np.zeros((8, 8, 3))], "array of float64"),
        ([np.zeros((3, 8, 8), np.uint8)], r"shape \(3, 8, 8\)"),
        ([np.zeros((0, 8, 3), np.uint8)], "Cannot read the image"),
    ],
)
def test_what_is_no_list_of_images_is_told(joint, images, words):
    with pytest.raises(InputError, match=words):
        joint.predict(images)


def test_bad_images_may_be_told_beside_the_others(pictures, joint):
    image = pictures[1] / "red" / "1-0.png"
    first, second = joint.classify([b"no image", image], skip_bad=True)
    assert "Image 1: Cannot read the image" in first.error
    assert (first.label, first.top) == ("", ())
    assert second == joint.classify([image])[0]


def test_repr_says_what_is_learnt(joint):
    assert repr(joint) == "<ImageClassifier of pooled: 4 classes from 24 samples>"
    assert repr(ImageClassifier("timm:any")) == "<ImageClassifier of timm:any: nothing learnt>"


def test_other_network_is_refused_and_nothing_changes(pictures, joint, tmp_path):
    joint.save(tmp_path / "m.acil")
    with pytest.raises(InputError, match="another network"):
        ImageClassifier.load(tmp_path / "m.acil", backbone=network(seed=1))
    strange = ImageClassifier(network(seed=1)).prepare(pictures[0])
    before = joint.snapshot
    with pytest.raises(InputError, match="another network"):
        joint.learn(strange)
    other = ImageClassifier(network(seed=1))
    other.learn(strange)
    with pytest.raises(InputError, match="another network"):
        joint.merge(other)
    assert joint.snapshot is before


def test_file_does_not_decide_which_code_runs(pictures, tmp_path):
    model = ImageClassifier("module:support.pictures.Pooled")
    model.learn(pictures[0])
    model.save(tmp_path / "m.acil")
    again = ImageClassifier.load(tmp_path / "m.acil")
    with pytest.raises(InputError, match="Python code"):
        again.predict([pictures[1] / "red" / "1-0.png"])
    named = ImageClassifier.load(tmp_path / "m.acil", backbone="module:support.pictures.Pooled")
    assert named.predict([pictures[1] / "red" / "1-0.png"]) == ["red"]


def test_a_bare_module_of_torch_is_refused_with_the_way_to_wrap_it(pictures, tmp_path):
    model = ImageClassifier(network())
    model.learn(pictures[0])
    model.save(tmp_path / "m.acil")
    module, words = torch.nn.Flatten(), r"not as Flatten\. .*WrappedBackbone"
    with pytest.raises(InputError, match=words):
        ImageClassifier(module)
    with pytest.raises(InputError, match=words):
        ImageClassifier.load(tmp_path / "m.acil", backbone=module)


@pytest.mark.parametrize(
    ("source", "labels", "words"),
    [
        ([], "a", "no images"),
        (b"x", "a", "list of images"),
        (["x.png"], None, "needs labels"),
        (["x.png"], ["a", "b"], "1 images but 2 labels"),
        (["x.png"], "a/b", "reads like a path"),
        (["x.png"], "unknown", "like nothing learnt"),
        (["x.png"], "a", "images are missing"),
    ],
)
def test_bad_calls_change_nothing(joint, source, labels, words):
    before = joint.snapshot
    with pytest.raises(InputError, match=words):
        joint.learn(source, labels)
    assert joint.snapshot is before


def test_images_like_those_learnt_are_known_and_others_are_not(pictures, joint):
    images = sorted(pictures[1].glob("*/*.png"))
    known = [prediction.novelty for prediction in joint.classify(images)]
    assert np.median(known) < 0.7 * UNKNOWN_ABOVE
    for name in ("red", "green"):
        joint.forget(pictures[0] / name, name)
    strange = joint.classify(sorted((pictures[1] / "green").iterdir()))
    assert all(prediction.unknown and prediction.label == "unknown" for prediction in strange)
    assert min(prediction.novelty for prediction in strange) > 2 * max(known)
    assert joint.predict([pictures[1] / "green" / "1-0.png"]) == ["unknown"]
    assert joint.predict([pictures[1] / "green" / "1-0.png"], None) != ["unknown"]


@pytest.mark.parametrize("inference", [False, True])
def test_file_of_a_network_is_stored_without_its_folder_and_found_again(
    pictures, tmp_path, monkeypatch, inference
):
    for place in ("networks", "models", "work"):
        (tmp_path / place).mkdir()
    network = tmp_path / "networks" / "small.safetensors"
    save_backbone(build("smallcnn"), network, {})
    model = ImageClassifier(str(network))
    model.learn(pictures[0])
    path, images = tmp_path / "models" / "m.acil", [min((pictures[1] / "red").iterdir())]
    model.save(path, inference=inference)
    assert b"networks" not in path.read_bytes()
    write_features(tmp_path / "models" / "f.npz", model.prepare(images, "red"))
    assert "networks" not in str(np.load(tmp_path / "models" / "f.npz")["network"])
    monkeypatch.chdir(tmp_path / "work")
    with pytest.raises(InputError, match=r"small\.safetensors"):
        ImageClassifier.load(path).predict(images)
    given = ImageClassifier.load(path, backbone=str(network))
    given.save(path, inference=inference)
    assert b"networks" not in path.read_bytes()
    for folder in ("work", "models"):
        copy = tmp_path / folder / network.name
        copy.write_bytes(network.read_bytes())
        assert ImageClassifier.load(path).predict(images) == given.predict(images)
        copy.unlink()
    save_backbone(
        build("smallcnn", torch.Generator().manual_seed(1)), tmp_path / "models" / network.name, {}
    )
    with pytest.raises(InputError, match="another network"):
        ImageClassifier.load(path).predict(images)
