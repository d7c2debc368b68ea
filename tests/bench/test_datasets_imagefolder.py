"""Folders of images: decoded once, cached whole, and every odd thing in them named."""

import logging
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from acil.bench.datasets import imagefolder, load
from acil.encoders.images.decode import decode
from acil.errors import InputError

COLOURS = {"ant": (200, 10, 10), "bee": (10, 200, 10), "cat": (10, 10, 200)}


def write_image(path, colour, size=(12, 10)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "images"
    for name, colour in COLOURS.items():
        for i in range(3):
            write_image(root / "train" / name / f"{i}.png", (colour[0], colour[1], i))
        write_image(root / "val" / name / "0.JPEG", colour)
    return root


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv("ACIL_CACHE", raising=False)
    monkeypatch.delenv("ACIL_DATA", raising=False)


def count_decoding(monkeypatch):
    calls = []

    def counted(path, size):
        calls.append(path)
        return decode(path, size)

    monkeypatch.setattr(imagefolder, "decode", counted)
    return calls


def test_images_and_labels_are_those_of_the_folders(folder):
    dataset = load(f"imagefolder:{folder}", size=8)
    assert dataset.class_names == ("ant", "bee", "cat")
    assert dataset.train_labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert dataset.test_labels.tolist() == [0, 1, 2]
    assert (dataset.train.shape, dataset.default_base, dataset.skipped) == ((3, 8, 8), 1, ())
    pixels = dataset.train.pixels()
    assert pixels[:, :, 0, 0].tolist() == [[c[0], c[1], i] for c in COLOURS.values() for i in range(3)]
    assert torch.equal(pixels[0], decode(folder / "train/ant/0.png", 8))


def test_second_load_decodes_nothing_and_gives_the_same(folder, monkeypatch):
    told = []
    first = load("imagefolder", folder, size=8, progress=lambda *step: told.append(step))
    assert told[8] == ("decoding train", 9, 9)
    calls = count_decoding(monkeypatch)
    second = load("imagefolder", folder, size=8)
    assert calls == []
    assert first.identity == second.identity
    assert torch.equal(first.train.pixels(), second.train.pixels())
    suffixes = sorted(path.suffix for path in (folder / ".acil-cache").iterdir())
    assert suffixes == [".json", ".json", ".npy", ".npy"]


def test_cache_is_a_plain_array_file_that_writing_to_the_pixels_does_not_reach(folder):
    pixels = load("imagefolder", folder, size=8).train.pixels()
    (path,) = (folder / ".acil-cache").glob("train-*.npy")
    before = pixels.clone()
    pixels.zero_()
    assert np.array_equal(np.load(path), before.numpy())
    assert torch.equal(load("imagefolder", folder, size=8).train.pixels(), before)


@pytest.mark.parametrize("change", ["content", "new file", "removed file", "size"])
def test_any_change_is_noticed(folder, monkeypatch, change):
    before = load("imagefolder", folder, size=8)
    if change == "content":
        write_image(folder / "train/ant/0.png", (1, 2, 3), size=(30, 30))
    elif change == "new file":
        write_image(folder / "train/ant/9.png", (1, 2, 3))
    elif change == "removed file":
        (folder / "train/ant/0.png").unlink()
    calls = count_decoding(monkeypatch)
    after = load("imagefolder", folder, size=9 if change == "size" else 8)
    assert calls
    assert after.identity != before.identity


@pytest.mark.parametrize("damage", ["truncated", "no facts", "bad facts", "wrong header"])
def test_damaged_cache_is_made_again(folder, damage, caplog):
    before = load("imagefolder", folder, size=8)
    expected = before.train.pixels().clone()
    (pixels,) = (folder / ".acil-cache").glob("train-*.npy")
    facts = pixels.with_suffix(".json")
    if damage == "truncated":
        pixels.write_bytes(pixels.read_bytes()[:-5])
    elif damage == "no facts":
        facts.unlink()
    elif damage == "bad facts":
        facts.write_text('{"kept": [1')
    else:
        pixels.write_bytes(b"\0" * 128 + pixels.read_bytes()[128:])
    with caplog.at_level(logging.WARNING):
        after = load("imagefolder", folder, size=8)
    assert after.identity == before.identity
    assert torch.equal(after.train.pixels(), expected)
    assert ("damaged" in caplog.text) == (damage != "no facts")


def test_interrupted_decoding_leaves_no_cache(folder, monkeypatch):
    def interrupted(path, size):
        raise KeyboardInterrupt

    monkeypatch.setattr(imagefolder, "decode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load("imagefolder", folder, size=8)
    assert list((folder / ".acil-cache").iterdir()) == []


def test_cache_may_lie_elsewhere(folder, tmp_path, monkeypatch):
    load("imagefolder", folder, size=8, cache=tmp_path / "one")
    monkeypatch.setenv("ACIL_CACHE", str(tmp_path / "two"))
    load("imagefolder", folder, size=8)
    assert len(list((tmp_path / "one").iterdir())) == len(list((tmp_path / "two").iterdir())) == 4
    assert not (folder / ".acil-cache").exists()


def test_cache_that_cannot_be_written_is_told(folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="ACIL_CACHE"):
        load("imagefolder", folder, size=8, cache=tmp_path / "file")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(InputError, match=r"1,728 .*10 free"):
        load("imagefolder", folder, size=8)


def spoil(folder):
    """One truncated, one empty, one that is text, one that leads nowhere; all of class ant."""
    good = (folder / "train/ant/0.png").read_bytes()
    (folder / "train/ant/a.png").write_bytes(good[:40])
    (folder / "train/ant/b.jpg").write_bytes(b"")
    (folder / "train/ant/c.jpg").write_text("hello")
    (folder / "train/ant/d.png").symlink_to("nowhere.png")


def test_bad_images_are_named_and_left_out_only_when_asked(folder, monkeypatch, caplog):
    before = load("imagefolder", folder, size=8)
    spoil(folder)
    bad = ("a.png", "b.jpg", "c.jpg", "d.png")
    with pytest.raises(InputError, match=r"4 of 13 .*--skip-bad") as raised:
        load("imagefolder", folder, size=8)
    assert all(str(folder / "train/ant" / name) in str(raised.value) for name in bad)
    calls = count_decoding(monkeypatch)  # those that are bad are known from the cache
    with caplog.at_level(logging.WARNING):
        dataset = load("imagefolder", folder, size=8, skip_bad=True)
    assert dataset.skipped == tuple(f"train/ant/{name}" for name in bad)
    assert "Left out 4 of 13" in caplog.text
    assert dataset.train_labels.tolist() == before.train_labels.tolist()
    assert torch.equal(dataset.train.pixels(), before.train.pixels())
    with pytest.raises(InputError, match="4 of 13"):
        load("imagefolder", folder, size=8)
    assert not [path for path in calls if path.parent.parent.name == "train"]


def test_class_whose_images_are_all_bad_is_an_error_even_so(folder):
    for path in (folder / "train/bee").iterdir():
        path.write_bytes(b"x")
    with pytest.raises(InputError, match=r"training image .*bee"):
        load("imagefolder", folder, size=8, skip_bad=True)


def test_class_of_one_split_only_is_an_error(folder):
    write_image(folder / "val/dog/0.png", (1, 1, 1))
    with pytest.raises(InputError, match="train lacks: dog"):
        load("imagefolder", folder, size=8)
    shutil.rmtree(folder / "val/dog")
    shutil.rmtree(folder / "val/cat")
    with pytest.raises(InputError, match="val lacks: cat"):
        load("imagefolder", folder, size=8)


@pytest.mark.parametrize("skip_bad", [False, True])
def test_empty_class_folder_is_an_error(folder, skip_bad):
    for path in (folder / "train/bee").iterdir():
        path.unlink()
    (folder / "train/bee/notes.txt").write_text("")
    with pytest.raises(InputError, match="bee holds no images"):
        load("imagefolder", folder, size=8, skip_bad=skip_bad)


def test_hidden_and_other_files_are_ignored_and_links_followed(folder, tmp_path, caplog):
    expected = load("imagefolder", folder, size=8, cache=tmp_path / "cache").identity
    (folder / "train/.DS_Store").write_text("")
    (folder / "train/.hidden").mkdir()
    (folder / "train/ant/._0.png").write_text("")
    (folder / "train/ant/sub").mkdir()
    (folder / "train/ant/Thumbs.db").write_text("")
    (folder / "train/cat").rename(tmp_path / "elsewhere")
    (folder / "train/cat").symlink_to(tmp_path / "elsewhere")
    with caplog.at_level(logging.WARNING):
        assert load("imagefolder", folder, size=8).identity == expected
    assert "Ignored 2 entries" in caplog.text


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: None, "no folder 'train'"),
        (lambda root: (root / "train/a").mkdir(parents=True), "no folder 'val or test'"),
        (lambda root: [(root / s).mkdir() for s in ("train", "test")], "no class folders"),
    ],
)
def test_other_layouts_are_explained(tmp_path, make, message):
    make(tmp_path)
    with pytest.raises(InputError, match=message):
        load("imagefolder", tmp_path)


def test_impossible_sizes_and_missing_root_are_refused(folder):
    for size in (0, 5000, "abc", 1.5, None):
        with pytest.raises(InputError, match="from 1 to 4096"):
            load("imagefolder", folder, size=size)
    with pytest.raises(InputError, match="imagefolder:DIR"):
        load("imagefolder")
