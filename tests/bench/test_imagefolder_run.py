"""Folders of images, through the whole command: odd images, bad images, options, identities."""

import shutil
import tomllib

import numpy as np
import pytest
from PIL import Image

from support.running import command, records, timeless

pytestmark = pytest.mark.usefixtures("without_plots")

CLASSES = ("apple", "bolt", "cup", "door")
#: The recipe `imagenet`, as small as it gets.
TINY = (
    *("--phases", "2", "--seeds", "0", "--expansion-size", "32", "--gamma", "1"),
    *("--set", "data.size=32", "--set", "recipe.backbone_options.size=32"),
    # Fewer or larger steps would leave the running statistics of a network this deep far off.
    *("--set", "recipe.training.epochs=10", "--set", "recipe.training.batch_size=8"),
    *("--set", "recipe.training.learning_rate=0.005"),
)


def picture(label, seed, size=(40, 36)):
    """A picture whose colour says its class."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 60, (*size[::-1], 3))
    pixels[..., label % 3] += 120 + 30 * (label // 3)
    return Image.fromarray(pixels.astype(np.uint8))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Four classes with images of every odd kind that should just work."""
    root = tmp_path_factory.mktemp("pictures") / "objects"
    for split, count in (("train", 8), ("val", 3)):
        for label, name in enumerate(CLASSES):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                picture(label, 100 * label + number).save(folder / f"{number}.jpg")
    odd = root / "train"
    frames = [picture(0, seed) for seed in (1, 2, 3)]
    frames[0].save(odd / "apple" / "animated.gif", save_all=True, append_images=frames[1:])
    deep = np.random.default_rng(0).integers(0, 65536, (30, 30), dtype=np.uint16)
    Image.fromarray(deep).save(odd / "bolt" / "sixteen-bit.png")
    picture(2, 4).convert("CMYK").save(odd / "cup" / "cmyk.jpg")
    picture(3, 5, size=(1, 1)).save(odd / "door" / "one-pixel.png")
    return root


@pytest.fixture
def own(pictures, tmp_path):
    """A copy of the pictures that a test may damage."""
    return shutil.copytree(pictures, tmp_path / "objects", ignore=shutil.ignore_patterns(".acil-cache"))


@pytest.fixture(scope="module")
def whole(pictures, tmp_path_factory):
    """A whole run, base training included."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    result = command("--dataset", f"imagefolder:{pictures}", "--out", folder, *TINY)
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def run(whole):
    """The command, with the network that the whole run has trained."""
    (network,) = whole.glob("checkpoint/base-*/backbone.safetensors")

    def start(root, out, *more):
        given = ("--backbone", network, *TINY, *more)
        return command("--dataset", f"imagefolder:{root}", "--out", out, *given)

    return start


def test_odd_but_readable_images_go_through_a_whole_run(whole):
    phases, (summary,) = records(whole, "phase"), records(whole, "summary")
    assert [record["classes_seen"] for record in phases] == [2, 3, 4]
    assert summary["last_accuracy"] > 25
    assert summary["dataset"] == "imagefolder:objects"
    assert summary["recipe"] == "imagenet"
    assert summary["settings"]["data.size"] == 32
    assert len(summary["settings"]["data.identity"]) == 12
    assert "data.skipped" not in summary["settings"]


def test_records_name_no_folder_of_the_machine(whole, pictures, tmp_path, run):
    run(pictures, tmp_path / "run")
    for folder in (whole, tmp_path / "run"):
        text = (folder / "records.jsonl").read_text()
        assert "imagefolder:objects" in text
        assert str(tmp_path.parent) not in text


def test_corrupt_image_is_left_out_only_when_asked_and_the_count_is_shown(run, own, tmp_path):
    file = own / "train" / "cup" / "3.jpg"
    file.write_bytes(file.read_bytes()[:200])
    refused = run(own, tmp_path / "run")
    assert (refused.exit_code, "1 of 36 images" in refused.stderr) == (1, True)
    assert not (tmp_path / "run").exists()
    result = run(own, tmp_path / "run", "--skip-bad")
    assert result.exit_code == 0, result.output
    assert "Left out: 1 images that could not be read." in result.stdout
    (summary,) = records(tmp_path / "run", "summary")
    assert summary["settings"]["data.skipped"] == 1
    assert "left out: 1 images" in run(own, tmp_path / "other", "--skip-bad", "--dry-run").stdout


def test_options_of_the_data_set_are_kept_and_decide_the_identities(run, pictures, tmp_path):
    run(pictures, tmp_path / "small", "--set", f"data.cache={tmp_path / 'cache'}")
    assert list((tmp_path / "cache").glob("train-*.npy"))
    changes = ("--set", "data.size=36")  # the network takes the middle 32 x 32 pixels
    assert run(pictures, tmp_path / "large", *changes).exit_code == 0
    configs = [tomllib.loads((tmp_path / n / "config.toml").read_text()) for n in ("small", "large")]
    assert [config["data"]["size"] for config in configs] == [32, 36]
    assert configs[0]["resolved"]["dataset"] != configs[1]["resolved"]["dataset"]
    folders = [
        {p.name for p in (tmp_path / n / "checkpoint").glob("base-*")} for n in ("small", "large")
    ]
    assert not folders[0] & folders[1]
    # Where decoded images are kept is no part of what they are.
    (summary,) = records(tmp_path / "small", "summary")
    assert "data.cache" not in summary["settings"]
    before = timeless(tmp_path / "small")
    assert run(pictures, tmp_path / "small", "--resume").exit_code == 0
    assert timeless(tmp_path / "small") == before
    assert "data" in run(pictures, tmp_path / "small", "--resume", *changes).stderr


def test_resuming_after_images_have_changed_is_refused(run, own, tmp_path):
    assert run(own, tmp_path / "run").exit_code == 0
    picture(1, 999).save(own / "train" / "cup" / "new.jpg")
    result = run(own, tmp_path / "run", "--resume")
    assert result.exit_code == 1
    assert "dataset = 'imagefolder:objects@" in result.stderr


def test_resuming_from_another_spelling_of_the_folder_goes_on(run, own, tmp_path, monkeypatch):
    assert run(own, tmp_path / "run").exit_code == 0
    before = timeless(tmp_path / "run")
    monkeypatch.chdir(own.parent)
    assert run("objects", tmp_path / "run", "--resume").exit_code == 0
    assert timeless(tmp_path / "run") == before
