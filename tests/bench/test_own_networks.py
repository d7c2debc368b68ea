"""Networks, images and methods that only the user has: what is promised holds for them, too."""

import dataclasses
import os
import sys
import types

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import acil.bench
from acil.bench.datasets import Dataset, load
from acil.bench.methods import MemoryUse, Method
from acil.bench.runner import RunFailedError
from acil.bench.training.recipes import recipe
from acil.encoders.images import ImageSet
from acil.errors import InputError
from support.running import records

pytestmark = pytest.mark.usefixtures("without_plots")

SHORT = {
    "recipe.training.epochs": 1,
    "settings.increment.epochs": 1,
    "settings.memory_rule": "2 per class",
    "settings.dgr_generator_epochs": 1,
    "settings.dgr_drawn": 2,
    "settings.mergan_generator_epochs": 1,
    "settings.mergan_drawn": 2,
}


class Flat(nn.Module):
    """A network that takes images of 8 x 8 pixels and no others."""

    preprocessing = types.MappingProxyType({"mean": [0.3], "std": [0.4], "size": 8})

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 16)
        weights = torch.randn(16, 64, generator=torch.Generator().manual_seed(0)) / 8
        self.linear.load_state_dict({"weight": weights, "bias": torch.zeros(16)})

    def forward(self, x):
        return torch.relu(self.linear(x.flatten(1)))


class Broken(Method):
    def learn(self, phase):
        if phase.index == 1:
            raise ValueError("a fault of the method")

    def predict(self, images):
        return torch.zeros(len(images), dtype=torch.int64)

    def memory(self):
        return MemoryUse()

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def noise(size):
    """Return a data set of six classes of grey images."""
    generator = torch.Generator().manual_seed(0)
    kinds = torch.randint(0, 256, (6, 1, size, size), generator=generator)
    parts = []
    for count in (6, 4):
        labels = torch.arange(6).repeat_interleave(count)
        shape = (len(labels), 1, size, size)
        pixels = 0.6 * kinds[labels] + torch.randint(0, 100, shape, generator=generator)
        parts += [ImageSet(pixels.to(torch.uint8)), labels]
    return Dataset("own", *parts, tuple("abcdef"), default_recipe="digits", default_base=3)


@pytest.fixture(autouse=True)
def own(monkeypatch):
    module = types.ModuleType("own_module")
    module.Flat, module.Broken = Flat, Broken
    module.eight, module.nine = (lambda root=None: noise(8)), (lambda root=None: noise(9))
    monkeypatch.setitem(sys.modules, "own_module", module)


def run(out=None, **flags):
    common = {"dataset": "own_module:eight", "phases": 3, "seeds": 0, "set": SHORT}
    return acil.bench.run(out, **common | flags)


def test_a_run_on_a_network_of_the_users_own_is_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr("acil.bench.job.STATE_SECONDS", 0.0)
    flags = {"backbone": "own_module:Flat", "method": "lwf"}

    def stop(event):
        if getattr(event, "phase", None) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", progress=stop, **flags)
    resumed, whole = run(tmp_path / "run", resume=True, **flags), run(**flags)
    accuracies = [[r["accuracy"] for r in found if r["kind"] == "phase"] for found in (resumed, whole)]
    assert accuracies[0] == accuracies[1]


@pytest.mark.parametrize("method", ["ewc", "icarl", "joint", "dgr", "lucir+mnemonics"])
def test_larger_images_are_trained_on_as_they_are_tested(method):
    flags = {} if method == "lucir+mnemonics" else {"backbone": "own_module:Flat"}
    found = run(dataset="own_module:nine", method=method, **flags)
    assert [record["kind"] for record in found][-1] == "summary"


def test_joint_training_takes_the_network_that_was_given(monkeypatch):
    seen = []
    forward = Flat.forward
    monkeypatch.setattr(Flat, "forward", lambda self, x: seen.append(self.training) or forward(self, x))
    run(method="joint", backbone="own_module:Flat")
    assert any(seen)


def test_a_fault_of_a_method_is_recorded_and_stops_no_other(tmp_path, caplog):
    with pytest.raises(RunFailedError, match="1 of 2"):
        run(tmp_path / "run", method="own_module:Broken,ncm")
    found = records(tmp_path / "run", "failure")
    assert [record["error"] for record in found] == ["ValueError: a fault of the method"]
    assert [record["method"] for record in records(tmp_path / "run", "summary")] == ["ncm"]
    assert "in learn" in caplog.text  # the traceback
    with pytest.raises(RunFailedError, match="1 of 1"):
        run(method="own_module:Broken")


def pictures(folder, values):
    """Write a folder of one grey value for each class, files of the same names, sizes and times."""
    for split in ("train", "test"):
        for name, value in values.items():
            place = folder / split / name
            place.mkdir(parents=True)
            for number in range(2):
                Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(place / f"{number}.bmp")
                os.utime(place / f"{number}.bmp", (1e9, 1e9))
    return f"imagefolder:{folder}"


def test_data_sets_that_share_a_cache_do_not_share_images(tmp_path):
    found = []
    for kind, values in {"one": {"a": 10, "b": 20}, "two": {"a": 30, "b": 40}}.items():
        # Equal names below the folder, as of two archives
        data = pictures(tmp_path / kind / "set", values)
        found.append(load(data, size=8, cache=str(tmp_path / "cache")).train.pixels().float().mean())
    assert found[0] == pytest.approx(15)
    assert found[1] == pytest.approx(35)


def test_a_network_that_has_seen_new_classes_is_refused(tmp_path):
    data = pictures(tmp_path / "set", {name: 30 * k for k, name in enumerate("bcdefg")})
    flags = {"dataset": data, "recipe": "quick", "phases": 1, "method": "ncm", "base": 3}
    flags["set"] = {"recipe.training.epochs": 1, "data.size": 32}
    run(tmp_path / "first", **flags)
    (network,) = (tmp_path / "first").glob("checkpoint/*/backbone.safetensors")
    pictures(tmp_path / "set", {"a": 200})
    with pytest.raises(InputError, match="was trained on d"):
        run(**flags, backbone=str(network))


def test_a_last_batch_of_one_image_is_left_out():
    training = dataclasses.replace(recipe("digits").training, batch_size=17, keep_last_batch=True)
    assert [training.steps_per_epoch(n) for n in (1, 17, 18, 19, 35)] == [1, 1, 1, 2, 2]
    # 18 images of the base phase
    assert run(method="ncm", set={**SHORT, "recipe.training.batch_size": 17})


def test_copies_of_other_colours_need_colours():
    tasks = {"copies": 1, "colours": 3}
    with pytest.raises(InputError, match="3 channels"):
        run(
            method="ncm",
            set={**SHORT, **{f"recipe.training.auxiliary.{k}": v for k, v in tasks.items()}},
        )
