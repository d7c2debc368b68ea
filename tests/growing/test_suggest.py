"""What is to be taught next: samples between two classes, none that is known already."""

import numpy as np
import pytest
from PIL import Image

from acil import ImageClassifier
from acil.encoders.tables import read_features
from acil.errors import InputError
from support.pictures import COLOURS, draw, network


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = draw(tmp_path_factory.mktemp("suggest"), 6)
    halfway = [tuple((a + b) / 2 for a, b in zip(COLOURS["red"], COLOURS["blue"], strict=True))] * 2
    (place / "unlabelled").mkdir()
    for name, colours in (("between", halfway), ("plain", [COLOURS["red"], COLOURS["blue"]])):
        for number, colour in enumerate(colours):
            noise = np.random.default_rng(number).normal(0, 9, (12, 12, 3))
            image = Image.fromarray((noise + colour).clip(0, 255).astype(np.uint8))
            image.save(place / "unlabelled" / f"{name}{number}.png")
    return place


@pytest.fixture
def model(folder):
    made = ImageClassifier(network())
    for name in ("red", "blue"):
        made.learn(folder / name, name)
    return made


@pytest.fixture(scope="module")
def unlabelled(folder):
    return sorted((folder / "unlabelled").iterdir(), reverse=True)  # plain ones first


def test_images_between_two_classes_come_first(model, unlabelled):
    found = model.suggest(unlabelled)
    assert {prediction.image for prediction in found[:2]} == {*map(str, unlabelled[2:])}
    assert len(found) == 4
    assert [p.closeness for p in found] == sorted((p.closeness for p in found), reverse=True)
    assert model.suggest(unlabelled, 1) == found[:1]
    assert model.suggest(model.prepare(unlabelled)) == found


def test_what_has_been_learnt_and_what_comes_twice_is_left_out(folder, model, unlabelled):
    best = model.suggest(unlabelled, 1)[0].image
    model.learn([best], "red")
    learnt = sorted((folder / "red").iterdir())
    found = model.suggest([*learnt, *unlabelled, *unlabelled])
    assert sorted(p.image for p in found) == sorted(str(p) for p in unlabelled if str(p) != best)
    assert model.suggest(learnt) == []


def test_one_class_has_no_border_and_the_most_novel_images_come_first(folder, unlabelled):
    model = ImageClassifier(network())
    model.learn(folder / "red", "red")
    found = model.suggest(unlabelled)
    assert [p.novelty for p in found] == sorted((p.novelty for p in found), reverse=True)
    assert "plain0" in found[-1].image


def test_a_table_of_features_is_asked_about_like_images(tmp_path):
    (tmp_path / "learnt.csv").write_text("f,g,label\n0,0,a\n0,1,a\n4,0,b\n4,1,b\n")
    (tmp_path / "rows.csv").write_text("g,f\n0.5,0\n0.5,2.1\n0.5,4\n0.5,2.1\n")
    model = ImageClassifier()
    model.learn(read_features(tmp_path / "learnt.csv"))
    found = model.suggest(read_features(tmp_path / "rows.csv"))
    assert found[0].image == "row 2"
    assert len(found) == 3  # the last is the same as the second
    assert {name for name, _ in found[0].top} == {"a", "b"}


def test_bad_input_is_told(model, unlabelled, tmp_path):
    with pytest.raises(InputError, match="number"):
        model.suggest(unlabelled, 0)
    with pytest.raises(InputError, match="list"):
        model.suggest(unlabelled[0])
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    with pytest.raises(InputError, match=r"bad\.png"):
        model.suggest([bad, *unlabelled])
    assert len(model.suggest([bad, *unlabelled], skip_bad=True)) == 4
