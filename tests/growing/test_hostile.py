"""Hostile and broken files: each is refused with a message, and the model stays as it was."""

import os

import pytest

from acil import ImageClassifier
from acil.encoders.images.listing import list_images
from acil.errors import InputError
from support.hostile import FILES, GOOD
from support.pictures import draw, network

#: What is said of some of them, by the path and by the content
CAUSES = {
    "empty": "it is empty",
    "text": "it is not an image of a known format",
    "postscript": "it is not an image of a known format",
    "bomb": "it has .* pixels",
    "largest header": "it has .* pixels",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    pictures = draw(tmp_path_factory.mktemp("hostile"), 3)
    made = ImageClassifier(network())
    made.learn(pictures)
    return made


@pytest.mark.parametrize("name", FILES)
def test_file_is_refused_and_the_model_unchanged(model, tmp_path, name):
    path = tmp_path / "image.png"
    path.write_bytes(FILES[name])
    before, cause = model.snapshot, CAUSES.get(name, "")
    for call in (
        lambda: model.learn([path], "red"),
        lambda: model.forget([path], "red"),
        lambda: model.predict([path]),
    ):
        with pytest.raises(InputError, match=rf"image\.png: {cause}"):
            call()
    size = f"{len(FILES[name]):,}"
    with pytest.raises(InputError, match=f"{size} bytes: {cause}"):
        model.predict([FILES[name]])
    assert model.snapshot is before


def test_one_bad_file_among_good_ones_changes_nothing(model, tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.png").write_bytes(GOOD)
    (tmp_path / "bad.png").write_bytes(GOOD[:40])
    before = model.snapshot
    with pytest.raises(InputError, match=r"1 of 4 .*bad\.png"):
        model.learn(tmp_path, "red")
    assert model.snapshot is before
    report = model.learn(tmp_path, "red", skip_bad=True)
    assert (len(report.skipped), report.counts) == (1, {"red": 1})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "1 of 1 images are missing"),
        (lambda path: path.mkdir(), "is a folder"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to("nowhere"), "No such file"),
        (lambda path: path.symlink_to(path), "symbolic links"),
    ],
    ids=["missing", "folder", "pipe", "dangling link", "link to itself"],
)
def test_what_is_no_file_is_refused(model, tmp_path, make, words):
    path = tmp_path / "a.png"
    make(path)
    before = model.snapshot
    with pytest.raises(InputError, match=words):
        model.learn([path], "red")
    assert model.snapshot is before


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", " a", "a ", ".", "..", "a/b", "../a", "/etc", "a\\b", "..\\a", "unknown"),
        *("a\nb", "a\tb", "a\0b", "\x1b[31mred", "a\x7f", "a\u200bb", "a\u202eb", "\ud800", "x" * 201),
    ],
)
def test_class_name_is_refused(model, tmp_path, name):
    (tmp_path / "good.png").write_bytes(GOOD)
    before = model.snapshot
    with pytest.raises(InputError, match="class name"):
        model.learn([tmp_path / "good.png"], name)
    assert model.snapshot is before


@pytest.mark.parametrize(
    "text",
    [
        "",
        "path,label\n",
        "a.png\n",
        "a.png,x,y\n",
        "../a.png,x\n",
        "b/../../a.png,x\n",
        "/etc/passwd,x\n",
        "a.png,../x\n",
        "a.png,\n",
        "a.png,x\x1b[2J\n",
        "a\0.png,x\n",
        '"a.png,x\n',
        "a" * 5000 + ",x\n",
    ],
)
def test_list_is_refused(tmp_path, text):
    (tmp_path / "a.png").write_bytes(GOOD)
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(InputError):
        list_images(tmp_path / "list.csv")
    (tmp_path / "list.csv").write_bytes("a.png,ä\n".encode("utf-16"))
    with pytest.raises(InputError, match="UTF-8"):
        list_images(tmp_path / "list.csv")


def test_folder_name_with_control_characters_is_refused(tmp_path):
    place = tmp_path / "a\x1b[31m"
    place.mkdir()
    (place / "a.png").write_bytes(GOOD)
    with pytest.raises(InputError, match="printed"):
        list_images(tmp_path)
