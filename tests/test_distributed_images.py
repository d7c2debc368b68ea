"""Several processes learn image files into one model file: the file of one process, or the old one."""

import functools
import json
import os
import shutil
import signal

import pytest
from torch import distributed as dist

from acil import ImageClassifier, load
from acil.errors import InputError, ProcessLostError
from acil.images.sharded import learn_together
from acil.modelfile import describe, pack
from acil.vision.listing import list_images
from pictures import draw, network_file
from ranks import together, torchrun
from strategies import relative

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    draw(folder / "base", 5, ("blue", "green"))
    draw(folder / "more", 4, ("green", "red", "white"), seed=1)
    network_file(folder / "network.onnx")
    return folder


@pytest.fixture(autouse=True)
def network_beside(place, tmp_path):
    """Put the network beside the models of a test, which name it without its folder."""
    (tmp_path / "network.onnx").symlink_to(place / "network.onnx")


def source(place):
    return f"onnx:{place / 'network.onnx'}"


def learn_share(group, place, model, folder, settings=None, **options):
    """Learn a folder of images into a model file; only rank 0 knows where that is."""
    listing = list_images(folder)
    own = model if group.leads else model.parent / "of another rank" / model.name
    report, _ = learn_together(
        own,
        listing.paths,
        listing.labels,
        group,
        new=lambda embedder: ImageClassifier(embedder or source(place), **(settings or {})),
        load=lambda embedder: ImageClassifier.load(own, backbone=embedder),
        **options,
    )
    return report.counts, report.totals, report.skipped


def both_phases(group, place, model, settings):
    return [learn_share(group, place, model, place / name, settings) for name in ("base", "more")]


@pytest.mark.parametrize(
    ("size", "settings"), [(2, {}), (3, {"expansion_size": 64, "random_state": 5, "track": True})]
)
def test_the_file_is_that_of_one_process(place, tmp_path, size, settings):
    alone = ImageClassifier(source(place), **settings)
    reports = [alone.learn(place / name) for name in ("base", "more")]
    alone.save(tmp_path / "one.acil")
    for found in together(size, both_phases, place, tmp_path / "many.acil", settings):
        assert found == [(r.counts, r.totals, r.skipped) for r in reports]
    one, many = (describe(tmp_path / f"{name}.acil") for name in ("one", "many"))
    assert one.pop("path") != many.pop("path")
    trackers = [header["images"].pop("tracked") for header in (one, many)]
    assert [len(group["hashes"]) for group in trackers[1]] == [len(g["hashes"]) for g in trackers[0]]
    # Estimates that show the rounding of sums
    for name in ("condition", "temperature", "gamma", "gamma_relative"):
        first, second = one.pop(name, None), many.pop(name, None)
        assert first == pytest.approx(second, rel=1e-7)
    calibrated = [header.pop("calibration") for header in (one, many)]
    assert calibrated[1].pop("losses") == pytest.approx(calibrated[0].pop("losses"), rel=1e-6, abs=1e-9)
    assert calibrated[1] == calibrated[0]
    # Checksums show it, too, and have more or fewer digits.
    assert one.pop("checksums").keys() == many.pop("checksums").keys()
    assert one.pop("file_bytes") == pytest.approx(many.pop("file_bytes"), abs=256)
    assert one == many
    first, second = (load(tmp_path / f"{name}.acil") for name in ("one", "many"))
    features = ImageClassifier.load(tmp_path / "one.acil").prepare(place / "base").features
    assert relative(second.decision_function(features), first.decision_function(features)) <= 1e-9
    # Additions in another order
    sums = [pack(model)["gram"].numpy() for model in (first, second)]
    assert relative(sums[1], sums[0]) <= 1e-14


def outcome(group, *arguments, **options):
    try:
        return learn_share(group, *arguments, **options)
    except InputError as error:
        return str(error)


def test_bad_images_of_one_rank_are_told_by_all_or_left_out(place, tmp_path):
    model, folder = tmp_path / "m.acil", tmp_path / "mixed"
    together(2, learn_share, place, model, place / "base")
    before = model.read_bytes()
    draw(folder, 3, ("red",))
    files = sorted((folder / "red").iterdir())
    files[1].write_bytes(b"")
    first, second = together(2, outcome, place, model, folder)
    assert first == second
    assert "1 of 3 images cannot be used" in first
    assert files[1].name in first
    assert model.read_bytes() == before
    # Rank 1 has no other image than the bad one.
    found = together(2, functools.partial(outcome, skip_bad=True), place, model, folder)
    assert found[0] == found[1]
    counts, totals, skipped = found[0]
    assert counts == {"red": 2}
    assert totals == {"blue": 5, "green": 5, "red": 2}
    assert len(skipped) == 1


