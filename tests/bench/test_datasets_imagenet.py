"""ImageNet as people have it: every layout is the same data, and what is missing is told at once."""

import shutil
import time

import pytest
import torch
from imagenet_trees import HUNDRED, packed, write_tree

from acil.bench.datasets import load, prepare
from acil.bench.orders import imagenet_classes, imagenet_subset
from acil.encoders.images.decode import decode
from acil.errors import InputError

SMALL = {"size": 16, "workers": 0}


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    """The same images in each layout that people have."""
    root = tmp_path_factory.mktemp("imagenet")
    trees = {
        "folders": write_tree(root / "folders"),
        "flat": write_tree(root / "flat", flat=True),
        "devkit": write_tree(root / "devkit", flat=True, truth="devkit"),
    }
    trees["archives"] = packed(trees["flat"], root / "archives")
    trees["kaggles-images"] = kaggle = root / "kaggle" / "ILSVRC" / "Data" / "CLS-LOC"
    shutil.copytree(trees["flat"], kaggle)
    shutil.move(kaggle / "LOC_val_solution.csv", root / "kaggle")
    trees["kaggle"] = root / "kaggle"
    devkit = trees["devkit"] / "ILSVRC2012_devkit_t12"
    packed_kit = root / "packed-kit"
    packed_kit.mkdir()
    for name in ("train", "val"):
        (packed_kit / name).symlink_to(trees["flat"] / name)
    shutil.make_archive(str(packed_kit / "ILSVRC2012_devkit_t12"), "gztar", devkit.parent, devkit.name)
    trees["packed-kit"] = packed_kit
    return trees


@pytest.fixture
def own(trees, tmp_path):
    """A tree that a test may damage."""
    return shutil.copytree(trees["flat"], tmp_path / "own")


@pytest.mark.parametrize(
    "layout", ["flat", "devkit", "archives", "kaggle", "kaggles-images", "packed-kit"]
)
def test_every_layout_is_the_same_data_set(trees, layout):
    one, other = (load(f"imagenet100:{trees[name]}", **SMALL) for name in ("folders", layout))
    assert one.identity == other.identity
    assert one.class_names == other.class_names == HUNDRED
    assert torch.equal(one.train_labels, other.train_labels)
    assert torch.equal(one.test_labels, other.test_labels)
    places = torch.tensor([0, 7, 299])
    assert torch.equal(one.train.subset(places).pixels(), other.train.subset(places).pixels())
    assert torch.equal(one.test.batch(40, 43), other.test.batch(40, 43))


def test_pixels_are_the_middle_of_the_files(trees):
    dataset = load(f"imagenet100:{trees['folders']}", **SMALL)
    assert dataset.train.shape == (3, 16, 16)
    assert dataset.train_labels.tolist() == [label for label in range(100) for _ in range(3)]
    file = trees["folders"] / "train" / HUNDRED[2] / f"{HUNDRED[2]}_1.JPEG"
    assert torch.equal(dataset.train.batch(7, 8)[0], decode(file, 16, crop=16 / 18))


def test_both_lists_of_a_hundred_classes(trees, tmp_path):
    names = imagenet_classes()
    assert (len(set(names)), names) == (1000, tuple(sorted(names)))
    assert load(f"imagenet100:{trees['flat']}", **SMALL).class_names == names[:100]
    lucir = tuple(names[place] for place in imagenet_subset("lucir"))
    with pytest.raises(InputError, match="91 of the 100"):
        load(f"imagenet100:{trees['flat']}", subset="lucir", **SMALL)
    tree = write_tree(tmp_path / "lucir", each=(1, 1), wnids=lucir, flat=True)
    for name, options in (("imagenet100", {"subset": "lucir"}), ("imagenet100-lucir", {})):
        dataset = load(f"{name}:{tree}", **options, **SMALL)
        assert (dataset.name, dataset.class_names) == ("imagenet100-lucir", lucir)
    assert load(f"imagenet100-podnet:{trees['flat']}", **SMALL).class_names == HUNDRED


