"""Memory and time of a run, known before it starts."""

import dataclasses
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from acil.bench import estimate
from acil.bench.config import make_config
from acil.bench.estimate import plan_of
from acil.bench.prepare import prepare
from acil.bench.runner import run
from acil.bench.training.step import Step
from support.pictures import COLOURS, draw
from support.running import command, records, write_features

#: Tasks of a recipe that most methods leave out of their increments.
AUXILIARY = {
    "epochs": "1",
    "auxiliary.copies": "2",
    "auxiliary.distillation": "0.5",
    "auxiliary.teachers": "1",
}


def config(embeddings, **changes):
    values = {"dataset": f"features:{embeddings}", "phases": "2", "seeds": "0", "device": "cpu"}
    return make_config({**values, **changes})


def test_head_that_cannot_fit_is_refused_in_one_line_before_anything_is_written(embeddings, tmp_path):
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    width = int((there / 16) ** 0.5) + 1000
    arguments = ("--dataset", f"features:{embeddings}", "--phases", "2", "--seeds", "0,1")
    arguments += ("--expansion-size", width, "--jobs", "2", "--out", tmp_path / "run")
    arguments += ("--device", "cpu")
    result = command(*arguments)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert re.search(f"A head of width {width} needs about .* GiB, but cpu has", line)
    assert "smaller --expansion-size, fewer --jobs, --set joint_check=false or --dtype float32" in line
    assert not (tmp_path / "run").exists()


def test_covariances_that_cannot_fit_are_refused_before_anything_is_trained(tmp_path, monkeypatch):
    features = tmp_path / "wide.npz"
    write_features(features, classes=4, width=60, each=(2, 1))
    given = {"methods": "ncm,fecam", "settings.fecam_tukey": "1"}
    prepared = prepare(config(features, **given), None, None)
    needed = estimate._PROCESS_BYTES + 4 * 60 * 61 // 2 * 8
    monkeypatch.setattr(estimate, "machine_bytes", lambda device: needed)
    estimate.check_memory(prepared, prepared.plan())
    monkeypatch.setattr(estimate, "machine_bytes", lambda device: needed - 1)
    with pytest.raises(estimate.MemoryTooSmallError, match="fecam"):
        estimate.check_memory(prepared, prepared.plan())
    assert "for heads of width up to 60;" in plan_of(prepared.config)[0]


@pytest.mark.parametrize(("gpus", "times"), [(1, 3), (2, 2), (3, 1), (8, 1)])
def test_processes_that_share_a_gpu_share_its_memory(embeddings, monkeypatch, gpus, times):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    prepared = prepare(config(embeddings), None, None)
    alone = dataclasses.replace(prepared, device=torch.device("cuda"))
    together = dataclasses.replace(alone, group=SimpleNamespace(local_size=3))
    jobs = prepared.plan()
    assert estimate.needed_bytes(together, jobs) == times * estimate.needed_bytes(alone, jobs) > 0


def image_config(images, **changes):
    """Return the settings of a run on pictures of four classes: 6, 8, 10 and 12 of each."""
    for split in ("train", "test"):
        for count, name in zip((6, 8, 10, 12), sorted(COLOURS), strict=True):
            draw(images / split, count, [name])
    values = {"dataset": f"imagefolder:{images}", "order": "natural", "recipe": "quick"}
    values |= {"data.size": "32", "phases": "2", "seeds": "0", "base": "2"}
    return make_config(values | changes)


@pytest.mark.parametrize(
    ("method", "epochs", "images"),
    [
        ("acil", 5, 0),
        ("finetune", 5, 3 * (10 + 12)),
        ("lwf-exemplars", 5, 3 * (10 + 2 * 2 + 12 + 3 * 2)),
        ("joint", 5, 3 * (6 + 8 + 10 + 6 + 8 + 10 + 12)),
        ("lucir", 5, 3 * (10 + 2 * 2 + 12 + 3 * 2)),
        ("icarl-bce", 3, 3 * (10 + 2 * 2 + 12 + 3 * 2)),
    ],
)
def test_images_to_train_on_are_known_before(method, epochs, images, tmp_path):
    changes = {"settings.increment.epochs": "3", "settings.memory_rule": "2 per class"}
    changes |= {"recipe.training.epochs": "5", "methods": method}
    prepared = prepare(image_config(tmp_path, **changes), None, None)
    (job,) = prepared.plan()
    assert estimate.base_inputs(prepared, [job]) == epochs * (6 + 8)
    assert estimate.later_trained_images(prepared, job) == images


