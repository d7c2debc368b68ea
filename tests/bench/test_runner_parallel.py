"""Jobs in processes of their own: the same records, one base network, failures that stop nobody else."""

import os
import signal
import subprocess
import sys
import time

import pytest

from acil.bench import runner
from acil.bench.config import make_config
from acil.bench.estimate import longest_first
from acil.bench.prepare import prepare
from acil.bench.training.loop import train
from support.running import DIGITS, command, records, timeless

#: A user's own methods, for which every process imports this file.
OWN = """
import os, time
from pathlib import Path
from acil.errors import InputError
from acil.bench.methods import base_network
from acil.bench.methods.acil import ACIL
from acil.bench.methods.lucir import LUCIR

NOTES = Path(__file__).with_name("notes")
train = base_network.train


def note(text):
    with NOTES.open("a") as file:
        file.write(text + "\\n")


def noted(*arguments, **options):
    note("trained")
    time.sleep(0.5)  # the others come while this one is busy
    return train(*arguments, **options)


base_network.train = noted


class Twin(ACIL):
    pass


class Other(ACIL):
    pass


class Fails(ACIL):
    def learn(self, phase):
        if phase.index == 1:
            raise InputError("This method never liked phase 1.")
        super().learn(phase)


class Dies(ACIL):
    def learn(self, phase):
        os._exit(7)


class Waits(ACIL):
    def learn(self, phase):
        note(f"pid {os.getpid()}")
        time.sleep(300)


class Meets(LUCIR):
    def base(self, phase):
        note("here")
        deadline = time.monotonic() + 60
        while NOTES.read_text().count("here") < 2:
            if time.monotonic() > deadline:
                raise InputError("Nobody else came.")
            time.sleep(0.1)
        return super().base(phase)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Make the methods known to this process and those that it starts; return the file of notes."""
    (tmp_path / "own_methods.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("acil.bench.report._draw", lambda *_: [])
    # What the file replaces when it is imported.
    monkeypatch.setattr("acil.bench.methods.base_network.train", train)
    yield tmp_path / "notes"
    sys.modules.pop("own_methods", None)


def sorted_records(folder):
    return sorted(timeless(folder), key=str)


@pytest.mark.parametrize("seeds", ["0", pytest.param("0,1", marks=pytest.mark.slow)])
def test_same_records_as_one_after_the_other_and_one_network_for_each_seed(own, tmp_path, seeds):
    arguments = (*DIGITS, "--seeds", seeds, "--method", "own_methods:Twin,own_methods:Other")
    assert command(*arguments, "--out", tmp_path / "alone").exit_code == 0
    own.unlink()
    result = command(*arguments, "--jobs", "3", "--out", tmp_path / "together")
    assert result.exit_code == 0, result.output
    n_seeds = len(seeds.split(","))
    assert own.read_text().split() == ["trained"] * n_seeds
    networks = (tmp_path / "together" / "checkpoint").glob("base-*/backbone.safetensors")
    assert len(list(networks)) == n_seeds
    assert sorted_records(tmp_path / "together") == sorted_records(tmp_path / "alone")
    twin, other = (
        [r["accuracy"] for r in records(tmp_path / "together", "phase") if r["method"] == name]
        for name in ("own_methods:Twin", "own_methods:Other")
    )
    assert sorted(twin) == sorted(other)
    assert "own_methods:Twin" in result.stdout


@pytest.mark.slow
def test_base_networks_of_methods_own_are_trained_side_by_side(own, tmp_path):
    given = ("--method", "own_methods:Meets", "--seeds", "0", "--phases", "1,2", "--jobs", "2")
    result = command(*DIGITS, *given, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.stderr


def test_job_that_fails_is_reported_and_the_others_go_on(own, tmp_path):
    methods = "own_methods:Dies,own_methods:Fails,own_methods:Twin"
    arguments = (*DIGITS, "--seeds", "0", "--method", methods, "--out", tmp_path / "run")
    result = command(*arguments, "--jobs", "2")
    assert result.exit_code == 1
    assert "2 of 3 jobs failed" in result.stderr
    assert "[own_methods:Dies, seed 0, K = 5] Its process ended with exit code 7." in result.stderr
    assert "[own_methods:Fails, seed 0, K = 5] This method never liked phase 1." in result.stderr
    assert [r["method"] for r in records(tmp_path / "run", "summary")] == ["own_methods:Twin"]
    assert "own_methods:Twin" in (tmp_path / "run" / "report" / "main.md").read_text()
    failures = {record["method"]: record["error"] for record in records(tmp_path / "run", "failure")}
    assert failures == {
        "own_methods:Dies": "Its process ended with exit code 7.",
        "own_methods:Fails": "This method never liked phase 1.",
    }


def test_the_longest_jobs_begin(monkeypatch, tmp_path):
    config = make_config({"methods": "ncm,icarl,joint", "phases": "1,5", "seeds": "0", "jobs": "1"})
    prepared, begun = prepare(config, None, None), []

    def started(job, *others):
        begun.append((job.method, len(job.grouping) - 1))

    monkeypatch.setattr(runner, "_in_process", started)
    assert runner._run_side_by_side(prepared, prepared.plan(), tmp_path) == []
    assert begun == [("joint", 5), ("icarl", 5), ("joint", 1), ("icarl", 1), ("ncm", 5)]


def test_stopping_does_not_wait_for_jobs_that_have_not_begun(monkeypatch, tmp_path):
    prepared = prepare(make_config({"methods": "ncm", "seeds": "0,1,2,3"}), None, None)

    def interrupted(job, *others):
        time.sleep(0.2)
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "_in_process", interrupted)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        runner._run_side_by_side(prepared, prepared.plan(), tmp_path)
    assert time.monotonic() - started < runner._PATIENCE


def test_job_that_cannot_be_made_does_not_keep_others_from_beginning():
    bad = {"methods": "icarl-bce,joint", "phases": "1", "settings.memory_rule": "3 in total"}
    prepared = prepare(make_config({"seeds": "0", **bad}), None, None)
    assert [job.method for job in longest_first(prepared, prepared.plan())] == ["joint", "icarl-bce"]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def until(condition, seconds=240.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_stopping_the_first_process_stops_all(own, tmp_path, number):
    command_line = [sys.executable, "-m", "acil", "bench", "run", *DIGITS, "--jobs", "2"]
    command_line += ["--method", "own_methods:Waits", "--out", str(tmp_path / "run")]
    paths = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"

    def heeding():
        # A shell that runs the tests in the background has told them to ignore Ctrl-C.
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    process = subprocess.Popen(
        command_line,
        env={**os.environ, "PYTHONPATH": paths},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heeding,
        start_new_session=True,
    )

    def pids():
        return [int(line.split()[1]) for line in own.read_text().splitlines()] if own.exists() else []

    try:
        until(lambda: len(pids()) == 2)
        # Ctrl-C reaches every process of a terminal.
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        _, told = process.communicate(timeout=120)
    finally:
        process.kill()
    until(lambda: not any(map(alive, pids())))
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "Stopped. Go on with: acil bench run --resume" in told
        assert "Traceback" not in told
        assert "failed" not in told
