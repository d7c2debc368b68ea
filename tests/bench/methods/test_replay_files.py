"""Methods that train networks, on images in files: the same as on their pixels, which are not kept."""

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

from acil.bench.methods import Phase, resolve
from acil.encoders.images.imagefiles import ImageFiles
from acil.encoders.images.imageset import ImageSet
from support.replay_problem import learnt, make_context
from support.small_training import same_state

SIDE = 16
SIZES = (24, 16, 8)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The same three phases, in files and in memory."""
    root = tmp_path_factory.mktemp("files")
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(6).repeat_interleave(8)
    pixels = torch.randint(0, 60, (48, 3, SIDE, SIDE), dtype=torch.uint8, generator=generator)
    pixels[torch.arange(48), labels % 3, :, :] += (60 + 20 * labels).to(torch.uint8)[:, None, None]
    for k, image in enumerate(pixels):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(root / f"{k}.png")
    names = np.array([f"{k}.png".encode() for k in range(48)])
    files = ImageFiles([root], np.zeros(48), names, "replayed", size=SIDE, crop=1.0, workers=0)
    phases = []
    for images in (ImageSet(files), ImageSet(pixels)):
        starts, seen = (0, 24, 40, 48), (3, 5, 6)
        phases.append([])
        for k, n_seen in enumerate(seen):
            members = torch.arange(starts[k], starts[k + 1])
            classes = tuple(labels[members].unique().tolist())
            phases[-1].append(Phase(k, classes, images.subset(members), labels[members], n_seen))
    return phases


def context(**settings):
    made = make_context(settings=settings, phase_sizes=SIZES)
    options = {"size": SIDE, "channels": 3}
    return dataclasses.replace(made, recipe=dataclasses.replace(made.recipe, backbone_options=options))


@pytest.mark.parametrize(
    "name", ["finetune", "icarl", "bic", "lucir+mnemonics", "podnet+aanets+rmm", "eeil"]
)
def test_files_are_learnt_like_their_pixels(both, name):
    settings = {"rmm_actions": [0.5] * 3, "mnemonics_rate": 10.0}
    in_files, in_memory = (learnt(name, phases, context(**settings)) for phases in both)
    assert same_state(in_files, in_memory)


def test_only_what_is_kept_is_in_memory(both, monkeypatch):
    """Beside exemplars, no method but those that say so asks for all pixels of a phase."""
    asked = []
    whole = ImageSet.pixels
    monkeypatch.setattr(ImageSet, "pixels", lambda self: asked.append(len(self)) or whole(self))
    for name, held in {"icarl": 24, "finetune": 0, "ewc": 24, "joint": 48}.items():
        asked.clear()
        method = learnt(name, both[0], context())
        found = resolve(name).held_images(context(), SIZES, (3, 5, 6))
        assert max(asked, default=0) <= found
        assert len(method.exemplars) <= found == held


def test_random_parts_are_taken_of_whole_files_and_of_what_is_kept(tmp_path):
    wide = np.zeros((SIDE, 4 * SIDE, 3), dtype=np.uint8)
    wide[:, : SIDE // 2] = 255  # outside of the middle
    Image.fromarray(wide).save(tmp_path / "wide.png")
    names = np.array([b"wide.png"])
    files = ImageFiles([tmp_path], np.zeros(1), names, "wide", size=SIDE, workers=0)
    held = torch.full((2, 3, SIDE, SIDE), 77, dtype=torch.uint8)
    images = ImageSet(files).to_train_with(held)
    assert (len(images), images.files.identity == files.identity) == (3, False)
    assert torch.equal(images.batch(1, 3), held)
    assert int(images.batch(0, 1).max()) == 0
    tasks = [[images.files.task(k, seed) for k in range(3) for seed in range(20)]]
    (parts,) = images.files.stream(tasks, 60)
    assert int(parts[:20].max()) == 255
    assert bool((parts[20:] == 77).all())
