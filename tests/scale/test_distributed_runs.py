"""The benchmark by several processes: the records of one, also when a process dies on the way."""

import os
import signal

import pytest

from acil.bench import job
from acil.bench.config import make_config
from acil.bench.methods.acil import ACIL
from acil.bench.methods.frozen_features import FrozenFeatures
from acil.bench.records import Records
from acil.bench.runner import run
from acil.errors import InputError, ProcessLostError
from support.ranks import together, torchrun

SETTINGS = {
    "dataset": "digits",
    "seeds": "0",
    "phases": "5",
    "recipe.training.epochs": 1,
    "device": "cpu",
}
#: What runs may differ in: times, and numbers that show the rounding of sums.
VARYING = ("ended", "seconds", "peak_rss", "joint_difference", "condition", "gamma_relative")


def comparable(folder):
    found = [r for r in Records(folder / "records.jsonl").read() if r["kind"] != "environment"]
    return [{k: v for k, v in record.items() if k not in VARYING} for record in found]


def environments(folder):
    """Return how many processes each environment record names."""
    found = Records(folder / "records.jsonl").read()
    return [record["processes"] for record in found if record["kind"] == "environment"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    run(make_config(SETTINGS), folder)
    return comparable(folder)


def take_part(group, folder, settings, resume=False, dies_at=None):
    """Do this process's part of a run; rank 1 kills itself when it learns for the nth time."""
    job.STATE_SECONDS = 0.0
    if dies_at is not None and group.rank == 1:
        real, calls = ACIL._learn, []

        def learn(self, features, phase):
            calls.append(1)
            if len(calls) == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            real(self, features, phase)

        ACIL._learn = learn
    # Only rank 0 may touch the directory: the others get one that cannot be made.
    out = folder if group.leads else folder / "config.toml" / "of another rank"
    run(make_config(settings), out, resume=resume)
    return "done"


def test_records_are_those_of_one_process(undisturbed, tmp_path):
    assert together(3, take_part, tmp_path / "run", SETTINGS) == ["done"] * 3
    assert comparable(tmp_path / "run") == undisturbed
    assert environments(tmp_path / "run") == [3]
    summary = Records(tmp_path / "run" / "records.jsonl").read()[-1]
    assert summary["joint_difference"] < 1e-9


@pytest.mark.parametrize(
    ("killed_among", "resumed_by"), [(2, 3), pytest.param(3, 1, marks=pytest.mark.slow)]
)
def test_a_killed_rank_stops_the_run_and_resuming_ends_with_the_same_records(
    undisturbed, tmp_path, killed_among, resumed_by
):
    folder = tmp_path / "run"
    found = together(killed_among, take_part, folder, SETTINGS, False, 4, timeout=60.0)
    assert found[1] == signal.SIGKILL
    for error in (found[0], *found[2:]):
        assert isinstance(error, ProcessLostError)
        assert "Rank 1" in str(error) or "is lost" in str(error)
    phases = [record["phase"] for record in comparable(folder)]
    assert phases == [0, 1, 2]
    if resumed_by == 1:
        run(make_config(SETTINGS), folder, resume=True)
    else:
        assert together(resumed_by, take_part, folder, SETTINGS, True) == ["done"] * resumed_by
    assert comparable(folder) == undisturbed
    assert not list(folder.rglob("state-*"))


@pytest.mark.slow
def test_resuming_goes_on_from_the_last_finished_phase(tmp_path):
    together(2, take_part, tmp_path / "run", SETTINGS, False, 4, timeout=60.0)
    assert together(2, count_learning, tmp_path / "run")[0] == 3


def count_learning(group, folder):
    calls, real = [], ACIL._learn
    ACIL._learn = lambda self, features, phase: (calls.append(1), real(self, features, phase))
    take_part(group, folder, SETTINGS, True)
    return len(calls)


@pytest.mark.parametrize(
    "change",
    [
        # Rank 0 alone runs methods that cannot be shared out.
        {"methods": "ncm,acil", "joint_check": False},
        {"recipe.features.standardize": True},
        pytest.param({"solver": "recursive"}, marks=pytest.mark.slow),
        pytest.param({"gamma": "auto"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_settings_give_the_records_of_one_process(tmp_path, change):
    settings = SETTINGS | {"phases": "1"} | change
    together(2, take_part, tmp_path / "two", settings)
    run(make_config(settings), tmp_path / "one")
    assert comparable(tmp_path / "two") == comparable(tmp_path / "one")


def fails_in_one_phase(group, folder):
    """Rank 1 gets features that are no numbers, for γ = 0.1 only; the run has two jobs."""
    if group.rank == 1:
        real = FrozenFeatures.training_rows

        def training_rows(self, images, labels):
            rows, labels = real(self, images, labels)
            gamma = self.context.settings.get("gamma", self.context.recipe.gamma)
            return rows * float("nan") if gamma == 0.1 else rows, labels

        FrozenFeatures.training_rows = training_rows
    try:
        run(make_config(SETTINGS | {"suite": "ablation", "phases": "1"}), folder)
    except Exception as error:
        return str(error)


def test_a_job_that_fails_on_one_rank_is_recorded_and_the_others_go_on(tmp_path):
    first, second = together(2, fails_in_one_phase, tmp_path)
    assert "Rank 1: The features of phase 0" in first
    assert second is None
    found = comparable(tmp_path)
    # γ = 0 is singular, on every rank: that is a result of this suite.
    failed = [r for r in found if r["kind"] == "failure" and r["error"].startswith("Rank 1: ")]
    assert failed
    assert all(record["settings"]["gamma"] == 0.1 for record in failed)
    assert {record["settings"]["gamma"] for record in found if record["kind"] == "summary"} >= {0.01}


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"jobs": 2}, "exclude each other"), ({"dataset": "features:nowhere.npz"}, "nowhere")],
)
def test_a_run_that_cannot_start_is_the_same_error_on_all_ranks(tmp_path, settings, words):
    errors = together(2, take_part, tmp_path / "run", SETTINGS | settings)
    assert all(isinstance(error, InputError) for error in errors)
    assert str(errors[0]) == str(errors[1])
    assert words in str(errors[0])
    assert not (tmp_path / "run").exists()


#: Stands for `acil bench run`; rank 1 kills itself in the phase that the first argument names.
DYING = """
import os, signal, sys
from acil.bench import job
from acil.cli import app
from acil.bench.methods.acil import ACIL
from acil.bench.methods.frozen_features import FrozenFeatures

job.STATE_SECONDS = 0.0
last, real = int(sys.argv[1]), ACIL._learn

def learn(self, features, phase):
    if phase.index == last and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    real(self, features, phase)

ACIL._learn = learn
sys.argv[1:2] = ["bench", "run"]
app(prog_name="acil")
"""


@pytest.mark.slow
def test_the_command_under_torchrun_survives_the_death_of_a_rank(undisturbed, tmp_path):
    flags = ["--dataset", "digits", "--seeds", "0", "--phases", "5", "--device", "cpu"]
    flags += ["--set", "recipe.training.epochs=1", "--out", tmp_path / "run"]
    script = tmp_path / "dying.py"
    script.write_text(DYING)
    died = torchrun(2, script, 3, *flags)
    assert died.returncode == 1
    assert died.stdout == ""
    assert "Go on with: acil bench run --resume" in died.stderr
    done = torchrun(2, "-m", "acil", "bench", "run", "--resume", *flags)
    assert done.returncode == 0, done.stderr
    # One process speaks.
    assert done.stdout.count("Report:") == 1
    assert comparable(tmp_path / "run") == undisturbed
    refused = torchrun(2, "-m", "acil", "bench", "run", *flags)
    assert refused.returncode == 1
    assert refused.stderr.count("error: Rank 0: ") == 1
    assert "--resume" in refused.stderr
