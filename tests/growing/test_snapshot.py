"""Tracked images: none is learnt twice, none is forgotten that was not learnt."""

import numpy as np
import pytest

from acil import ImageClassifier
from acil.errors import InputError
from acil.growing import snapshot
from acil.growing.history import kept_states, undo
from acil.growing.snapshot import Tracker
from support.pictures import draw, network


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("tracked"), 4)


@pytest.fixture
def model(pictures):
    tracked = ImageClassifier(network())
    tracked.learn(pictures)
    return tracked


def test_image_that_comes_again_is_left_out_under_any_name_and_class(model, pictures, tmp_path):
    before = model.snapshot
    copy = tmp_path / "renamed.png"
    copy.write_bytes((pictures / "red" / "0-0.png").read_bytes())
    for name in ("red", "blue"):
        report = model.learn([copy], name)
        assert report.to_dict()["misplaced"] == (() if name == "red" else (str(copy),))
        assert (report.counts, report.repeated) == ({}, (str(copy),))
        assert report.totals["red"] == 4
    assert model.snapshot is before
    new = ImageClassifier(network())
    assert new.learn([copy, pictures / "red" / "0-1.png", copy], "red").repeated == (str(copy),)
    assert new.counts_ == {"red": 2}
    # Learnt before, and within one call
    others = [copy, pictures / "red" / "0-2.png", pictures / "red" / "0-2.png"]
    report = new.learn(others, ["red", "red", "blue"])
    assert (report.counts, report.misplaced) == ({"red": 1}, (str(others[2]),))


def test_left_out_images_leave_the_sums_of_the_others(model, pictures):
    part = ImageClassifier(network())
    part.learn(pictures / "red", "red")
    assert len(part.learn(pictures).repeated) == 4
    np.testing.assert_allclose(part.snapshot.head.coef_, model.snapshot.head.coef_, rtol=1e-9)


def test_without_tracking_an_image_may_come_twice(model, pictures, tmp_path):
    untracked = ImageClassifier(network(), track=False)
    untracked.learn(pictures)
    # The file of one that tracks, and of one that does not
    for made, track in ((model, False), (untracked, None)):
        made.save(tmp_path / "m.acil")
        again = ImageClassifier.load(tmp_path / "m.acil", backbone=network(), track=track)
        again.learn(pictures / "red", "red")
        assert again.counts_["red"] == 8
        assert not again.snapshot.tracker.active


def test_more_images_than_a_header_holds_are_not_tracked(model, pictures, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(snapshot, "MAX_TRACKED", 17)
    model.learn(draw(tmp_path, 2, ("red",), seed=3))
    assert "hashes are not kept" in caplog.text
    assert not model.snapshot.tracker.active


def test_forgotten_images_may_be_learnt_again(model, pictures, tmp_path):
    model.forget(pictures / "red", "red")
    assert len(model.snapshot.tracker) == 12
    model.save(tmp_path / "m.acil")
    again = ImageClassifier.load(tmp_path / "m.acil", backbone=network())
    again.learn(pictures / "red", "red")
    assert len(again.snapshot.tracker) == 16
    assert len(again.learn(pictures / "red", "red").repeated) == 4


def test_image_cannot_be_forgotten_twice_as_another_class_or_without_being_learnt(
    model, pictures, tmp_path
):
    """The sums would be those of no set of images, and no sum tells."""
    model.save(tmp_path / "m.acil")
    again = ImageClassifier.load(tmp_path / "m.acil", backbone=network())
    before = again.snapshot
    images = [pictures / "blue" / "0-1.png", pictures / "red" / "0-0.png"]
    strange = draw(tmp_path, 1, ("blue",), seed=7) / "blue"
    for given, words in (
        (images, "1 of 2 images were learnt as another class than 'blue'"),
        (images[:1] * 2, "1 of 2 images are given twice"),
        (strange, "1 of 1 images were never learnt"),
    ):
        with pytest.raises(InputError, match=words):
            again.forget(given, "blue")
    assert again.snapshot is before
    again.forget(images, ["blue", "red"])
    assert (again.counts_["blue"], again.counts_["red"]) == (3, 3)


def test_images_that_were_never_learnt_are_named_however_many_are_given(model, pictures, tmp_path):
    """Who is told that all would be forgotten deletes the model."""
    strange = draw(tmp_path, 2 * model.snapshot.head.n_samples_, ("blue",), seed=7) / "blue"
    with pytest.raises(InputError, match=r"7-0\.png"):
        model.forget(strange, "blue")


def test_classes_are_compared_where_only_some_images_are_tracked(pictures):
    model = ImageClassifier(network(), track=False)
    model.learn(pictures / "red", "red")
    model._track = True
    model.learn(pictures / "blue", "blue")
    with pytest.raises(InputError, match="another class"):
        model.forget([pictures / "blue" / "0-0.png"], "red")
    model.forget([pictures / "red" / "0-0.png"], "red")
    assert model.counts_ == {"blue": 4, "red": 3}


def test_merged_models_leave_out_the_images_of_both(pictures):
    models = []
    for names in (("red", "blue"), ("green", "white")):
        models.append(ImageClassifier(network()))
        for name in names:
            models[-1].learn(pictures / name, name)
    merged = models[0].merge(models[1])
    assert len(merged.snapshot.tracker.groups) == 2
    for name in ("red", "white"):
        assert len(merged.learn(pictures / name, name).repeated) == 4


def test_image_that_two_merged_models_had_learnt_is_forgotten_copy_by_copy(pictures, caplog):
    red, others = pictures / "red" / "0-0.png", [pictures / "red" / f"0-{i}.png" for i in (1, 2)]
    models = []
    for name in ("red", "ring"):
        models.append(ImageClassifier(network()))
        models[-1].learn([red, *others], name)
    merged = models[0].merge(models[1])
    with pytest.raises(InputError, match="another class"):
        merged.forget([red], "blue")
    merged.forget([red], "ring")
    assert "one copy of each is left" in caplog.text
    assert merged.counts_ == {"red": 3, "ring": 2}
    assert len(merged.snapshot.tracker) == merged.snapshot.head.n_samples_
    caplog.clear()
    merged.forget([red], "red")
    assert not caplog.text
    assert merged.counts_ == {"red": 2, "ring": 2}


def test_a_plain_save_onto_a_file_with_earlier_states_keeps_them_in_turn(model, pictures, tmp_path):
    path = tmp_path / "m.acil"
    model.save(path)
    assert kept_states(path) == []
    model.forget([pictures / "red" / "0-0.png"], "red")
    model.save(path, undo=True)
    model.forget([pictures / "red" / "0-1.png"], "red")
    model.save(path)
    for left in (3, 4):
        undo(path)
        assert ImageClassifier.load(path, backbone=network()).counts_["red"] == left


def test_models_with_a_common_past_cannot_be_merged(model, tmp_path):
    model.save(tmp_path / "m.acil")
    with pytest.raises(InputError, match="common past"):
        model.merge(ImageClassifier.load(tmp_path / "m.acil", backbone=network()))


def test_same_image_has_other_hashes_in_another_model():
    digests = ["aa", "bb"]
    one, two = (Tracker.new().with_added(digests, ["cat", "dog"]) for _ in range(2))
    assert not one.groups[0][1] & two.groups[0][1]


def test_file_for_prediction_has_no_hashes(model, tmp_path):
    model.save(tmp_path / "small.acil", inference=True)
    salt = model.snapshot.tracker.groups[0][0]
    assert salt.encode() not in (tmp_path / "small.acil").read_bytes()