def test_what_is_missing_is_told_with_the_command_that_mends_it(own):
    def told(match, name=f"imagenet100:{own}"):
        with pytest.raises(InputError, match=match):
            load(name, **SMALL)

    told("lacks 900 of the 1000 class folders", f"imagenet:{own}")
    told("There is no folder", "imagenet100:nowhere")
    (own / "LOC_val_solution.csv").rename(own / "elsewhere.csv")
    told(r"not in class folders.*wget -P .*ILSVRC2012_devkit_t12\.tar\.gz")
    (own / "elsewhere.csv").rename(own / "LOC_val_solution.csv")
    folder = own / "train" / HUNDRED[3]
    folder.rename(own / "train" / "tench")
    told(rf"lacks 1 of .*{HUNDRED[3]}.*other names: tench")
    (own / "train" / f"{HUNDRED[3]}.tar").touch()
    told(r"1 archives of classes.*tar -xf")
    (own / "train" / f"{HUNDRED[3]}.tar").unlink()
    folder.mkdir()
    told(rf"{HUNDRED[3]} holds no images")
    folder.rmdir()
    (own / "train" / "tench").rename(folder)
    for file in (own / "val").glob("*0000000[1-2].JPEG"):
        file.unlink()
    told(r"lacks 2 of the 100 test images of these classes: ILSVRC2012_val_00000001, .*Unpack")
    (own / "LOC_val_solution.csv").write_text(
        f"ImageId,Classes\nILSVRC2012_val_00000009,{HUNDRED[8]} 1\n"
    )
    told(f"names no test image of the class {HUNDRED[0]}")
    (own / "LOC_val_solution.csv").unlink()
    (own / "ILSVRC2012_devkit_t12.tar.gz").write_bytes(b"half of one")
    told(r"devkit_t12\.tar\.gz is damaged .*Fetch it again")
    shutil.rmtree(own / "val")
    told(r"mkdir .*val && tar -xf ILSVRC2012_img_val\.tar")
    shutil.rmtree(own / "train")
    told("kaggle competitions download")


def test_images_that_cannot_be_read_are_found_and_left_out(own):
    name = f"imagenet100:{own}"
    bad = own / "train" / HUNDRED[1] / f"{HUNDRED[1]}_2.JPEG"
    bad.write_bytes(bad.read_bytes()[:200])
    with pytest.raises(InputError, match=r"1 of 300 .*--skip-bad"):
        prepare(name, **SMALL)
    # Known from now on
    with pytest.raises(InputError, match="1 of 300"):
        load(name, **SMALL)
    left = load(name, skip_bad=True, **SMALL)
    assert left.skipped == (f"{HUNDRED[1]}/{bad.name}",)
    assert (len(left.train), left.train_labels.bincount()[1]) == (299, 2)


def test_checking_goes_on_where_it_was_interrupted(trees, tmp_path, monkeypatch):
    monkeypatch.setattr("acil.bench.datasets.imagenet._CHECKED", 60)
    name, seen = f"imagenet100:{trees['folders']}", []

    def stop(what, done, total):
        seen.append((what, done))
        if (what, done) == ("checking train", 180):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(name, cache=tmp_path, progress=stop, **SMALL)
    (log,) = tmp_path.glob("checked-train-*")
    log.write_bytes(log.read_bytes() + b'{"from": 180, "to')
    seen.clear()
    prepare(name, cache=tmp_path, progress=lambda what, done, total: seen.append((what, done)), **SMALL)
    assert [done for what, done in seen if what == "checking train"] == [240, 300]
    seen.clear()
    prepare(name, cache=tmp_path, progress=lambda what, done, total: seen.append((what, done)), **SMALL)
    assert not [what for what, _ in seen if "checking" in what]


def test_an_outline_reads_no_image_and_has_their_numbers(trees, monkeypatch):
    monkeypatch.setattr("acil.encoders.images.imagefiles.decode", None)
    started = time.monotonic()
    for layout in ("folders", "devkit"):
        outline = load(f"imagenet100:{trees[layout]}", outline=True, **SMALL)
        assert (len(outline.train), len(outline.test), len(outline.notes)) == (300, 100, 2)
    monkeypatch.setattr("acil.bench.datasets.imagenet._COUNTING", -1.0)
    outline = load(f"imagenet100:{trees['folders']}", outline=True, **SMALL)
    assert len(outline.train) == 128_116
    assert "the images of 0 of 100 classes were counted" in outline.notes[0]
    assert time.monotonic() - started < 60


def test_the_outline_of_an_empty_folder_has_the_official_numbers(tmp_path):
    outline = load(f"imagenet:{tmp_path}", outline=True)
    assert (len(outline.train), len(outline.test)) == (1_281_167, 50_000)


def test_classes_with_other_numbers_of_images_than_the_official_ones_are_told(trees, caplog):
    told = (
        "train: 100 of 100 classes have not the 732 to 1300 images of ILSVRC 2012: n01440764 (3)",
        "val: 100 of 100 classes have not the 50 images of ILSVRC 2012: n01440764 (1)",
    )
    load(f"imagenet100:{trees['flat']}", **SMALL)
    outline = load(f"imagenet100:{trees['flat']}", outline=True, **SMALL)
    for note, logged, beginning in zip(outline.notes, caplog.messages, told, strict=True):
        assert note.startswith(beginning)
        assert logged.startswith(beginning)
