"""A disk that is full or read-only: one line, exit code 1, nothing lost, and `--resume` mends it."""

import errno
import os
import resource
from contextlib import nullcontext
from pathlib import Path

import pytest
from safetensors import SafetensorError

from acil.core.files.writing import write_tensors
from support.forks import finished
from support.running import DIGITS, command, records, timeless

pytestmark = pytest.mark.usefixtures("without_plots")


def fill_disk(patch, module):
    """Let one module have no space for the tensors that it writes."""

    def full(*arguments, **options):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    def write(*arguments, **options):
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr("safetensors.torch.save_file", full)
            write_tensors(*arguments, **options)

    patch.setattr(f"{module}.write_tensors", write)


def full_from(nth, file_name):
    """Return an `os.write` that has no space from the nth write to a file of that name, half-way."""
    seen, real = [], os.write

    def write(descriptor, data):
        if Path(f"/proc/self/fd/{descriptor}").readlink().name != file_name:
            return real(descriptor, data)
        seen.append(len(data))
        if len(seen) <= nth:
            return real(descriptor, data)
        if len(seen) == nth + 1:
            return real(descriptor, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return write


def assert_told(result, folder):
    told = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert result.exit_code == 1
    assert len(told) == 1
    assert "Cannot write" in told[0]
    assert "No space left on device" in told[0]
    assert "Traceback" not in result.output
    assert f"--resume --config {folder / 'config.toml'} --out {folder}" in result.stderr


@pytest.mark.parametrize("nth", [0, 1, 4, 7])
def test_full_disk_while_records_are_written(undisturbed, tmp_path, monkeypatch, nth):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("os.write", full_from(nth, "records.jsonl"))
        assert_told(command(*DIGITS, "--out", folder), folder)
    assert len(records(folder)) == nth
    assert command(*DIGITS, "--out", folder, "--resume").exit_code == 0
    assert timeless(folder) == undisturbed


@pytest.mark.parametrize(
    "place",
    [
        "acil.bench.job",  # the state of the method
        "acil.encoders.images.backbones",  # the base network
        "acil.bench.training.checkpoint",  # a checkpoint of base training
    ],
)
def test_full_disk_while_a_file_of_tensors_is_written(undisturbed, tmp_path, monkeypatch, place):
    folder = tmp_path / "run"
    monkeypatch.setattr("acil.bench.job.STATE_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        fill_disk(patch, place)
        assert_told(command(*DIGITS, "--out", folder), folder)
    assert not [path for path in folder.rglob("*") if path.name.startswith(".acil-")]
    assert command(*DIGITS, "--out", folder, "--resume").exit_code == 0
    assert timeless(folder) == undisturbed


def test_features_that_cannot_be_cached_cost_time_but_no_result(
    undisturbed, tmp_path, monkeypatch, caplog
):
    fill_disk(monkeypatch, "acil.encoders.images.cache")
    assert command(*DIGITS, "--out", tmp_path / "run").exit_code == 0
    assert timeless(tmp_path / "run") == undisturbed
    assert "not cached" in caplog.text


def test_full_disk_while_the_report_is_written(undisturbed, tmp_path, monkeypatch):
    folder = tmp_path / "run"

    def write_bytes(path, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.write_bytes", write_bytes)
        assert_told(command(*DIGITS, "--out", folder), folder)
    assert timeless(folder) == undisturbed
    result = command(*DIGITS, "--out", folder, "--resume")
    assert result.exit_code == 0
    assert (folder / "report" / "report.md").exists()
    assert timeless(folder) == undisturbed


def limit_files():
    # Room for settings and records, but not for the network.
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


def test_limit_on_the_size_of_files_as_the_system_enforces_it(undisturbed, tmp_path):
    folder = tmp_path / "run"

    result = finished("bench", "run", *DIGITS, "--out", folder, before=limit_files)
    assert result.returncode == 1
    assert "error: Cannot write" in result.stderr
    assert "File too large" in result.stderr
    assert "Traceback" not in result.stderr
    assert command(*DIGITS, "--out", folder, "--resume").exit_code == 0
    assert timeless(folder) == undisturbed


def test_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    result = command(*DIGITS, "--out", tmp_path / "file" / "run")
    assert result.exit_code == 1
    assert "error: Cannot write" in result.stderr
    assert "Not a directory" in result.stderr


def test_second_command_into_the_same_directory_is_refused(undisturbed, tmp_path, monkeypatch):
    folder, answers = tmp_path / "run", []

    def meanwhile(event):
        if not answers:
            answers.append(finished("bench", "run", *DIGITS, "--out", folder, "--resume"))

    monkeypatch.setattr("acil.cli.bench.run_progress", lambda: nullcontext(meanwhile))
    assert command(*DIGITS, "--out", folder).exit_code == 0
    assert answers[0].returncode == 1
    assert "error: Another process is writing into" in answers[0].stderr
    assert timeless(folder) == undisturbed
