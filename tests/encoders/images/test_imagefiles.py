"""Images in files: read by workers or here, the same pixels; random parts as torchvision draws them."""

import random

import numpy as np
import pytest
import torch
from PIL import Image

from acil.bench.training.augment import random_boxes
from acil.encoders.images import imagefiles
from acil.encoders.images.decode import decode, decode_box
from acil.encoders.images.imagefiles import ImageFiles, random_part
from acil.encoders.images.imageset import ImageSet
from acil.errors import InputError

#: Standard errors by which the means of two samples of the same distribution may differ.
ERRORS = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)
    for k in range(9):
        size = (int(rng.integers(20, 60)), int(rng.integers(20, 60)))
        Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(root / f"{k}.png")
    return root


@pytest.fixture
def files(folder):
    names = np.array([f"{k}.png".encode() for k in range(9)])
    return ImageFiles([folder], np.zeros(9), names, "nine", size=16, workers=0)


def test_a_set_of_files_is_a_set_of_their_pixels(files, folder):
    images = ImageSet(files)
    whole = torch.stack([decode(folder / f"{k}.png", 16, crop=0.875) for k in range(9)])
    assert torch.equal(images.pixels(), whole)
    part = images.subset(torch.tensor([8, 2, 2]))
    assert torch.equal(part.pixels(), whole[[8, 2, 2]])
    assert torch.equal(torch.cat(list(part.batches(2))), whole[[8, 2, 2]])
    alone = part.alone()
    assert torch.equal(alone.pixels(), whole[[8, 2, 2]])
    assert alone.indices is None
    assert alone.identity != part.identity == images.identity
    assert list(images.subset(torch.tensor([], dtype=torch.int64)).batches(2)) == []


def test_workers_read_what_this_process_reads(files, monkeypatch):
    def batches():
        return [[files.task(k, seed=k) for k in part] for part in ((0, 5), (3, 4), (8,))]

    here = list(files.stream(batches(), 5, size=12))
    monkeypatch.setattr(imagefiles, "_FEW", 0)
    files.workers = 2
    state = torch.get_rng_state()
    there = list(files.stream(batches(), 5, size=12))
    assert [batch.shape for batch in there] == [(2, 3, 12, 12), (2, 3, 12, 12), (1, 3, 12, 12)]
    assert all(map(torch.equal, here, there))
    assert torch.equal(torch.get_rng_state(), state)


def test_an_image_that_cannot_be_read_is_told_with_what_finds_all(tmp_path, folder):
    (tmp_path / "a.png").write_bytes((folder / "0.png").read_bytes()[:100])
    options = {"size": 8, "workers": 0, "advice": "acil data prepare here"}
    broken = ImageFiles([tmp_path], np.zeros(1), np.array([b"a.png"]), "one", **options)
    with pytest.raises(InputError, match=r"a\.png.*acil data prepare"):
        list(broken.stream([[broken.task(0)]], 1))
    with pytest.raises(InputError, match="Cannot read"):
        ImageSet(broken).pixels()


@pytest.mark.parametrize(("width", "height"), [(500, 375), (64, 64), (900, 100)])
def test_parts_are_distributed_as_boxes_are(width, height):
    n = 4000
    draw = random.Random(1)
    choose = random_part(draw)
    ours = torch.tensor([choose(width, height) for _ in range(n)], dtype=torch.float64)
    top, left, h, w = random_boxes(n, height, width, torch.Generator().manual_seed(1))
    theirs = torch.stack([left, top, left + w, top + h], dim=1).double()
    error = ((ours.var(0) + theirs.var(0)) / n).sqrt()
    assert bool(((ours.mean(0) - theirs.mean(0)).abs() <= ERRORS * error + 1e-9).all())
    spread = (ours.std(0) - theirs.std(0)).abs() / theirs.std(0).clamp_min(1)
    assert bool((spread < 0.1).all())


def test_a_part_of_a_large_jpeg_is_decoded_smaller_and_looks_the_same(tmp_path):
    y, x = np.mgrid[0:240, 0:320]
    pixels = np.stack([x * 255 // 320, y * 255 // 240, (x + y) * 255 // 560], axis=2).astype(np.uint8)
    path = tmp_path / "large.jpg"
    Image.fromarray(pixels).save(path, quality=95)
    turned = tmp_path / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.ascontiguousarray(np.rot90(pixels))).save(turned, quality=95, exif=exif)
    box = (40, 30, 300, 220)
    part = Image.fromarray(pixels).resize((32, 32), Image.Resampling.BILINEAR, box)
    expected = torch.from_numpy(np.asarray(part).astype(int)).permute(2, 0, 1)
    for source in (path, turned):
        found = decode_box(source, 32, lambda width, height: box)
        assert (found.int() - expected).abs().max() < 8
