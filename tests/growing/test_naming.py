"""Classes are renamed and made one: as if learnt so, and images are known under the new names."""

import numpy as np
import pytest

from acil import ACILClassifier, ImageClassifier, save
from acil.errors import InputError, ModelFileError
from acil.growing import ModelFile
from support.commands import acil
from support.pictures import draw, network

#: The same sums in another order.
ROUNDING = 1e-9


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("naming"), 4)


@pytest.fixture
def model(pictures):
    made = ImageClassifier(network())
    made.learn(pictures)
    return made


@pytest.fixture(scope="module")
def samples(kind, tmp_path_factory):
    return kind.write(tmp_path_factory.mktemp("either"), 4)


@pytest.fixture
def either(kind, samples):
    """A model of images, and one of texts."""
    made = kind.new()
    made.learn(samples)
    return made


def learnt(made, samples, **folders):
    """Return a model that learnt these classes from folders of other names."""
    pairs = [(one, name) for name, parts in folders.items() for f in parts.split() for one in samples(f)]
    made.learn([one for one, _ in pairs], [name for _, name in pairs])
    return made


def pictures_learnt(pictures, **folders):
    return learnt(
        ImageClassifier(network()), lambda name: sorted((pictures / name).iterdir()), **folders
    )


def require_same(one, other):
    assert one.counts_ == other.counts_
    head, expected = one.snapshot.head, other.snapshot.head
    expected.set_gamma(head.gamma_)
    np.testing.assert_allclose(head.coef_, expected.coef_, rtol=0, atol=ROUNDING)


def test_renamed_and_merged_classes_are_as_if_learnt_so(kind, either, samples):
    report = either.rename_classes({"red": "blue", "blue": "red", "white": "pale 10"})
    assert report.counts == {"blue": 4, "pale 10": 4, "red": 4}
    report = either.merge_classes({"green": "pale 10"})
    assert report.totals == {"blue": 4, "pale 10": 8, "red": 4}
    folders = {"blue": "red", "red": "blue", "pale 10": "white green"}
    require_same(either, learnt(kind.new(), lambda name: kind.samples(samples / name), **folders))


def test_images_are_known_under_the_names_of_now(model, pictures, tmp_path):
    model.rename_classes({"red": "blue", "blue": "red"})
    model.merge_classes({"white": "light", "green": "light"})
    draw(tmp_path / "more", 2, ("white", "blue"), seed=5)
    model.learn(tmp_path / "more" / "white", "white")  # a class of a name that another had
    model.learn(tmp_path / "more" / "blue", "light")
    model.save(tmp_path / "m.acil")
    again = ImageClassifier.load(tmp_path / "m.acil", backbone=network())
    assert again.learn(pictures / "red", "red").misplaced == tuple(
        map(str, sorted((pictures / "red").iterdir()))
    )
    assert again.learn(pictures / "white", "light").misplaced == ()
    for folder, wrong in ((pictures / "red", "red"), (pictures / "white", "white")):
        with pytest.raises(InputError, match="another class"):
            again.forget(folder, wrong)
    again.forget(pictures / "red", "blue")
    again.forget(pictures / "white", "light")
    again.forget(tmp_path / "more" / "blue", "light")
    again.forget(tmp_path / "more" / "white", "white")
    assert len(again.snapshot.tracker) == 8
    require_same(again, pictures_learnt(pictures, light="green", red="blue"))


def test_a_class_may_get_its_old_name_back(model, pictures):
    model.rename_classes({"red": "rose"})
    assert len(model.learn(pictures / "red", "red").misplaced) == 4
    model.rename_classes({"rose": "red"})
    assert model.learn(pictures / "red", "red").misplaced == ()


def test_models_that_were_renamed_apart_merge(pictures, tmp_path):
    one = pictures_learnt(pictures, blue="blue", red="red")
    one.save(tmp_path / "m.acil")
    other = ImageClassifier.load(tmp_path / "m.acil", backbone=network())
    one.forget(pictures / "red", "red")
    other.forget(pictures / "blue", "blue")
    other.rename_classes({"red": "rose"})
    one.merge(other)
    assert one.counts_ == {"blue": 4, "rose": 4}
    one.forget(pictures / "red", "rose")
    assert one.counts_ == {"blue": 4}
    one.save(tmp_path / "m.acil")
    again = ImageClassifier.load(tmp_path / "m.acil", backbone=network())
    again.rename_classes({"blue": "sky"})
    with pytest.raises(InputError, match="common past"):
        one.merge(again)


@pytest.mark.parametrize(
    ("method", "names", "said"),
    [
        ("rename_classes", {"pink": "rose"}, "no class pink"),
        ("rename_classes", {"red": "blue"}, "merge_classes"),
        ("rename_classes", {"red": "x", "blue": "x"}, "merge_classes"),
        ("rename_classes", {"red": "a/b"}, "reads like a path"),
        ("merge_classes", {"red": "unknown"}, "unknown"),
        ("merge_classes", {"pink": "red"}, "no class pink"),
    ],
)
def test_refused_names_change_nothing(either, method, names, said):
    before = either.snapshot
    with pytest.raises(InputError, match=said):
        getattr(either, method)(names)
    assert either.snapshot is before


def test_the_same_name_is_no_change(either):
    before = either.snapshot
    assert either.rename_classes({"red": "red"}).counts == {}
    assert either.snapshot is before


def test_commands_rename_group_and_can_be_taken_back(pictures, model, tmp_path):
    path, groups = tmp_path / "m.acil", tmp_path / "groups.csv"
    model.save(path)
    before = path.read_bytes()
    done = acil("rename", path, "red", "rose 2")
    assert "rose 2" in done.stdout
    groups.write_text("class,group\nrose 2,warm\nwhite,warm\n\nblue,cold\ngreen,cold\n")
    done = acil("merge-classes", path, "--table", groups)
    assert "knows 2 classes" in done.stdout
    assert ModelFile(path).read().counts_ == {"cold": 8, "warm": 8}
    acil("undo", path)
    acil("merge-classes", path, "rose 2", "white", "--into", "white")
    assert ModelFile(path).read().counts_ == {"blue": 4, "green": 4, "white": 8}
    acil("undo", path)
    acil("undo", path)
    assert path.read_bytes() == before
    assert "Give OLD and NEW" in acil("rename", path, "red", code=2).stderr
    assert "--into" in acil("merge-classes", path, "red", code=2).stderr
    groups.write_text("red,rose\nred,pink\n")
    assert "twice" in acil("rename", path, "--table", groups, code=1).stderr
    assert path.read_bytes() == before


def test_numbers_stay_numbers(tmp_path):
    path = tmp_path / "m.acil"
    save(ACILClassifier(expansion_size=8).fit(np.eye(6), [1, 2, 3] * 2), path)
    file = ModelFile(path)
    assert file.rename_classes({"3": "17"}).after.totals == {"1": 2, "2": 2, "17": 2}
    with pytest.raises(InputError, match="of type"):
        file.rename_classes({"1": "one"})


def test_a_damaged_header_with_names_is_refused(model, tmp_path):
    model.rename_classes({"red": "rose"})
    group = model.snapshot.head.images_["tracked"][0]
    assert group["renamed"] == {"red": "rose"}
    group["renamed"] = {"red": 3}
    with pytest.raises((InputError, ModelFileError), match="tracked"):
        model.save(tmp_path / "m.acil")
