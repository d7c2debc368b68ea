"""Which images, of which classes: folders, links, lists and files."""

import errno
import os

import pytest
from PIL import Image

from acil.encoders.images.decode import FORMATS
from acil.encoders.images.listing import SUFFIXES, holds_features, list_files, list_images
from acil.errors import InputError


@pytest.fixture
def tree(tmp_path):
    for name in ("b", "a"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for image in ("2.PNG", "1.jpg", ".hidden.png", "notes.txt"):
            (tmp_path / "set" / name / image).write_bytes(b"x")
    (tmp_path / "set" / ".cache").mkdir()
    return tmp_path / "set"


def test_class_folders_in_order_without_hidden_and_other_files(tree):
    found = list_images(tree)
    assert found.labels == ["a", "a", "b", "b"]
    assert [path.name for path in found.paths] == ["1.jpg", "2.PNG"] * 2
    assert [path.name for path in found.ignored] == ["notes.txt"] * 2


def test_images_beside_class_folders_are_told(tree):
    (tree / "loose.jpg").write_bytes(b"x")
    found = list_images(tree)
    assert found.labels == ["a", "a", "b", "b"]
    assert tree / "loose.jpg" in found.ignored


def test_files_of_every_format_that_is_decoded_are_found():
    known = Image.registered_extensions()
    found = {known[suffix] for suffix in SUFFIXES if suffix in known}
    assert found == {name for name in FORMATS if name in known.values()}
    assert ".jfif" in SUFFIXES, "which browsers give to photographs"


def test_a_folder_that_cannot_be_read_is_told_and_the_others_count(tree, monkeypatch, caplog):
    def scan(folder, scandir=os.scandir):
        if str(folder).endswith("b"):
            raise PermissionError(errno.EACCES, "Permission denied", folder)
        return scandir(folder)

    monkeypatch.setattr("os.scandir", scan)
    assert [path.parent.name for path in list_files([tree])] == ["a", "a"]
    assert f"Permission denied: '{tree / 'b'}'" in caplog.text


def test_linked_class_folder_counts(tree, tmp_path):
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "c").symlink_to(tree / "a")
    assert list_images(tmp_path / "links").labels == ["c", "c"]


def test_one_class_of_a_folder_or_a_file(tree):
    assert list_images(tree / "a", "x").labels == ["x", "x"]
    assert list_images(tree / "a" / "1.jpg", "x").labels == ["x"]


@pytest.mark.parametrize(("name", "separator"), [("l.csv", ","), ("l.tsv", "\t")])
def test_list_with_and_without_a_head(tree, name, separator):
    lines = [separator.join(("a/1.jpg", "x")), separator.join(("b/2.PNG", "y")), ""]
    for head in ("", f"path{separator}label\n", f"\ufeffPath{separator}Label\n"):
        (tree / name).write_text(head + "\n".join(lines), encoding="utf-8")
        found = list_images(tree / name)
        assert found.labels == ["x", "y"]
        assert [path.name for path in found.paths] == ["1.jpg", "2.PNG"]
    with pytest.raises(InputError, match="names the classes"):
        list_images(tree / name, "z")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("filename,class\na/1.jpg,x\n", "line 1: .*must be path,label, or be left out; before texts"),
        ("path;label\na/1.jpg;x\n", "line 1: .*two columns.*separated by ';': write it with commas"),
        ("path,label,split\na/1.jpg,x,train\n", "line 1: a list has exactly two columns, path and"),
        ("path,label\n../1.jpg,x\n", "line 2: .*leaves the folder"),
    ],
)
def test_lists_of_other_kinds_are_told(tree, text, words):
    (tree / "l.csv").write_text(text)
    with pytest.raises(InputError, match=words):
        list_images(tree / "l.csv")


def test_what_is_neither_is_told(tree, tmp_path):
    (tree / "a" / "notes.npy").touch()
    for source, words in (
        (tree / "a" / "1.jpg", "which class"),
        (tree / "a" / "notes.txt", "neither a folder"),
        (tree / "a" / "notes.npy", r"a file of features \(.npz, .parquet, .csv\)"),
        (tree / "missing", "There is no file"),
        (tree / "a", "no class folders"),
    ):
        with pytest.raises(InputError, match=words):
            list_images(source)
    (tree / "empty").mkdir()
    with pytest.raises(InputError, match="no images"):
        list_images(tree)
    # A folder of splits, each with the classes: the advice must not be to remove one.
    with pytest.raises(InputError, match="folder whose folders"):
        list_images(tree.parent)


def test_files_of_folders_at_any_depth_and_links_in_circles(tree):
    (tree / "a" / "circle").symlink_to(tree)
    found = list_files([tree, tree / "a" / "1.jpg"])
    assert [str(path.relative_to(tree)) for path in found] == [
        *("a/1.jpg", "a/2.PNG", "b/1.jpg", "b/2.PNG", "a/1.jpg")
    ]
    (tree / "l.csv").write_text("path,label\nb/1.jpg,x\nb/missing.jpg,y\n")
    assert list_files([tree / "l.csv"]) == [tree / "b" / "1.jpg", tree / "b" / "missing.jpg"]
    (tree / "none").mkdir()
    with pytest.raises(InputError, match="no images"):
        list_files([tree / "none"])


def test_a_first_line_without_end_is_told(tmp_path):
    (tmp_path / "long.csv").write_text("x" * 200_000 + ",y,z\n")
    with pytest.raises(InputError, match="as CSV"):
        holds_features(tmp_path / "long.csv")
