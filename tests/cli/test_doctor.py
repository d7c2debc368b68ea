"""`acil doctor`: facts, measurements and advice, on machines that lack this or that."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import acil
from acil import extras, machine
from acil.cli import app, doctor


def run(*arguments: str):
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["doctor", *arguments])


def result_of(device: str, gain: float) -> dict:
    return {"device": device, "float64": {"head_seconds": gain}, "float32": {"head_seconds": 1.0}}


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(doctor, "SIZES", {"cpu": 64, "cuda": 64})
    monkeypatch.setattr(doctor, "ROWS", 32)
    monkeypatch.setattr(doctor, "BUDGET", 0.01)


def test_json_is_all_that_stdout_holds():
    result = run("--json", "--no-speed")
    report = json.loads(result.stdout)
    assert result.exit_code == 0
    assert report["acil"] == acil.__version__
    assert report["packages"]["torch"] == torch.__version__
    assert report["speed"] is None


def test_machine_is_described():
    report = doctor.examine(speed=False)
    assert 0 < report["cores"]["usable"] <= report["cores"]["logical"]
    assert 0 < report["memory"]["available"] < report["memory"]["total"]
    assert report["devices"][0]["name"] == "cpu"
    assert report["threads"]["torch"] == torch.get_num_threads()
    assert any("blas" in pool or "mkl" in pool for pool in report["threads"]["pools"])


def test_people_see_what_machines_see(tiny):
    result = run()
    assert result.exit_code == 0
    for text in (acil.__version__, torch.__version__, "device", "Cholesky", 'dtype="'):
        assert text in result.stdout


def test_extras_are_those_of_the_package(monkeypatch):
    lines = ["torch>=2.4", "timm>=1.0; extra == 'timm'", "ruff; extra == 'dev'"]
    lines += ['onnx; extra == "onnx"', 'python-multipart (>=1) ; extra == "onnx"']
    monkeypatch.setattr(extras.metadata, "requires", lambda name: lines)
    assert extras.extras() == {"timm": ["timm"], "onnx": ["onnx", "python-multipart"]}


def test_missing_extra_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(doctor, "version", lambda name: None if name == "onnxruntime" else "1.0")
    found = doctor.examine(speed=False)["extras"]
    command = extras.install("onnx")
    assert command.startswith("pip install onnx ")
    assert found["onnx"] == {"missing": ["onnxruntime"], "install": command}
    assert found["serve"] == {"missing": [], "install": None}
    assert f"{command} (missing: onnxruntime)" in run("--no-speed").stdout
    monkeypatch.setattr(doctor, "version", lambda name: None)
    result = run("--no-speed")
    assert result.exit_code == 0
    assert all(extras.install(name) in result.stdout for name in extras.extras())


def test_torch_that_cannot_be_imported_is_reported_as_the_problem(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    result = run("--json")
    assert result.exit_code == 1
    assert "torch" in json.loads(result.stdout)["problem"]
    assert result.stderr.startswith("error: torch cannot be imported")
    assert run().exit_code == 1


def test_apple_gpu_is_said_to_lack_float64(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert doctor.examine(speed=False)["devices"][-1]["float64"] is False
    assert "no float64" in run("--no-speed").stdout


@pytest.mark.parametrize(
    ("folder", "exists", "shown"),
    [(".", True, ""), ("nosuch", False, "no such directory"), (None, False, "not set")],
)
def test_data_directory_is_checked(monkeypatch, tmp_path, folder, exists, shown):
    path = None if folder is None else str(tmp_path / folder)
    monkeypatch.delenv("ACIL_DATA", raising=False)
    if path is not None:
        monkeypatch.setenv("ACIL_DATA", path)
    assert doctor.examine(speed=False)["data"] == {"ACIL_DATA": path, "exists": exists}
    lines = [line for line in run("--no-speed").stdout.splitlines() if line.startswith("ACIL_DATA")]
    assert shown in lines[0]
    assert ("no such" in lines[0] or "not set" in lines[0]) is not exists


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "max 100000"}, 4.0),
        ({"cpu.max": "900000 100000"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 4.0),
        ({}, 4.0),
    ],
)
def test_usable_cores_obey_affinity_and_container(monkeypatch, tmp_path, files, expected):
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    write(tmp_path, files)
    assert machine.usable_cores(tmp_path) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"memory.max": "1073741824\n"}, 2**30),
        ({"memory.max": "max\n"}, None),
        ({"memory/memory.limit_in_bytes": "1073741824\n"}, 2**30),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ({}, None),
    ],
)
def test_memory_limit_is_that_of_the_container(tmp_path, files, expected):
    write(tmp_path, files)
    assert machine.memory(tmp_path)["limit"] == expected


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def test_estimate_counts_every_phase_and_uses_each_speed_for_its_own_part():
    d = 8192
    classes_after_phase = [50 + 2 * phase for phase in range(26)]
    operations = 50_000 * d**2 + sum(d**3 / 3 + 2 * d**2 * classes for classes in classes_after_phase)
    assert doctor.head_seconds(syrk=1.0, cholesky=1.0) == pytest.approx(operations)
    assert doctor.head_seconds(syrk=math.inf, cholesky=1e9) == pytest.approx(26 * d**3 / 3e9)


FAILED = {"device": "cuda:0", "error": "out of memory"}


@pytest.mark.parametrize(
    ("results", "advice"),
    [
        ([result_of("cpu", 0.9)], 'dtype="float64" on cpu'),
        ([result_of("cpu", 2.9)], 'dtype="float64" on cpu'),
        ([result_of("cpu", 3.1)], 'on cpu: consider dtype="mixed"'),
        ([result_of("cpu", 2.0), result_of("cuda:0", 32.0)], 'on cuda:0: consider dtype="mixed"'),
        ([result_of("cpu", 2.0), FAILED], 'dtype="float64" on cpu'),
        ([FAILED], "Nothing could be measured."),
    ],
)
def test_mixed_is_recommended_where_auto_goes_and_float32_is_three_times_as_fast(results, advice):
    assert advice in doctor.recommend(results)


def test_measured_speeds_are_positive_and_complete(tiny):
    (result,) = doctor.measure(["cpu", "mps"])["results"]
    assert result["device"] == "cpu"
    for dtype in ("float64", "float32"):
        assert set(result[dtype]) == {"syrk_gflops", "cholesky_gflops", "head_seconds"}
        assert all(0 < value < math.inf for value in result[dtype].values())


def test_failing_device_does_not_hide_the_others(monkeypatch, tiny):
    honest = doctor._measure

    def fail_on_cuda(device, dtype, seconds):
        if device.type == "cuda":
            raise RuntimeError("CUDA out of memory.\nTried to allocate [much].")
        return honest(device, dtype, seconds)

    monkeypatch.setattr(doctor, "_measure", fail_on_cuda)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    card = type("Card", (), {"name": "Some [GPU]", "total_memory": 2**34})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    cpu, cuda = doctor.examine()["speed"]["results"]
    assert "error" not in cpu
    assert cuda == {"device": "cuda:0", "error": "CUDA out of memory."}
    shown = run()
    assert shown.exit_code == 0
    assert "CUDA out of memory." in shown.stdout
    assert "Some [GPU], 16.0 GiB" in shown.stdout


def test_speed_is_that_of_the_least_disturbed_run_after_warming_up(monkeypatch):
    clock, durations = [0.0], iter([0.5, 4.0, 3.0, 2.0, 1.0])
    monkeypatch.setattr(doctor.time, "perf_counter", lambda: clock[0])

    def work():
        clock[0] += next(durations)

    # Warm-up 0.5; then 4 + 3 + 2 seconds reach the budget of 8, and the run of 1 second never starts.
    assert doctor._fastest(work, 8.0, torch.device("cpu")) == 2.0
    assert list(durations) == [1.0]