def test_more_processes_than_images_learn_them_all(place, tmp_path):
    folder = draw(tmp_path / "few", 1, ("red", "white"))
    found = together(3, learn_share, place, tmp_path / "m.acil", folder)
    assert [totals for _, totals, _ in found] == [{"red": 1, "white": 1}] * 3


def test_images_learnt_before_are_left_out_on_all_ranks(place, tmp_path):
    folder = draw(tmp_path / "twice", 3, ("red", "white"))
    for name in ("red", "white"):
        shutil.copy(folder / name / "0-0.png", folder / name / "0-1.png")
    alone = ImageClassifier(source(place))
    alone.learn(place / "base")
    alone.learn(folder)
    model = tmp_path / "m.acil"
    together(2, learn_share, place, model, place / "base")
    found = together(2, learn_share, place, model, folder)
    assert [counts for counts, _, _ in found] == [{"red": 2, "white": 2}] * 2
    first, second = load(model).coef_, alone.snapshot.head.coef_
    assert relative(first, second) <= 1e-9
    before = model.read_bytes()
    found = together(2, learn_share, place, model, folder)
    assert [counts for counts, _, _ in found] == [{}, {}]
    assert model.read_bytes() == before


def sees_less(group, place, model):
    """Rank 1 misses one image."""
    folder = model.parent / f"seen by {group.rank}"
    draw(folder, 3 - group.rank, ("red", "blue"))
    return outcome(group, place, model, folder)


def other_network(group, place, model):
    network = source(place) if group.leads else f"onnx:{place / 'other.onnx'}"
    return outcome(group, place, model, place / "base", backbone=network)


@pytest.mark.parametrize(
    ("differ", "words"),
    [
        (sees_less, "Ranks 0 and 1 list different images (6 and 4)"),
        (other_network, "Rank 1: The features come from another network"),
    ],
)
def test_ranks_with_other_images_or_another_network_are_refused(place, tmp_path, differ, words):
    network_file(place / "other.onnx", seed=1)
    found = together(2, differ, place, tmp_path / "m.acil")
    assert found[0] == found[1]
    assert words in found[0]
    assert not (tmp_path / "m.acil").exists()


def dies(group, place, model):
    if group.rank == 1:
        dist.all_reduce = lambda *a, **o: os.kill(os.getpid(), signal.SIGKILL)
    learn_share(group, place, model, place / "more")


def test_a_rank_that_dies_leaves_the_old_file(place, tmp_path):
    model = tmp_path / "m.acil"
    alone = ImageClassifier(source(place))
    alone.learn(place / "base")
    alone.save(model)
    before = model.read_bytes()
    survivor, other = together(2, dies, place, model, timeout=60.0)
    assert isinstance(survivor, ProcessLostError)
    assert other == signal.SIGKILL
    assert model.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.acil", "network.onnx"]


#: Stands for `acil learn`; rank 1 kills itself when the sums are to travel.
DYING = """
import os, signal
from acil.cli import app
from acil.images import sharded

def die(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

if os.environ["RANK"] == "1":
    sharded.partial_fit = die
app(prog_name="acil")
"""


def test_the_command_under_torchrun(place, tmp_path):
    model, script = tmp_path / "m.acil", tmp_path / "dying.py"
    script.write_text(DYING)
    options = ["--model", model, "--backbone", source(place)]
    done = torchrun(2, "-m", "acil", "learn", place / "base", "--json", *options)
    assert done.returncode == 0, done.stderr
    # One process speaks.
    assert json.loads(done.stdout)["totals"] == {"blue": 5, "green": 5}
    before = model.read_bytes()
    died = torchrun(2, script, "learn", place / "more", *options)
    assert died.returncode == 1
    assert died.stdout == ""
    assert "has all of these images or none" in died.stderr
    assert model.read_bytes() == before


@pytest.mark.slow
def test_a_command_that_cannot_start_ends_on_all_ranks(place, tmp_path):
    refused = torchrun(2, "-m", "acil", "learn", place / "nowhere", "--model", tmp_path / "m.acil")
    assert refused.returncode == 1
    assert refused.stderr.count("error: Rank 0: ") == 1
