"""Whole runs on a tree of ImageNet's shape, by the commands of docs/imagenet.md, in small."""

import random
import re
import shlex
import signal
from functools import partial
from pathlib import Path

import pytest
from imagenet_trees import write_tree

from acil.bench import job
from acil.bench.datasets import imagenet
from acil.bench.training import checkpoint
from acil.encoders.images import imagefiles
from support.forks import finished
from support.running import command, records, timeless

pytestmark = pytest.mark.usefixtures("without_plots")

GUIDE = Path(__file__).parents[2] / "docs" / "imagenet.md"
#: What makes the command of the guide small: a tiny network, images of 64 pixels, one epoch.
SMALL = [
    part
    for setting in (
        "recipe.backbone=smallcnn",
        "recipe.backbone_options.size=64",
        "recipe.backbone_options.channels=3",
        "recipe.training.epochs=1",
        "data.size=64",
        "data.workers=2",
    )
    for part in ("--set", setting)
]


def dies_after(seconds):
    """Let this process end without warning after so many seconds of processor time; it saves often."""
    job.STATE_SECONDS = 0.0
    checkpoint.Checkpoint.due = lambda self: True
    imagenet._CHECKED, imagefiles._FEW = 20, 0
    signal.setitimer(signal.ITIMER_PROF, seconds)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    root = tmp_path_factory.mktemp("ilsvrc")
    return write_tree(root / "ilsvrc", each=(3, 1), flat=True, size=(80, 72))


def documented(beginning):
    """Return the arguments of the first command of the guide that begins so."""
    text = re.sub(r"\\\n\s*", "", GUIDE.read_text(encoding="utf-8"))
    found = re.search(rf"^\$ ({re.escape(beginning)}[^#\n]*)", text, re.MULTILINE)
    return shlex.split(found[1])


def small(arguments, tree, out):
    """Return what follows `acil bench run` in a documented command, for our tree and directory."""
    placed = [re.sub(r":ilsvrc$", f":{tree}", part) for part in arguments[3:]]
    if "--out" in placed:
        del placed[placed.index("--out") : placed.index("--out") + 2]
    return [*placed, *SMALL, "--seeds", "0", "--out", str(out)]


def test_the_table_of_the_guide_plans_every_row_without_further_flags(tmp_path):
    given = documented("acil bench run --suite table1 --dataset imagenet100:ilsvrc")
    told = command(*given[3:], "--dry-run")
    assert told.exit_code == 0
    assert "images are those published" in told.stdout
    assert "order seed1993, base of 50 classes\n" in told.stdout
    assert "recipe imagenet," in told.stdout
    # Eight methods for three K, podnet for four, acil for all in one pass
    assert "\n26 jobs:\n" in told.stdout
    assert "podnet+aanets+rmm, seed 0, K = 25" in told.stdout
    assert "acil, seed 0, K = 5, 10, 25, 50" in told.stdout


@pytest.mark.slow
def test_the_subset_by_the_command_of_the_guide(tree, tmp_path):
    given = documented("acil bench run --dataset imagenet100:ilsvrc")
    arguments = small(given, tree, tmp_path / "run")
    assert command(*arguments, "--expansion-size", "64").exit_code == 0
    found = records(tmp_path / "run", "summary")
    assert sorted(record["phases"] for record in found) == [5, 10, 25, 50]
    assert {record["order"] for record in found} == {"seed1993"}


@pytest.mark.slow
def test_the_methods_of_the_table_run_on_files(tree, tmp_path):
    given = documented("acil bench run --suite table1 --dataset imagenet100:ilsvrc")
    arguments = small(given, tree, tmp_path / "run")
    short = ("increment.epochs=1", "podnet_balanced_epochs=1", "bic_correction_epochs=2")
    arguments += [part for setting in short for part in ("--set", f"settings.{setting}")]
    # Two exemplars of three images, or bic would have none to hold out.
    arguments += ["--memory", "2 per class", "--phases", "5", "--expansion-size", "64"]
    assert command(*arguments).exit_code == 0
    assert len(records(tmp_path / "run", "summary")) == 9


@pytest.mark.slow
def test_killed_at_ten_random_moments(tree, tmp_path):
    """Preparing, base training, features and learning: resumed, the records are those of one go."""
    dataset = f"imagenet100:{tree}"
    run = ["bench", "run", *small(["acil", "bench", "run", "--dataset", dataset], tree, tmp_path)]
    run[-1:] = []
    draw = random.Random(41)

    def killed(seconds, *arguments):
        done = finished(*arguments, before=partial(dies_after, seconds))
        assert done.returncode in (0, -signal.SIGPROF), done.stderr
        return done.returncode != 0

    whole = tmp_path / "whole"
    never = 3600.0
    assert not killed(never, *run, whole, "--expansion-size", "64")
    prepare = ["data", "prepare", dataset, "--set", f"cache={tmp_path / 'cache'}"]
    kills, attempt = 0, 0
    while kills < 4 and killed(draw.uniform(0, 0.6), *prepare):
        kills += 1
    assert not killed(never, *prepare)
    while kills < 10:
        attempt += 1
        again = [*run, tmp_path / f"run-{attempt}", "--expansion-size", "64", "--resume"]
        while killed(draw.uniform(0, 1.5) if kills < 10 else never, *again):
            kills += 1
        assert timeless(tmp_path / f"run-{attempt}") == timeless(whole)
