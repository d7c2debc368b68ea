"""Training on images in files: the same in any process, and a killed one goes on to the same bits."""

import numpy as np
import pytest
import torch
from PIL import Image

from acil.bench.training.checkpoint import Checkpoint
from acil.bench.training.loop import Batches, train
from acil.bench.training.network import Network
from acil.bench.training.settings import Training
from acil.encoders.images import imagefiles
from acil.encoders.images.backbones import build
from acil.encoders.images.imagefiles import ImageFiles
from acil.encoders.images.imageset import ImageSet
from acil.errors import InputError

SETTINGS = Training(epochs=2, batch_size=4, learning_rate=0.05, augment=("resizedcrop", "flip"))
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Eleven images in files, of which the last ten are taken, backwards."""
    root = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)
    for k in range(11):
        Image.fromarray(rng.integers(0, 256, (24, 30, 3), dtype=np.uint8)).save(root / f"{k}.png")
    names = np.array([f"{k}.png".encode() for k in range(11)])
    files = ImageFiles([root], np.zeros(11), names, "eleven", size=16, workers=0)
    return ImageSet(files).subset(torch.arange(10, 0, -1))


LABELS = torch.arange(10) % 2


def network():
    backbone = build("smallcnn", size=16, channels=3)
    return Network(backbone, 2, torch.Generator().manual_seed(0))


def trained(images, settings=SETTINGS, **options):
    made = network()
    preprocessing = made.backbone.preprocessing
    train(made, images, LABELS, settings, preprocessing=preprocessing, seed=3, device="cpu", **options)
    return torch.cat([parameter.detach().flatten() for parameter in made.parameters()])


def batches(images, settings):
    preprocessing = network().backbone.preprocessing
    return Batches(images, LABELS, settings, preprocessing, 3, CPU)


def test_without_parts_files_train_like_their_pixels(images):
    settings = Training(epochs=2, batch_size=4, learning_rate=0.05)
    assert torch.equal(trained(images, settings), trained(images.pixels(), settings))


def test_batches_are_the_same_from_any_step_on_and_new_in_each_epoch(images):
    made = batches(images, SETTINGS)
    whole = [[part.clone() for part in batch] for batch in made.epoch(1)]
    later = list(made.epoch(1, first_step=2))
    assert len(whole) == 3
    assert all(map(torch.equal, whole[2], later[0]))
    assert sorted(torch.cat([batch[2] for batch in whole]).tolist()) == list(range(10))
    assert not torch.equal(whole[0][0], next(made.epoch(0))[0])
    # Parts of the images, as large as the network takes
    assert whole[0][0].shape == (4, 3, 16, 16)
    assert whole[0][0].unique().numel() > 100


def test_parts_may_be_smaller_than_what_is_tested(images):
    settings = Training(epochs=1, batch_size=4, augment=("resizedcrop",), crop_size=12)
    assert next(batches(images, settings).epoch(0))[0].shape == (4, 3, 12, 12)


def test_workers_train_the_same(images, monkeypatch):
    here = trained(images)
    monkeypatch.setattr(imagefiles, "_FEW", 0)
    monkeypatch.setattr(images.files, "workers", 2)
    assert torch.equal(trained(images), here)


def test_a_killed_training_goes_on_to_the_same_bits(images, tmp_path, monkeypatch):
    def stop(progress):
        if progress.epoch == 2:
            raise KeyboardInterrupt

    checkpoint = Checkpoint(tmp_path, every_seconds=0.0)
    monkeypatch.setattr("acil.bench.training.loop.REPORT_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        trained(images, checkpoint=checkpoint, progress=stop)
    assert torch.equal(trained(images, checkpoint=Checkpoint(tmp_path)), trained(images))
    other = images.subset(torch.arange(9, -1, -1))
    with pytest.raises(InputError, match="another training"):
        trained(other, checkpoint=Checkpoint(tmp_path))