def test_a_base_network_that_several_jobs_share_counts_once(tmp_path):
    methods = "acil,finetune,lucir,lucir+aanets,podnet"
    changes = {"recipe.training.epochs": "5", "methods": methods, "phases": "1,2"}
    prepared = prepare(image_config(tmp_path, **changes), None, None)
    # One of acil and finetune, one of lucir with and without a wrapper, one of podnet
    assert estimate.base_inputs(prepared, prepared.plan()) == 3 * 5 * (6 + 8)


@pytest.mark.parametrize("method", ["finetune", "joint", "lucir", "icarl", "podnet", "icarl-bce"])
def test_told_inputs_are_those_of_a_run_with_auxiliary_tasks(method, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(Step, "_run", lambda step, x, y, *others: seen.append(len(x)))
    values = {"dataset": "digits", "phases": "2", "seeds": "0", "methods": method, "device": "cpu"}
    values |= {f"recipe.training.{name}": value for name, value in AUXILIARY.items()}
    values |= {"settings.increment.epochs": "2", "settings.memory_rule": "3 per class"}
    prepared = prepare(make_config(values), None, None)
    (job,) = prepared.plan()
    run(prepared.config, tmp_path / "run")
    told = estimate.base_inputs(prepared, [job]) + estimate.later_trained_images(prepared, job)
    assert sum(seen) == told


def test_head_without_expansion_is_as_wide_as_the_features_of_the_recipe(tmp_path):
    features = {"recipe.features.taps": "stage2.0,stage3.0", "recipe.features.grid": "2"}
    given = {"settings.expansion_size": "none", **features}
    prepared = prepare(image_config(tmp_path, **given), None, None)
    (job,) = prepared.plan()
    # 4 fields of each of 32 and 64 channels
    assert estimate.head_width(prepared, job) == 4 * (32 + 64)


def test_dry_run_counts_inputs_of_auxiliary_tasks_and_what_methods_train(tmp_path):
    changes = {"recipe.training.epochs": "1000", "recipe.training.auxiliary.copies": "3"}
    text = plan_of(image_config(tmp_path, methods="acil,finetune", **changes))[0]
    assert "base training: 0.056 million network inputs (all seeds; 1000 epochs, 4 for an image" in text
    assert "finetune, seed 0, K = 2: 0.088 million network inputs" in text
    assert "acil, seed 0, K = 2\n" in text
    assert text.count("for what other methods train") == 1


def test_each_view_that_is_a_row_counts_in_the_time_of_a_head(tmp_path, monkeypatch):
    monkeypatch.setattr(estimate, "_flops", lambda device: 1.0)

    def seconds(**changes):
        given = {f"recipe.features.{name}": value for name, value in changes.items()}
        given |= {"expansion_size": "100", "joint_check": "false"}
        prepared = prepare(image_config(tmp_path, **given), None, None)
        return estimate.head_seconds(prepared, *prepared.plan())

    alone = seconds(mirror="true", shift="1")
    # Ten views, itself included
    assert seconds(mirror="true", shift="1", rows="true") - alone == 9 * 36 * 100**2 / 2


def test_dry_run_of_a_run_to_resume_leaves_out_what_is_done(embeddings, tmp_path):
    arguments = ("--dataset", f"features:{embeddings}", "--phases", "2", "--out", tmp_path / "run")
    arguments += ("--method", "ncm,lda")
    command(*arguments, "--seeds", "0")
    more = (*arguments, "--seeds", "0,1", "--dry-run")
    assert "4 jobs:" in command(*more).stdout
    left = command(*more, "--resume").stdout
    assert "2 jobs (2 more done):\n  ncm, seed 1" in left
    assert "one after the other: hardly any\n" in left, "neither networks nor heads are trained"
    assert (
        command(*arguments, "--seeds", "0", "--resume", "--dry-run").stdout == "All 2 jobs are done.\n"
    )


def test_base_network_that_a_run_to_resume_has_trained_is_not_counted_again(tmp_path):
    arguments = ("--dataset", "digits", "--set", "recipe.training.epochs=1", "--method", "ncm,lda")
    arguments += ("--phases", "5", "--out", tmp_path / "run")
    assert command(*arguments, "--method", "ncm", "--seeds", "0").exit_code == 0
    left = command(*arguments, "--seeds", "0,1", "--dry-run", "--resume").stdout
    assert "base training: 0.000602 million network inputs" in left
    assert "0.0012 million" in command(*arguments, "--seeds", "0,1", "--dry-run").stdout
    none = command(*arguments, "--seeds", "0", "--dry-run", "--resume").stdout
    assert "1 job (1 more done)" in none
    assert "base training:" not in none


def test_needs_grow_with_the_square_of_the_width_and_with_processes(embeddings):
    def needed(**changes):
        prepared = prepare(config(embeddings, **changes), None, None)
        return (
            estimate.needed_bytes(prepared, prepared.plan()) - estimate._PROCESS_BYTES * changes["jobs"]
        )

    one = needed(expansion_size=1000, joint_check=False, jobs=1)
    assert one == 16_000_000
    assert needed(expansion_size=2000, joint_check=False, jobs=1) == 4 * one
    assert needed(expansion_size=1000, jobs=1) == one + 8_000_000
    assert needed(expansion_size=1000, dtype="float32", joint_check=False, jobs=1) == one / 2
    assert needed(expansion_size=1000, joint_check=False, jobs=2, seeds="0,1,2") == 2 * one


@pytest.mark.parametrize(
    ("device", "width", "there", "fits"),
    [
        ("cpu", 32_768, 24 * 2**30, True),
        ("cpu", 46_000, 24 * 2**30, False),
        ("cuda", 65_536, 139 * 2**30, True),
        ("cuda", 98_304, 139 * 2**30, False),
    ],
)
def test_wide_heads_that_fit_are_let_through(embeddings, monkeypatch, device, width, there, fits):
    prepared = prepare(config(embeddings, expansion_size=width, joint_check=False), None, None)
    prepared = dataclasses.replace(prepared, device=torch.device(device))
    monkeypatch.setattr(estimate, "machine_bytes", lambda device: there)
    jobs = prepared.plan()
    # The sums and a factor, two matrices of float64 numbers, and on a CPU the process around them
    expected = 16 * width**2 + (estimate._PROCESS_BYTES if device == "cpu" else 0)
    assert estimate.needed_bytes(prepared, jobs) == expected
    if fits:
        estimate.check_memory(prepared, jobs)
    else:
        with pytest.raises(estimate.MemoryTooSmallError, match=f"width {width}"):
            estimate.check_memory(prepared, jobs)


@pytest.mark.parametrize(("limit", "expected"), [(1_000_000, 1_000_000), (2**45, 2**35), (None, 2**35)])
def test_limit_of_a_container_counts(monkeypatch, limit, expected):
    monkeypatch.setattr(estimate, "memory", lambda: {"total": 2**35, "limit": limit})
    assert estimate.machine_bytes(torch.device("cpu")) == expected


def test_dry_run_tells_memory_and_time_and_writes_nothing(embeddings, tmp_path):
    result = command("--dataset", "digits", "--dry-run", "--seeds", "0", "--out", tmp_path / "run")
    assert result.exit_code == 0
    assert "GiB for heads of width up to 500; there are" in result.stdout
    assert "s for base training (all seeds)" in result.stdout
    assert "1 job:\n  acil, seed 0, K = 5" in result.stdout
    assert not (tmp_path / "run").exists()


#: What the whole process may take, in bytes: Python, torch and SciPy included.
MOST = 6 * 2**30
#: Runs the command in a child and tells its peak, which no other child of the tests can have raised.
MEASURED = """
import resource, subprocess, sys
code = subprocess.run([sys.executable, "-m", "acil", "bench", "run", *sys.argv[1:]]).returncode
print("peak", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phases", "joint"),
    # Peak memory does not depend on the number of phases, once there are some: the sums are in place
    # and each factor replaces the last. Fifty take twenty minutes on two busy cores.
    [(3, "true"), (50, "false")],
)
def test_peak_of_a_cifar_sized_run_with_a_wide_head(tmp_path, phases, joint):
    """Features are as ResNet-32 has them of CIFAR-100: 50,000 and 10,000 rows of 64 numbers."""
    features = tmp_path / "cifar-like.npz"
    write_features(features, 100, 64, (500, 100), spread=0.5)
    arguments = ["--dataset", f"features:{features}", "--phases", str(phases), "--seeds", "0"]
    arguments += ["--expansion-size", "8192", "--gamma", "1", "--set", f"joint_check={joint}"]
    command = [sys.executable, "-c", MEASURED, *arguments, "--out", str(tmp_path / "run")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    peak = int(result.stdout.split("peak ")[-1])
    (summary,) = records(tmp_path / "run", "summary")
    assert summary["settings"]["expansion_size"] == 8192
    # The matrix alone is 0.5 GiB: less would mean that something else was measured.
    assert 2**30 < peak <= MOST
